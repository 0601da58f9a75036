"""Content codings that the HTTP client leaves as they are: several on top of each other, and old names.

Servers behind servers compress twice. Each layer is undone within the limit of the body, so a bomb is noticed before it
is memory.
"""

import zlib

MAX_LAYERS = 5
"""Codings on one body; more is no mistake but an attack."""

_GZIP = frozenset({"gzip", "x-gzip"})
_AUTOMATIC = 32 + zlib.MAX_WBITS


class TooLarge(ValueError):
    """More than the limit comes out."""


class BadCoding(ValueError):
    """It is not coded as it says, or by what nobody here knows."""


def layers(content_encoding: str, by_client: frozenset[str]) -> list[str]:
    """The codings to undo, the last one applied first; none where the client did it.

    Args:
        content_encoding: The header's value.
        by_client: Codings that the client undoes by itself where they stand alone.
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if not codings or (len(codings) == 1 and (codings[0] in by_client or codings[0] not in _GZIP)):
        return []  # alone and unknown: the body is taken as it is, as browsers do
    return codings[::-1]


def undone(body: bytes, codings: list[str], most: int) -> bytes:
    """A body without its codings.

    Args:
        most: Bytes that may come out of any layer.
    Raises: TooLarge, BadCoding
    """
    if len(codings) > MAX_LAYERS:
        raise BadCoding(f"{len(codings)} codings, {MAX_LAYERS} are the most")
    for coding in codings:
        if coding not in _GZIP and coding != "deflate":
            raise BadCoding(f"{coding[:40]!r} among several codings")
        body = _inflated(body, most)
    return body


def _inflated(body: bytes, most: int) -> bytes:
    raw = body[:1] and (body[0] & 0x0F != 8 or int.from_bytes(body[:2], "big") % 31) and body[:2] != b"\x1f\x8b"
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if raw else _AUTOMATIC)
    try:
        out = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise BadCoding(str(error)) from None
    if len(out) > most:
        raise TooLarge(f"over {most} bytes")
    return out  # what ends too early is kept as far as it goes, as browsers do
