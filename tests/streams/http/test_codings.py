"""Content codings: what browsers show is kept, and only what gives nothing, or stops making sense, is an error."""

import gzip
import hashlib
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.http.codings import MAX_MEMBERS, PIECE_BYTES, BadCoding, TooLarge, decoder

PAGE = b"<html>%s</html>" % b" ".join(hashlib.sha256(b"%d" % n).hexdigest().encode() for n in range(1500))
MOST = 1 << 20


def raw(body: bytes) -> bytes:
    """As some servers understand deflate: without the frame of zlib."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def several(body: bytes) -> bytes:
    """Zstd in more than one block, each of which can be read when it is there."""
    packer = zstd.ZstdCompressor()
    half = len(body) // 2
    return packer.compress(body[:half], packer.FLUSH_BLOCK) + packer.compress(body[half:], packer.FLUSH_FRAME)


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "zlib for gzip": ("gzip", zlib.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("Deflate", raw),
    "gzip for deflate": ("deflate", gzip.compress),
    "br": (" BR ", brotli.compress),
    "zstd": ("zstd", several),
}
every_form = pytest.mark.parametrize("form", FORMS)


def undone(coding: str, *chunks: bytes, most: int = MOST) -> bytes:
    """What comes of a body in chunks."""
    decodes = decoder(coding, most)
    assert decodes is not None
    pieces = [piece for chunk in chunks for piece in decodes.pieces(chunk)]
    decodes.end()
    assert all(len(piece) <= PIECE_BYTES * 3 // 2 for piece in pieces)
    return b"".join(pieces)


@every_form
@pytest.mark.parametrize("step", [1, 7, 1 << 30])
def test_a_body_is_the_same_however_it_is_cut(form: str, step: int) -> None:
    """Down to a byte at a time."""
    coding, packed = FORMS[form]
    body = packed(PAGE)
    assert undone(coding, *(body[at : at + step] for at in range(0, len(body), step))) == PAGE


@every_form
def test_an_empty_body_is_empty(form: str) -> None:
    """Packed, or not there at all, as for a HEAD or a 304."""
    coding, packed = FORMS[form]
    assert undone(coding, packed(b"")) == undone(coding) == undone(coding, b"") == b""


@every_form
def test_what_ends_too_early_counts_as_far_as_it_goes(form: str) -> None:
    """At least the first third of two thirds is there."""
    coding, packed = FORMS[form]
    body = packed(PAGE)
    got = undone(coding, body[: len(body) * 2 // 3])
    assert PAGE.startswith(got)
    assert len(got) >= len(PAGE) // 3


@every_form
def test_what_gives_nothing_is_no_empty_page(form: str) -> None:
    """The first byte of a body, or none of its own."""
    coding, packed = FORMS[form]
    for body in (packed(PAGE)[:1], b"<html>a page that nobody packed</html>", b"\xff" * 500):
        with pytest.raises(BadCoding):
            undone(coding, body)


@every_form
@pytest.mark.parametrize("junk", [b"x", b"\r\n", b"\0" * 512, b"\x1f", b"<!-- served in 3 ms -->"])
def test_what_follows_the_end_is_nobodys(form: str, junk: bytes) -> None:
    """Servers put line ends, padding and comments there; browsers never show them."""
    coding, packed = FORMS[form]
    assert undone(coding, packed(PAGE), junk, junk) == PAGE
    if form != "br":
        assert undone(coding, packed(PAGE) + junk) == PAGE


@pytest.mark.parametrize(
    ("form", "times"),
    [("gzip", 2), ("x-gzip", 3), ("gzip for deflate", 2), ("zstd", 2), ("deflate", 1), ("raw deflate", 1), ("br", 1)],
)
def test_members_follow_each_other_where_the_coding_has_them(form: str, times: int) -> None:
    """RFC 1952 2.2, RFC 8878 3.1: gzip and zstd do."""
    coding, packed = FORMS[form]
    bodies = [packed(PAGE)] * times if times > 1 else [packed(PAGE), packed(PAGE)]
    assert undone(coding, *bodies) == PAGE * times


def test_skippable_frames_of_zstd_are_skipped() -> None:
    """Between others, and before them."""
    skipped = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"aside"
    assert undone("zstd", skipped + several(PAGE) + skipped + several(b"x")) == PAGE + b"x"


@pytest.mark.parametrize("packed", [gzip.compress, zstd.compress])
def test_members_without_end_are_an_error(packed: Callable[[bytes], bytes]) -> None:
    """A megabyte of empty ones is 50,000 (GHSA-h4cc-hm5h-fmm9)."""
    coding = "gzip" if packed is gzip.compress else "zstd"
    assert undone(coding, packed(b"") * MAX_MEMBERS) == b""
    with pytest.raises(BadCoding, match="members"):
        undone(coding, packed(b"") * (MAX_MEMBERS + 1))


def test_a_damaged_body_is_an_error() -> None:
    """Its checksum says so, or what cannot be."""
    body = bytearray(gzip.compress(PAGE))
    body[-6] ^= 1
    with pytest.raises(BadCoding):
        undone("gzip", bytes(body))
    packer = zlib.compressobj()
    with pytest.raises(BadCoding):
        undone("deflate", packer.compress(PAGE) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff")  # no such block


@pytest.mark.parametrize("coding", ["", "identity", " , identity,", "rot13", "none", "utf-8", "compress"])
def test_a_body_of_no_coding_that_is_known_is_taken_as_it_is(coding: str) -> None:
    """As browsers do."""
    assert decoder(coding, MOST) is None


@pytest.mark.parametrize("coding", ["gzip, rot13", "br, compress", ", ".join(["gzip"] * 6)])
def test_what_nobody_can_undo_is_an_error(coding: str) -> None:
    """An unknown coding among others, or more than five."""
    with pytest.raises(BadCoding):
        decoder(coding, MOST)


def test_several_codings_are_undone_last_one_first() -> None:
    """Of any kind; `identity` is none of them."""
    body = zlib.compress(several(brotli.compress(gzip.compress(PAGE))))
    assert undone("gzip, br, identity,zstd , deflate", body) == PAGE
    assert undone("gzip, gzip", gzip.compress(gzip.compress(PAGE))[:-1]) == PAGE


def test_a_layer_in_between_has_the_limit_too() -> None:
    """Bombs whose layers give nothing in the end."""
    nothing = gzip.compress(b"") * 900
    with pytest.raises(TooLarge):
        undone("gzip, gzip", gzip.compress(gzip.compress(bytes(10 * MOST), 0)))
    assert undone("gzip, gzip", gzip.compress(nothing)) == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_comes_in_pieces(coding: str) -> None:
    """Of 20 MB nothing is made that nobody asks for."""
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstd.compress}
    bomb = pack[coding](bytes(20 << 20), **({"quality": 1} if coding == "br" else {}))
    decodes = decoder(coding, MOST)
    assert decodes is not None
    tracemalloc.start()
    try:
        pieces = decodes.pieces(bomb)
        assert 0 < sum(len(next(pieces)) for _ in range(3)) <= 5 * PIECE_BYTES
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_window_of_zstd_beyond_eight_megabytes_is_refused() -> None:
    """RFC 9659: each response could take 128 MiB."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(BadCoding):
        undone("zstd", packer.compress(bytes(9 << 20)) + packer.flush())


@given(st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, br"]), st.lists(st.binary(max_size=300), max_size=3))
def test_no_bytes_break_a_decoder(coding: str, chunks: list[bytes]) -> None:
    """Each body is one, or an error."""
    try:
        undone(coding, *chunks)
    except (BadCoding, TooLarge):
        return
