"""Heads and chunks as Chromium 156 reads them (each case was given to it), within what the parser takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.http.heads import MOST_LINES, LooseChunks, begins_loosely, head_end, mended, plain_head

OK = b"HTTP/1.1 200 OK\r\n"
TYPE = b"Content-Type: text/html\r\n"
LENGTH = b"Content-Length: 7\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"\r\n"


@pytest.mark.parametrize(
    "head",
    [
        OK + END,
        OK + TYPE + LENGTH + b"X: \xff\r\n" + END,
        b"HTTP/1.0 404\r\n" + CHUNKED + TYPE + END,
        OK + b"content-length:7 \r\n" + END,
    ],
)
def test_a_head_of_the_standard_stays_as_it_is(head: bytes) -> None:
    """It is known by one look."""
    assert plain_head(head + b"body\r\n\r\n") == head_end(head) == len(head)


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        (b"a line of words", b""),
        (b"X-Time : 1", b"X-Time: 1\r\n"),
        (b"X-List[0]: 1", b""),
        ("\u2018access-control\u2019: *".encode(), b""),
        (b"<b>Warning</b>: cannot load x.so", b""),
        (b"Pragma: no-cache\r", b"Pragma: no-cache\r\n"),
        (b": no name", b""),
        (b"no name\r\n that goes on: 1", b""),
        (b"X[0]: 1\r\n goes on", b""),
        (b"X: 1\r\n\tgoes on", b"X: 1 goes on\r\n"),
        (b"X: a\rY: b", b"X: a\r\nY: b\r\n"),
        (b"X: a\nwords", b"X: a\r\n"),
        (b"Transfer-Encoding: identity", b""),
    ],
)
def test_a_line_that_is_no_header_is_dropped_or_mended(line: bytes, becomes: bytes) -> None:
    """The others stay."""
    head = OK + TYPE + line + b"\r\n" + LENGTH + END
    assert plain_head(head) == 0
    assert mended(head) == OK + TYPE + becomes + LENGTH + END


@pytest.mark.parametrize(
    ("status", "becomes"),
    [
        (b"HTTP/1 200", b"HTTP/1.0 200 "),
        (b"HTTP/1 404 No", b"HTTP/1.0 404 No"),
        (b"HTTP/1.1", b"HTTP/1.1 200 "),
        (b"HTTP/1.1 OK", b"HTTP/1.1 200 OK"),
        (b"HTTP/1.1 404No", b"HTTP/1.1 404 No"),
        (b"HTTP/1.1  503 Later", b"HTTP/1.1 503 Later"),
        (b"http/1.1 200 OK", b"HTTP/1.1 200 OK"),
        (b"HTTP/2 200 OK", b"HTTP/1.0 200 OK"),
        (b"HTTP/2.0 200 OK", b"HTTP/1.1 200 OK"),
        (b"HTTP 200 OK", b"HTTP/1.0 200 OK"),
        (b"\xef\xbb\xbfHTTP/1.1 200 OK", b"HTTP/1.1 200 OK"),
        (b"\r\n\r\nHTTP/1.1 200 OK", b"HTTP/1.1 200 OK"),
    ],
)
def test_a_status_line_is_read_as_far_as_it_can_be(status: bytes, becomes: bytes) -> None:
    """Without a status it is 200; up to four bytes may stand before it."""
    head = status + b"\r\n" + TYPE + END
    assert head_end(head) == len(head)
    assert mended(head) == becomes + b"\r\n" + TYPE + END


@pytest.mark.parametrize(
    ("lines", "becomes"),
    [
        (LENGTH + LENGTH, LENGTH),
        (b"Content-Length: 7, 7\r\n", LENGTH),
        (b"Content-Length : 7\r\n", LENGTH),
        (b"Content-Length:\r\n", b""),
        (b"Content-Length: some\r\n", b""),
        (b"Content-Length: +7\r\n", b""),
        (CHUNKED + b"Content-Length:\r\n", CHUNKED),
    ],
)
def test_equal_lengths_are_one_and_no_number_is_none(lines: bytes, becomes: bytes) -> None:
    """A body without a length ends with its connection."""
    assert mended(OK + lines + END) == OK + becomes + END


@pytest.mark.parametrize(
    "lines",
    [
        LENGTH + b"Content-Length: 3\r\n",
        LENGTH + b"Content-Length: 07\r\n",
        LENGTH + b"Content-Length:\r\n",
        b"Content-Length : 3\r\n" + LENGTH,
        b"X: a\rContent-Length: 3\r\n" + LENGTH,
        CHUNKED + LENGTH,
        b"Transfer-Encoding : chunked\r\n" + LENGTH,
    ],
)
def test_two_ways_to_find_the_end_stay_two(lines: bytes) -> None:
    """The parser refuses them, whatever line is mended beside them."""
    framing = [line for line in mended(OK + b"words\r\n" + lines + END).split(b"\r\n") if line[:1] in b"CT"]
    assert len(framing) > 2


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 2000 OK\r\n" + END,
        b"HTTP/1.1 099 OK\r\n" + END,
        OK + b"X: a\0b\r\n" + END,
        OK + b"a\r\n" * (MOST_LINES + 1) + END,
    ],
)
def test_what_cannot_be_mended_stays(head: bytes) -> None:
    """The parser has the words for it."""
    assert mended(head) == head


@pytest.mark.parametrize("data", [b"no http\r\n\r\n", b"SSH-2.0-OpenSSH\r\n", b"\r\n\r\n\r\nHTTP/1.1 200"])
def test_what_begins_no_head_is_told_at_once(data: bytes) -> None:
    """Nothing is waited for."""
    assert head_end(data) == -1


_pieces = st.sampled_from(
    [OK, TYPE, LENGTH, CHUNKED, b"\r", b"\n", b" ", b":", b"x", b"\0", b"Content-Length", b"HTTP/1 "]
)


@given(st.lists(_pieces).map(b"".join) | st.binary(), st.lists(_pieces).map(b"".join))
def test_no_head_is_split_into_two(begin: bytes, more: bytes) -> None:
    """Whatever it holds: a mended head ends once, at its end."""
    data = OK + begin + more + b"\r\n\r\n"
    head = data[: head_end(data)]
    made = mended(head)
    assert made == head or (head_end(made) == len(made) and b"\n" not in made.replace(b"\r\n", b""))


@pytest.mark.parametrize(
    ("chunks", "body"),
    [
        (b"7\n<p>page\n0\n\n", b"<p>page"),
        (b"3\n<p>\r\n4 ;a=b\r\npage\n0\n\n", b"<p>page"),
        (b"9\n0\n\n\r\n<\n>\n\n0\nwords\nA: b\n\n", b"0\n\n\r\n<\n>\n"),
    ],
)
def test_chunks_may_end_in_lf(chunks: bytes, body: bytes) -> None:
    """However they are cut; trailers are dropped, and what follows the end stays."""
    assert begins_loosely(chunks)
    for size in range(1, len(chunks) + 1):
        loose = LooseChunks()
        made = b"".join(loose.take(chunks[at : at + size]) for at in range(0, len(chunks), size))
        assert plain_body(made) == (body, b"")
    assert LooseChunks().take(chunks + b"HTTP/1.1").endswith(b"\r\n0\r\n\r\nHTTP/1.1")


@pytest.mark.parametrize(
    "chunks", [b"x\n", b"1\nabc\n", b"-1\n", b"1" * 16 + b"\n", b"1" * 20_000, b"0\n" + b"a\n" * 9_000]
)
def test_chunks_without_a_size_or_an_end_are_refused(chunks: bytes) -> None:
    """With what the parser does not take."""
    assert LooseChunks().take(chunks).endswith(b"?")


def test_a_size_of_the_standard_is_the_parsers() -> None:
    """Its line may come in parts."""
    assert [begins_loosely(part) for part in (b"7", b"7\r", b"7\r\n", b"7\n", b"\n")] == [None, None, False, True, True]


def plain_body(chunks: bytes) -> tuple[bytes, bytes]:
    """The body of chunks of the standard, and what follows it."""
    body = b""
    while True:
        size, _, chunks = chunks.partition(b"\r\n")
        length = int(size, 16)
        body, end, chunks = body + chunks[:length], chunks[length : length + 2], chunks[length + 2 :]
        assert end == b"\r\n"
        if not length:
            return body, chunks
