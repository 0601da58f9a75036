"""Bodies of crawl.pages in their content codings: each reader gets the page that fetch would unpack, or why not."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import pages
from crawlog.schemas.pages import CODING, PageMeta
from crawlog.streams.coded_pages import (
    PACKS,
    coding_in,
    likely_bytes,
    older_page,
    page_of,
    page_size,
    plain_headers,
)
from crawlog.streams.http.codings import MAX_MEMBERS, Head, UnkeptBody, coding_of, decoded, decoder

PAGE = b"<html>" + b"".join(b"<p>%d paragraph %d</p>" % (n, n * 7919) for n in range(15_000))
META = PageMeta("http://a.test/", "j", http=200, limit=1 << 20)
MOST = 1 << 20
URL = META.url


def raw(body: bytes) -> bytes:
    """Deflate without the frame of zlib."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def quickly(body: bytes) -> bytes:
    """Brotli as servers do it; its default is best and takes a second for these pages, at each collection."""
    packed: bytes = brotli.compress(body, quality=5)
    return packed


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw),
    "br": ("br", quickly),
    "zstd": ("zstd", zstd.compress),
    "twice": ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
    "mixed": ("deflate, br, zstd", lambda body: zstd.compress(quickly(zlib.compress(body)))),
}
PACKED = {form: (coding, pack(PAGE)) for form, (coding, pack) in FORMS.items()}
every_form = pytest.mark.parametrize("form", PACKED)


def read(body: bytes, coding: str, most: int = MOST, limit: int = 1 << 20) -> tuple[str, bytes]:
    """Error and body of a page."""
    meta = PageMeta("http://a.test/", "j", http=200, limit=limit)
    meta, body = page_of(meta, body, pages.headers(meta, coding), most)
    assert meta.kept is not bool(meta.error)
    return meta.error, body


@every_form
def test_a_body_in_a_coding_is_the_plain_one(form: str) -> None:
    """With the codings in the order of the header: the first was applied first."""
    coding, packed = PACKED[form]
    assert read(packed, coding) == ("", PAGE)


def test_a_record_without_the_header_has_a_plain_body() -> None:
    """Whatever its bytes look like, and whatever its metadata say."""
    headers = pages.headers(META)
    assert [name for name, _ in headers] == ["crawlog"]
    packed = gzip.compress(PAGE)
    assert page_of(META, packed, headers, 1) == (META, packed)
    assert page_of(META, None, None, 1) == (META, b"")


