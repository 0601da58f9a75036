"""Heads and chunks that no standard knows, as Chromium reads them, written as the standard has them.

Mender: head of an answer ─► plain_head ─► the parser, as it is
                                 └► not plain ─► mended ─► the parser, and the connection ends with its answer
        chunks ─► LooseChunks, where the first size ends in LF ─► the parser, likewise

A mended answer is never followed by another one on its connection, so two readings of its length split nothing. Two
lengths that differ, and a length beside chunks, stay as they are: the parser refuses them.
"""

import re

MOST_HEAD_BYTES = 256 * 1024  # Longest head; Chromium's limit

MOST_LINES = 500  # Lines of a head that is mended; the parser takes 128 headers

MOST_LINE_BYTES = 16 * 1024  # Longest line of a loose chunk's size, and of all trailers together

UNCODED = (b"", b"identity")  # Values of Transfer-Encoding that mean nothing

NO_CHUNK = b"?"  # Refused by the parser in place of a chunk's size

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_FIELDS = rb"(?:(?!(?i:content-length|transfer-encoding):)" + _TOKEN + rb":[^\r]*+\r\n)*+"
_FRAMING = rb"(?i:content-length:[ \t]*+[0-9]++|transfer-encoding:[ \t]*+chunked)[ \t]*+\r\n"
_PLAIN = re.compile(
    rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [^\r]*+)?+\r\n" + _FIELDS + rb"(?:" + _FRAMING + _FIELDS + rb")?+\r\n"
)  # classes of one byte, which are fast
_BEGIN = re.compile(rb"(?s:.{0,4}?)(?=http[/ ][0-9])", re.IGNORECASE)
_DECIDES_BYTES = 10  # four that may stand before the status line, and `HTTP/1`
_END = re.compile(rb"\n\r?\n")
_VERSION = re.compile(rb"http/([0-9])[^.]*\.([0-9])", re.IGNORECASE)
_STATUS = re.compile(rb" *([0-9]*)[ \t]*(.*)", re.DOTALL)
_NAME = re.compile(_TOKEN)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15}) *(?:;.*)?", re.DOTALL)


def plain_head(data: bytes) -> int:
    """Where a head ends that needs no mending; 0 if it is not whole, or not plain."""
    found = _PLAIN.match(data)
    end = found.end() if found else 0
    return end if data.count(b"\n", 0, end) == data.count(b"\r", 0, end) else 0


