"""A page as WARC records, read back by warcio."""

import gzip
from io import BytesIO
from typing import Any

import msgspec
import pytest
from warcio.archiveiterator import ArchiveIterator

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.warc.captures import Capture, PageRecord, digest_of, id_of, members
from tests.support.warcs import BODY, LOG, META, URL


def page(body: bytes = BODY, coding: str = "", **changed: Any) -> PageRecord:
    """A page at offset 7 of partition 3."""
    return PageRecord(3, 7, msgspec.structs.replace(META, **changed), body, coding)


def read(content: bytes) -> tuple[Any, bytes, bytes]:
    """The one record in a gzip member: it, its head byte by byte, and its body."""
    [(record, body)] = [
        (one, one.raw_stream.read()) for one in ArchiveIterator(BytesIO(content), check_digests="raise")
    ]
    block = gzip.decompress(content).partition(b"\r\n\r\n")[2].removesuffix(b"\r\n\r\n")
    return record, block.removesuffix(body), body


def test_an_answer_is_a_response_and_its_request_byte_by_byte() -> None:
    """Status line, headers and body as the server sent them, and what was asked; ids that a repeat has too."""
    response, request = members(page(), LOG, None)
    record, head, body = read(response.content)
    assert (record.rec_type, body) == ("response", BODY)
    lines = ("HTTP/1.0 200 Ye\xe9s", *(f"{name}: {value}" for name, value in META.headers))
    assert head == ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    assert record.rec_headers.get_header("WARC-Target-URI") == URL
    assert record.rec_headers.get_header("WARC-Date") == "2025-11-29T04:20:00Z"
    assert record.rec_headers.get_header("WARC-Record-ID") == f"<urn:uuid:{id_of(LOG, '3:7')}>"
    assert response.fields == {"url": URL, "mime": "text/html", "status": "200", "digest": digest_of(BODY)}
    record, head, body = read(request.content)
    assert (record.rec_type, request.fields, body) == ("request", None, b"")
    assert head == b"GET /x?y=1 HTTP/1.1\r\nHost: a.com\r\nCookie: a=\xe9\r\n\r\n"
    assert record.rec_headers.get_header("WARC-Concurrent-To") == f"<urn:uuid:{id_of(LOG, '3:7')}>"
    assert [one.content for one in members(page(), LOG, None)] == [response.content, request.content]


def test_a_request_has_its_method_and_its_body() -> None:
    """As its record in the log says."""
    _, request = members(page(request=RequestRecord("post", body=b"a=\xff")), LOG, None)
    _, head, body = read(request.content)
    assert (head.split(b" ")[0], body) == (b"POST", b"a=\xff")


@pytest.mark.parametrize(
    ("coding", "body", "sent", "kept"),
    [
        ("gzip", b"as it came", (("Content-Encoding", "gzip"),), (("Content-Encoding", "gzip"),)),
        ("", b"plain", (("Content-Encoding", "gzip"),), (("X-Orig-Content-Encoding", "gzip"),)),
        ("", b"12", (("content-length", "9"),), (("X-Orig-content-length", "9"),)),
        ("", b"12", (("Content-Length", " 2"),), (("Content-Length", " 2"),)),
        ("", b"12", (("Transfer-Encoding", "chunked"),), (("X-Orig-Transfer-Encoding", "chunked"),)),
    ],
)
def test_headers_are_true_of_the_body_that_is_there(
    coding: str, body: bytes, sent: tuple[tuple[str, str], ...], kept: tuple[tuple[str, str], ...]
) -> None:
    """A reader undoes what they say; those that are no longer true have another name."""
    response, _ = members(page(body, coding, headers=sent), LOG, None)
    record, _, read_body = read(response.content)
    assert read_body == body
    assert [(name, value.strip()) for name, value in record.http_headers.headers] == [
        (name, value.strip()) for name, value in kept
    ]


