"""Content codings (RFC 9110 8.4), undone as a body comes: gzip, deflate, br and zstd, also on top of each other.

aiohttp's own decoding is not used: it rejects a page with bytes after its end, accepts as empty a page that cannot be
decoded, and treats each coding differently. Here all codings are read as browsers read them. A body that ends too early
counts as far as it goes. Bytes after the end are ignored. It is an error if nothing can be decoded, or if the data are
broken. Proxies compress again, so a body may have several layers. It is decoded in small pieces, so a decompression
bomb is noticed before it takes memory or time.

    fetch, where it must look  ─► decoder: pieces of a body, while it comes
    fetch, where it need not   ─► Head: the first bytes, for sniffing; the body goes to the log as it came
    parse                      ─► decoded: the whole body, within a limit
    its size alone             ─► decoded_pieces: the same, piece by piece
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, ClassVar, Protocol, cast

import brotli
from backports import zstd
from zlib_ng import zlib_ng

MAX_LAYERS = 5  # Codings of one body; more are an attack

MAX_MEMBERS = 1000  # Members of a gzip body or frames of a zstd body: each costs time, even an empty one

PIECE_BYTES = 64 * 1024  # Decoded bytes a piece, in about 0.1 ms; br may give half as many more

# Decoded bytes a piece where the whole body is there: nearly every page is one piece, which is not copied.
WHOLE_PIECE_BYTES = 256 * 1024

FED_BYTES = 64 * 1024  # Raw bytes decoded at a time where the whole body is there: about what the network gives at once

HEAD_STEP_BYTES = 4096  # Raw bytes unpacked at a time to find the first decoded ones

HEAD_INNER_BYTES = 256 * 1024  # Decoded bytes of an inner coding after which no more is unpacked to find the first ones

_WINDOW_LOG = 23  # Of zstd: 8 MiB, the most that a body may ask for (RFC 9659)

_ERRORS = (cast("type[Exception]", zlib_ng.error), zstd.ZstdError)
GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + n, 0x2A, 0x4D, 0x18)) for n in range(16)))


class UnkeptBody(ValueError):
    """A body that is not kept.

    Attributes:
        word: The error of its page.
    """

    word: ClassVar[str]


class TooLarge(UnkeptBody):
    """The decoded body is larger than the limit."""

    word = "too_large"


class BadCoding(UnkeptBody):
    """The body is not in the coding it declares, or the coding is unknown."""

    word = "bad_encoding"


class _Layer(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decode some bytes. Raises: BadCoding."""

    def end(self) -> None:
        """The input has ended. Raises: BadCoding: nothing could be decoded."""