@pytest.mark.parametrize("form", sorted(PACKED.keys() - {"mixed"}))
def test_a_body_that_ends_too_early_counts_as_far_as_it_goes(form: str) -> None:
    """As browsers show it."""
    coding, packed = PACKED[form]
    error, body = read(packed[: len(packed) * 3 // 4], coding)
    assert (error, PAGE.startswith(body)) == ("", True)
    assert len(body) >= len(PAGE) // 4


@pytest.mark.parametrize("form", sorted(PACKED.keys() - {"br"}))
@pytest.mark.parametrize("junk", [b"x", b"\r\n", b"\0" * 512])
def test_bytes_behind_the_end_are_nobodys(form: str, junk: bytes) -> None:
    """Of the outer coding."""
    coding, packed = PACKED[form]
    assert read(packed + junk, coding) == ("", PAGE)


@pytest.mark.parametrize(("members", "error"), [(2, ""), (MAX_MEMBERS, ""), (MAX_MEMBERS + 1, "bad_encoding")])
def test_members_follow_each_other_up_to_a_limit(members: int, error: str) -> None:
    """Each costs time, even an empty one."""
    assert read(gzip.compress(b"x") * members, "gzip") == (error, b"" if error else b"x" * members)


@pytest.mark.parametrize(
    ("body", "coding", "error"),
    [
        (b"<p>plain", "gzip", "bad_encoding"),
        (b"<p>plain", "br", "bad_encoding"),
        (b"<p>plain", "zstd", "bad_encoding"),
        (gzip.compress(PAGE, mtime=0)[:-8] + b"\0" * 8, "gzip", "bad_encoding"),  # another checksum
        (gzip.compress(PAGE, mtime=0)[:-4] + b"\0" * 4, "gzip", "bad_encoding"),  # another length
        (gzip.compress(PAGE, mtime=0), "gzip, gzip", "bad_encoding"),
        (gzip.compress(PAGE, mtime=0), "gzip, compress", "bad_encoding"),
        (gzip.compress(PAGE, mtime=0), ", ".join(["gzip"] * 9), "bad_encoding"),
        (b"\x1f", "gzip", "bad_encoding"),
    ],
)
def test_what_cannot_be_unpacked_has_its_reason_and_no_body(body: bytes, coding: str, error: str) -> None:
    """Lengths and checksums that lie, names that are wrong."""
    assert read(body, coding) == (error, b"")


@pytest.mark.parametrize("coding", ["identity", "rot13", "", " , ", "identity, identity"])
def test_a_coding_that_is_none_leaves_the_body_as_it_is(coding: str) -> None:
    """One unknown name too, as in browsers."""
    assert read(PAGE, coding) == ("", PAGE)


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, br", ", ".join(["gzip"] * 9)])
def test_an_empty_body_is_empty(coding: str) -> None:
    """After a HEAD, or with a 304."""
    assert read(b"", coding) == ("", b"")


@every_form
def test_a_body_beyond_the_limit_is_too_large(form: str) -> None:
    """By a byte, whoever sets the limit: the page, or its reader."""
    coding, packed = PACKED[form]
    assert read(packed, coding, limit=len(PAGE)) == read(packed, coding, most=len(PAGE)) == ("", PAGE)
    assert read(packed, coding, limit=len(PAGE) - 1) == read(packed, coding, most=len(PAGE) - 1) == ("too_large", b"")


def test_a_page_that_tells_no_limit_has_its_readers() -> None:
    """Any client may have written it."""
    assert read(gzip.compress(b"x" * 9), "gzip", most=9, limit=0) == ("", b"x" * 9)
    for limit in (0, 1 << 60):
        assert read(gzip.compress(b"x" * 9), "gzip", most=8, limit=limit) == ("too_large", b"")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_a_bomb_takes_no_more_memory_than_the_limit(coding: str, times: int) -> None:
    """64 MB in some kilobytes, also in a second coat."""
    pack: Any = {"gzip": gzip.compress, "br": partial(brotli.compress, quality=4), "zstd": zstd.compress}[coding]
    body = bytes(64 << 20)
    for _ in range(times):
        body = pack(body)
    tracemalloc.start()
    try:
        assert read(body, ", ".join([coding] * times)) == ("too_large", b"")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * MOST


CODINGS = st.lists(st.sampled_from(["gzip", "deflate", "br", "zstd", "identity", "x", ""]), max_size=7).map(", ".join)


@given(st.binary(max_size=2000) | st.sampled_from([body for _, body in PACKED.values()]), CODINGS, st.integers(0, 5000))
def test_any_bytes_in_any_coding_are_a_page_within_the_limit(value: bytes, coding: str, most: int) -> None:
    """Nothing is raised: the page ends with a row."""
    meta, body = page_of(META, value, pages.headers(META, coding), most)
    assert meta.error in ("", "too_large", "bad_encoding")
    assert body == value or len(body) <= most


@given(st.sampled_from(sorted(PACKED)), st.data())
def test_damaged_bodies_end_as_they_do_piece_by_piece(form: str, data: st.DataObject) -> None:
    """Parse refuses what fetch would refuse, and keeps the same bytes of what is kept."""
    coding, packed = PACKED[form]
    at = data.draw(st.integers(0, len(packed) - 1))
    broken = packed[:at] + data.draw(st.binary(min_size=1, max_size=3)) + packed[at + data.draw(st.integers(0, 3)) :]
    undo = decoder(coding, MOST)
    assert undo is not None
    try:
        whole = b"".join(undo.pieces(broken))
        undo.end()
        wanted = "", whole
    except UnkeptBody as error:
        wanted = error.word, b""
    assert read(broken, coding) == wanted


@every_form
@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_a_head_is_the_beginning_of_the_body(form: str, step: int) -> None:
    """However it comes; and no more is unpacked than is wanted."""
    coding, packed = PACKED[form]
    head = Head(coding, 512)
    for at in range(0, len(packed), step):
        head.take(packed[at : at + step])
    head.end()
    assert (head.unpacked, head.is_full) == (PAGE[:512], True)


def test_bytes_in_one_chunk_with_the_end_of_a_br_body_are_an_error() -> None:
    """The library does not report where the body ends."""
    coding, packed = PACKED["br"]
    assert read(packed + b"x", coding) == ("bad_encoding", b"")


@pytest.mark.parametrize("form", sorted(PACKED.keys() - {"br"}))
@pytest.mark.parametrize("size", [100, 3_000, 20_000, 100_000])
def test_a_head_is_not_disturbed_by_bytes_behind_the_end(form: str, size: int) -> None:
    """Which come in one piece with it, whatever more the page has."""
    page = (PAGE * (size // len(PAGE) + 1))[:size]
    coding, pack = FORMS[form]
    head = Head(coding, 512)
    head.take(pack(page) + b"\0\0trail junk")
    head.end()
    assert head.unpacked == page[:512]


@pytest.mark.parametrize("coding", ["", "gzip", "br", "zstd"])
def test_a_head_of_a_short_body_is_all_of_it(coding: str) -> None:
    """It is full only with what was wanted."""
    pack: Any = {"": bytes, "gzip": gzip.compress, "br": brotli.compress, "zstd": zstd.compress}[coding]
    head = Head(coding, 512)
    head.take(pack(b"short"))
    head.end()
    assert (head.unpacked, head.is_full) == (b"short", False)


def test_a_head_that_finds_nothing_is_an_error_or_given_up() -> None:
    """Nothing to decode is no empty page; a bomb inside a coat says nothing of what it is."""
    with pytest.raises(UnkeptBody):
        Head("gzip", 512).take(b"<p>plain")
    head = Head("gzip", 512)
    head.take(b"\x1f")
    with pytest.raises(UnkeptBody):
        head.end()
    empty = gzip.compress(b"\x1f\x8b" + b"\x08" + b"\x08" + b"\0" * 6 + b"n" * (8 << 20))  # a name without an end
    head = Head("gzip, gzip", 512)
    head.take(empty)
    head.end()
    assert (head.unpacked, head.is_full) == (b"", True)


def test_other_headers_stay_and_sizes_are_guessed() -> None:
    """A record that was unpacked no longer tells a coding."""
    headers = [("crawlog", b"{}"), (CODING, b"gzip"), ("x", b"y")]
    assert plain_headers(headers) == [("crawlog", b"{}"), ("x", b"y")]
    assert (coding_in(headers), coding_in([(CODING, None)]), coding_in(None)) == ("gzip", "", "")
    assert likely_bytes(b"123", headers) == 3 * PACKS
    assert (likely_bytes(b"123", []), likely_bytes(None, headers)) == (3, 0)


@pytest.mark.parametrize(
    ("said", "coding"),
    [(" GZip ", "gzip"), ("identity, br", "br"), ("gzip,,deflate", "gzip, deflate"), ("rot13", ""), ("", "")],
)
def test_the_codings_of_a_header_have_one_spelling(said: str, coding: str) -> None:
    """It is the header of the record."""
    assert coding_of(said) == coding
    assert decoded(b"", said, 0) == b""


@pytest.mark.parametrize(
    ("kind", "body", "coding", "size", "error"),
    [
        ("page", gzip.compress(b"x" * 9), b"gzip", 9, ""),
        ("page", gzip.compress(b"x" * 10), b"gzip", 0, "too_large"),
        ("page", b"no gzip", b"gzip", 0, "bad_encoding"),
        ("page", b"x" * 10, b"", 10, ""),
        ("sitemap", gzip.compress(b"x" * 10), b"gzip", 23, ""),
        ("sitemap", zlib.compress(b"x" * 10), b"deflate", 0, "too_large"),
    ],
)
def test_the_size_of_a_page_is_that_of_its_body(kind: Any, body: bytes, coding: bytes, size: int, error: str) -> None:
    """A sitemap that unpacks to more stays gzipped."""
    meta, headers = PageMeta(URL, "j", kind=kind, limit=9), [(CODING, coding)]
    told, plain = page_of(meta, body, headers, MOST)
    assert page_size(meta, body, headers, MOST) == (told, len(plain))
    assert (len(plain), told.error) == (size, error)


def test_the_size_of_a_page_is_told_without_its_body() -> None:
    """A record of 60 kB may unpack to 64 MB, and any client may have written it."""
    bomb = gzip.compress(bytes(1 << 26))
    tracemalloc.start()
    assert page_size(PageMeta(URL, "j"), bomb, [(CODING, b"gzip")], 1 << 26)[1] == 1 << 26
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


@pytest.mark.parametrize(
    ("old", "body", "is_meant"),
    [
        (PageMeta(URL, "j"), b"x", True),
        (PageMeta("http://a.com/other", "j"), b"x", False),
        (PageMeta(URL, "other"), b"x", False),
        (PageMeta(URL, "j", kept=False), b"", False),
        (PageMeta(URL, "j", same_as=(0, 0)), b"", False),
    ],
)
def test_another_record_at_the_old_place_is_not_taken_for_the_page(old: PageMeta, body: bytes, is_meant: bool) -> None:
    """After a power cut offsets are given out again."""
    new = PageMeta(URL, "j", same_as=(0, 0))
    assert older_page(pages.headers(old), body, new, 9) == ((old, body) if is_meant else (None, b""))
    assert older_page([], body, new, 9) == (None, b"")


@pytest.mark.parametrize(
    ("body", "limit", "most", "found"),
    [
        (gzip.compress(b"x" * 9, mtime=0), 100, 9, b"x" * 9),
        (gzip.compress(b"x" * 9, mtime=0), 8, 100, None),
        (gzip.compress(b"x" * 9, mtime=0), 8, 8, None),
        (gzip.compress(b"x" * 9, mtime=0), 9, 8, b""),
        (b"no gzip", 100, 9, None),
        (gzip.compress(b"x" * 9, mtime=0)[:-8] + bytes(8), 100, 9, None),
    ],
)
def test_an_old_page_that_cannot_be_unpacked_is_gone(body: bytes, limit: int, most: int, found: bytes | None) -> None:
    """Its URL is fetched whole, as a page's whose body was not kept; not if this reader alone has no room."""
    old = PageMeta(URL, "j", limit=limit)
    said = older_page(pages.headers(old, "gzip"), body, PageMeta(URL, "j", same_as=(0, 0)), most)
    assert said == ((None, b"") if found is None else (old, found))