def head_end(data: bytes | bytearray, known: int = 0) -> int:
    """Where any head ends; 0 if it is not whole, -1 if no head begins here.

    Args:
        known: Bytes that were looked at before.
    """
    found = _END.search(data, max(known - 2, _DECIDES_BYTES // 2))
    if _BEGIN.match(data) is None and (found or len(data) >= _DECIDES_BYTES):
        return -1
    return found.end() if found else 0


def mended(head: bytes) -> bytes:
    """A head as Chromium reads it; one that it does not read, or whose length is in doubt, as it came.

    A line that is no header is dropped, with the lines that continue it. A bare CR ends a line. A blank before a colon
    is dropped. Equal lengths count once, and one that is no number is none.
    """
    begin = _BEGIN.match(head)
    status, *lines = filter(None, re.split(rb"[\r\n]+", head[begin.end() :] if begin else head))
    first = _status_line(status)
    if first is None or b"\0" in head or len(lines) > MOST_LINES:
        return head
    fields: list[tuple[bytes, bytes]] = []
    is_continued = False
    for line in lines:
        if line[:1] in b" \t":
            if is_continued:
                name, value = fields[-1]
                fields[-1] = name, value + b" " + line.strip(b" \t")
            continue
        name, colon, value = line.partition(b":")
        is_continued = bool(name and colon)
        if is_continued:
            fields.append((name.rstrip(b" \t"), value.strip(b" \t")))
    fields = _with_one_length([(name, value) for name, value in fields if _NAME.fullmatch(name)])
    return b"\r\n".join([first, *(b"%b: %b" % field for field in fields), b"\r\n"])


def _status_line(line: bytes) -> bytes | None:
    """None for a status of other than three digits. Without any it is 200."""
    version = _VERSION.match(line)
    number = b"1.1" if version is not None and version.groups() >= (b"1", b"1") else b"1.0"
    status = _STATUS.match(line.partition(b" ")[2])
    code, reason = status.groups() if status is not None else (b"", b"")
    code = code or b"200"
    return b"HTTP/%b %b %b" % (number, code, reason) if len(code) == 3 and code[:1] != b"0" else None


def _with_one_length(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without the framing that means nothing; all lengths where they differ."""

    def is_named(field: tuple[bytes, bytes], name: bytes) -> bool:
        return field[0].lower() == name

    fields = [one for one in fields if not is_named(one, b"transfer-encoding") or one[1].lower() not in UNCODED]
    values = [one[1] for one in fields if is_named(one, b"content-length")]
    lengths = {length.strip(b" \t") for value in values for length in value.split(b",")}
    if len(lengths) != 1:
        return fields
    [length] = lengths
    others = [one for one in fields if not is_named(one, b"content-length")]
    return [*others, (b"Content-Length", length)] if length.isdigit() else others


def begins_loosely(data: bytes) -> bool | None:
    """Whether the first chunk's size ends in LF alone; None while its line is not whole."""
    end = data.find(b"\n")
    return None if end < 0 and len(data) <= MOST_LINE_BYTES else end == 0 or data[end - 1 : end] != b"\r"


class LooseChunks:
    """Chunks whose lines end in LF or CR LF, made into those of the standard; trailers are dropped."""

    def __init__(self) -> None:
        self._line = b""
        self._left = 0  # of the chunk that comes
        self._is_after = False  # the chunk's own end of line comes
        self._trailer_bytes = -1  # below zero until the last chunk

    def take(self, data: bytes) -> bytes:
        """The next bytes from the server; what follows the end comes out as it is."""
        data, at = self._line + data, 0
        made: list[bytes] = []
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                made.append(b"%x\r\n%b\r\n" % (len(part), part))
                at, self._left = at + len(part), self._left - len(part)
                self._is_after = not self._left
                continue
            end = data.find(b"\n", at)
            if end < 0:
                break
            line, at = data[at:end].removesuffix(b"\r"), end + 1
            if self._trailer_bytes >= 0:
                self._trailer_bytes += len(line) + 1
                if not line:
                    return b"".join([*made, b"0\r\n\r\n", data[at:]])
            elif not self._take_line(line):
                return b"".join([*made, NO_CHUNK])
        self._line = data[at:]
        is_too_long = max(len(self._line), self._trailer_bytes) > MOST_LINE_BYTES
        return b"".join([*made, NO_CHUNK] if is_too_long else made)

    def _take_line(self, line: bytes) -> bool:
        """Whether this line may stand here: the end of a chunk, or a size."""
        if self._is_after:
            self._is_after = False
            return not line
        size = _SIZE.fullmatch(line)
        if size is None:
            return False
        self._left = int(size[1], 16)
        if not self._left:
            self._trailer_bytes = 0
        return True


class Mender:
    """What the parser of one connection gets: each head whole, and chunks, mended where they must be.

    Attributes:
        held: Bytes of a head, or of the first chunk's size, that is not whole.
        has_mended: Whether the connection must end with this answer.
    """

    def __init__(self) -> None:
        self.held = bytearray()
        self.has_mended = False
        self._awaits_chunks = False
        self._chunks: LooseChunks | None = None

    def head(self, data: bytes) -> tuple[bytes, bytes]:
        """The head that these bytes complete, and the rest; nothing while it is not whole."""
        if not self.held and (end := plain_head(data)):
            return data[:end], data[end:]
        known = len(self.held)
        self.held += data
        end = head_end(self.held, known)
        if not end:
            return b"", b""
        whole, self.held = bytes(self.held), bytearray()
        if end < 0:
            return whole, b""  # the parser has the words for it
        head = whole[:end]
        if plain_head(head) != end:
            head, self.has_mended = mended(head), True
        return head, whole[end:]

    def begin(self, *, has_chunks: bool) -> None:
        """An answer's body comes."""
        self._awaits_chunks, self._chunks = has_chunks, None

    def body(self, data: bytes) -> bytes:
        """The next bytes of the body; none while the size of its first chunk is not whole."""
        if self._awaits_chunks and data:
            data = bytes(self.held) + data if self.held else data
            is_loose = begins_loosely(data)
            if is_loose is None:
                self.held = bytearray(data)
                return b""
            self._awaits_chunks, self.held = False, bytearray()
            if is_loose:
                self._chunks, self.has_mended = LooseChunks(), True
        return self._chunks.take(data) if self._chunks is not None else data