class Decoder:
    """Undoes the codings of one body.

    Args:
        codings: In the order in which they are undone.
        most: Limit of decoded bytes of each layer but the last, which the reader limits.
        piece_bytes: Decoded bytes a piece, about.
    """

    def __init__(self, codings: Iterable[str], most: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._layers = [_LAYERS[coding](piece_bytes) for coding in codings]
        self._most = most
        self._came = [0] * len(self._layers)

    def pieces(self, chunk: bytes, depth: int = 0) -> Iterator[bytes]:
        """Decode some bytes, piece by piece. Raises: TooLarge, BadCoding."""
        if depth == len(self._layers):
            yield chunk
            return
        for piece in self._layers[depth].pieces(chunk):
            self._came[depth] += len(piece)
            if self._came[depth] > self._most and depth < len(self._layers) - 1:
                raise TooLarge(f"over {self._most} bytes")
            yield from self.pieces(piece, depth + 1)

    def end(self) -> None:
        """The body has ended. Raises: BadCoding: there were bytes, and nothing could be decoded."""
        for layer in self._layers:
            layer.end()


@lru_cache(64)
def coding_of(content_encoding: str) -> str:
    """The codings that are undone, in lower case and in the order in which they were applied; empty for none.

    Args:
        content_encoding: The header's value; several headers joined with commas.
    Raises: BadCoding
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if not codings or (len(codings) == 1 and codings[0] not in _LAYERS):
        return ""  # one unknown coding: read as it is, as browsers do
    if len(codings) > MAX_LAYERS:
        raise BadCoding(f"{len(codings)} codings, {MAX_LAYERS} are the most")
    unknown = next((coding for coding in codings if coding not in _LAYERS), None)
    if unknown is not None:
        raise BadCoding(f"{unknown[:40]!r} among several codings")
    return ", ".join(codings)


def decoder(content_encoding: str, most: int, piece_bytes: int = PIECE_BYTES) -> Decoder | None:
    """The decoder of a body; None if it is not coded.

    Args:
        content_encoding: As `coding_of` takes it.
        most: Limit of decoded bytes of each layer.
    Raises: BadCoding
    """
    coding = coding_of(content_encoding)
    return Decoder(coding.split(", ")[::-1], most, piece_bytes) if coding else None


def decoded(body: bytes, content_encoding: str, limit: int) -> bytes:
    """A whole body.

    Args:
        content_encoding: As `coding_of` takes it.
        limit: Of decoded bytes, of each layer.
    Raises: TooLarge, BadCoding
    """
    return b"".join(decoded_pieces(body, content_encoding, limit))


def decoded_pieces(body: bytes, content_encoding: str, limit: int) -> Iterator[bytes]:
    """The pieces of a whole body, of which no more than one is in memory. Args and Raises: as `decoded`."""
    undo = decoder(content_encoding, limit, WHOLE_PIECE_BYTES)
    if undo is None:
        yield body
        return
    size = 0
    for at in range(0, len(body), FED_BYTES):
        for piece in undo.pieces(body[at : at + FED_BYTES]):
            size += len(piece)
            if size > limit:
                raise TooLarge(f"over {limit} bytes")
            yield piece
    undo.end()


class Head:
    """The first bytes of a body, unpacked as it comes.

    Args:
        coding: Of `coding_of`.
        wanted: Bytes.

    Attributes:
        unpacked: What is there so far, at most `wanted`.
        is_full: Whether no more is unpacked.
    """

    def __init__(self, coding: str, wanted: int) -> None:
        self._decoder = Decoder(coding.split(", ")[::-1] if coding else (), HEAD_INNER_BYTES, wanted)
        self._wanted = wanted
        self.unpacked = b""
        self.is_full = False

    def take(self, chunk: bytes) -> None:
        """Unpack of the next bytes as much as is wanted. Raises: BadCoding."""
        for at in range(0, len(chunk), HEAD_STEP_BYTES):
            if self.is_full:
                return
            try:
                self._take(chunk[at : at + HEAD_STEP_BYTES])
            except TooLarge:  # inside: nothing can be said of what it is
                self.is_full = True

    def _take(self, some: bytes) -> None:
        for piece in self._decoder.pieces(some):
            self.unpacked = (self.unpacked + piece)[: self._wanted]
            if len(self.unpacked) == self._wanted:
                self.is_full = True
                return

    def end(self) -> None:
        """The body has ended. Raises: BadCoding: there were bytes, and nothing could be decoded."""
        if not self.is_full:
            self._decoder.end()


class _Members:
    """A coding whose streams may follow each other.

    Args:
        head_bytes: Bytes that identify a stream.
        begin: Makes the decompressor, from the first bytes and the number of earlier streams; None if there is none.
    """

    def __init__(self, head_bytes: int, begin: Callable[[bytes, int], Any], piece_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._begin = begin
        self._piece_bytes = piece_bytes
        self._head = b""
        self._stream: Any = None
        self._members = 0
        self._has_come = False
        self._is_over = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data and not self._is_over:
            if self._stream is None:
                data = self._head + data
                self._head = data if len(data) < self._head_bytes else b""
                if self._head:
                    return
                self._stream = self._begin(data[: self._head_bytes], self._members)
                self._is_over = self._stream is None
            else:
                data = yield from self._of_member(data)

    def _of_member(self, data: bytes) -> Generator[bytes, None, bytes]:
        """Decoded pieces of a stream; returns the bytes after it."""
        stream = self._stream
        while True:
            try:
                piece = stream.decompress(data, self._piece_bytes)
            except _ERRORS as error:
                if not self._members:
                    raise BadCoding(str(error)) from None
                self._is_over = True  # it looked like a further one
                return b""
            if piece:
                self._has_come = True
                yield piece
            if stream.eof:
                self._stream = None
                self._members += 1
                if self._members > MAX_MEMBERS:
                    raise BadCoding(f"over {MAX_MEMBERS} members")
                return bytes(stream.unused_data)
            data = getattr(stream, "unconsumed_tail", b"")  # zstd keeps it
            if not data and len(piece) < self._piece_bytes:
                return b""

    def end(self) -> None:
        is_begun = self._head or self._stream is not None
        if is_begun and not self._members and not self._has_come:
            raise BadCoding("it ends before its first byte")


def _gzip(head: bytes, members: int) -> Any:
    if head == GZIP_MAGIC:
        return zlib_ng.decompressobj(16 + zlib_ng.MAX_WBITS)
    if members:
        return None
    if _is_zlib(head):
        return zlib_ng.decompressobj()
    raise BadCoding("no gzip")


def _deflate(head: bytes, members: int) -> Any:
    """Both of what servers send for it (RFC 9110 8.4.1.2), and gzip, which some do."""
    if head == GZIP_MAGIC or _is_zlib(head):
        return _gzip(head, members) if not members or head == GZIP_MAGIC else None
    return None if members else zlib_ng.decompressobj(-zlib_ng.MAX_WBITS)


def _is_zlib(head: bytes) -> bool:
    return head[0] & 0x0F == 8 and int.from_bytes(head, "big") % 31 == 0


def _zstd(head: bytes, members: int) -> Any:
    if members and head not in _ZSTD_MAGICS:
        return None
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


class _Brotli:
    """Bytes after its end are ignored, unless they come in one chunk with it: the library then reports an error."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._stream = brotli.Decompressor()
        self._is_fed = self._has_come = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        stream = self._stream
        self._is_fed = self._is_fed or bool(data)
        while not stream.is_finished():
            try:
                piece = stream.process(data, output_buffer_limit=self._piece_bytes)
            except brotli.error as error:
                raise BadCoding(str(error)) from None
            if not piece:  # the only sign that it has no more
                return
            self._has_come = True
            yield piece
            data = b""

    def end(self) -> None:
        if self._is_fed and not self._has_come and not self._stream.is_finished():
            raise BadCoding("it ends before its first byte")


_LAYERS: dict[str, Callable[[int], _Layer]] = {
    "gzip": partial(_Members, 2, _gzip),
    "x-gzip": partial(_Members, 2, _gzip),
    "deflate": partial(_Members, 2, _deflate),
    "br": _Brotli,
    "zstd": partial(_Members, 4, _zstd),
}