def test_a_page_that_was_not_modified_is_a_revisit_of_the_older_one() -> None:
    """With the head of the 304, and what a reader finds the older response by."""
    original = Capture("3:2", URL, "2025-11-01T00:00:00Z", digest_of(b"old"))
    asked = page(b"", http=304, status_line="HTTP/1.1 304 Not Modified", same_as=(3, 2))
    revisit, _ = members(asked, LOG, original)
    record, head, _ = read(revisit.content)
    about = dict(record.rec_headers.headers)
    assert (record.rec_type, head[:12]) == ("revisit", b"HTTP/1.1 304")
    assert about["WARC-Profile"] == "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
    assert about["WARC-Refers-To"] == f"<urn:uuid:{id_of(LOG, '3:2')}>"
    assert (about["WARC-Refers-To-Target-URI"], about["WARC-Refers-To-Date"]) == (URL, original.date)
    assert revisit.fields == {"url": URL, "mime": "warc/revisit", "status": "304", "digest": original.digest}
    lost, _ = members(asked, LOG, None)
    about = dict(read(lost.content)[0].rec_headers.headers)
    assert about["WARC-Refers-To"] == f"<urn:uuid:{id_of(LOG, '3:2')}>"
    assert "WARC-Refers-To-Date" not in about


def test_a_body_that_the_archive_has_is_a_revisit() -> None:
    """Of another URL, too."""
    original = Capture("1:1", "http://a.com/old", "2025-11-01T00:00:00Z", digest_of(BODY))
    revisit, _ = members(page(), LOG, original)
    record, _, body = read(revisit.content)
    about = dict(record.rec_headers.headers)
    assert (record.rec_type, body) == ("revisit", b"")
    assert about["WARC-Profile"].endswith("/identical-payload-digest")
    assert (about["WARC-Refers-To-Target-URI"], about["WARC-Payload-Digest"]) == (original.url, original.digest)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kept": False, "error": "too_large"}, "length"),
        ({"kept": False, "error": "bad_body: broken"}, "disconnect"),
        ({"kept": False, "error": "chunk_timeout"}, "time"),
        ({"kept": False}, "unspecified"),
        ({"kept": False, "headers": (("Content-Length", "0"),)}, None),
        ({"kept": False, "http": 204, "status_line": "HTTP/1.1 204 x"}, None),
        ({"kept": False, "request": RequestRecord("HEAD")}, None),
        ({}, None),
    ],
)
def test_a_body_that_was_not_kept_is_marked(changed: dict[str, Any], why: str | None) -> None:
    """A reader must not take an answer without its body for an empty one."""
    response, _ = members(page(b"", **changed), LOG, None)
    assert read(response.content)[0].rec_headers.get_header("WARC-Truncated") == why


@pytest.mark.parametrize("changed", [{"rendered": "always"}, {"status_line": "", "headers": (), "sent": ()}])
def test_what_is_no_whole_exchange_is_a_resource(changed: dict[str, Any]) -> None:
    """The body that a browser made, or one whose headers were not kept; without a body there is nothing to write."""
    [resource] = members(page(**changed), LOG, None)
    record, _, body = read(resource.content)
    assert (record.rec_type, record.content_type, body) == ("resource", "text/html; charset=x", BODY)
    assert resource.fields == {"url": URL, "mime": "text/html", "digest": digest_of(BODY)}
    assert list(members(page(b"", **changed), LOG, None)) == []


def test_no_answer_and_the_lines_of_a_robots_txt_are_no_records() -> None:
    """The log has no body of them as it was sent."""
    assert list(members(page(b"", http=None, error="dns"), LOG, None)) == []
    assert list(members(page(kind="robots"), LOG, None)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "http://a.com/\r\nWARC-Type: response"},
        {"url": "a.com"},
        {"headers": (("A", "1\r\n\r\nforged"),)},
        {"headers": (("A\n", "1"),)},
        {"headers": (("A", "\u2028€"),)},
        {"sent": (("A", "1\n"),)},
        {"status_line": "HTTP/1.1 404 Not Found"},
        {"status_line": "HTTP/1.1 200 OK\r\nA: 1"},
        {"fetched_at": 1e300},
        {"request": RequestRecord("GET / HTTP/1.1\r\nA: 1\r\n")},
    ],
)
def test_a_record_that_would_forge_others_is_refused(changed: dict[str, Any]) -> None:
    """Any client may write to crawl.pages."""
    with pytest.raises(ValueError, match=r"\S"):
        list(members(page(**changed), LOG, None))
