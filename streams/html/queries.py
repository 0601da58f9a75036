"""A link's query in the encoding of its page, as browsers send it (WHATWG URL, query state; Encoding, encoders).

Where the encoding has no such character, its number stands there as a reference; so do yen sign and overline in
ISO-2022-JP, for which browsers change to its Roman set. Tables are our decoders' turned round, made at the first such
link; a page in UTF-8 costs nothing.
"""

import unicodedata
from functools import cache
from itertools import product

from . import charset

UNICODE = frozenset({"utf-8", "utf-16le", "utf-16be", "replacement"})
"""Encodings of a page whose links' queries are in UTF-8."""

_KEPT = frozenset(range(0x21, 0x7F)).difference(b"\"#'<>")
"""Bytes that stand in a query as they are, those of ISO-2022-JP's characters too."""

_LEADS = {"big5": range(0xA1, 0xFF), "shift_jis": (*range(0x81, 0xED), 0xEF, *range(0xFA, 0xFD))}
"""First bytes of those pairs that are written: of a character that has two, browsers write the other one."""

_LAST = frozenset("═╞╡╪十卅")
"""Characters of which Big5's second place is written."""

_LIKE = {"\uff9e": "\u309b", "\uff9f": "\u309c"}
"""Sound marks of half width, and those that are written instead."""

_GB = ("gbk", "gb18030")
_IN_GB = {"\ue5e5": None, "\ue7c7": b"\x815\xf47"}
"""Private characters of whose bytes Python's codec knows the older standard."""

_HALF_WIDTH = ("\uff61", "\uff9f")
"""Between these stand kana that only ISO-2022-JP has no bytes for."""


def in_page(href: str, encoding: str) -> str:
    """An href whose query is as the page's encoding has it; nearly every href as it is.

    Args:
        encoding: By its WHATWG name.
    """
    if encoding in UNICODE or href.isascii():
        return href
    rest, mark, fragment = href.partition("#")
    path, question, query = rest.partition("?")
    if query.isascii():
        return href
    return f"{path}{question}{_escaped(query, encoding)}{mark}{fragment}"


def _escaped(query: str, encoding: str) -> str:
    table = _table(encoding)
    escaped = "".join(char if char.isascii() else _escape(char, encoding, table) for char in query)
    return escaped.replace("%1B(B%1B$B", "")  # ISO-2022-JP's characters side by side


def _escape(char: str, encoding: str, table: dict[str, bytes]) -> str:
    if encoding == "iso-2022-jp" and _HALF_WIDTH[0] <= char <= _HALF_WIDTH[1]:
        char = _LIKE.get(char) or unicodedata.normalize("NFKC", char)
    written = table.get(char)
    if written is None and encoding in _GB and not "\ud800" <= char <= "\udfff":
        written = _IN_GB[char] if char in _IN_GB else char.encode("gb18030")
        if encoding == "gbk" and written is not None and len(written) > 2:  # of four bytes
            written = None
    if written is None:
        return f"%26%23{ord(char)}%3B"
    if encoding == "iso-2022-jp":
        written = b"\x1b$B%b\x1b(B" % bytes(byte & 0x7F for byte in written)
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in written)


@cache
def _table(encoding: str) -> dict[str, bytes]:
    """The bytes of each character beyond ASCII: those of one byte, else of two."""
    if encoding == "iso-2022-jp":
        return {char: pair for char, pair in _table("euc-jp").items() if len(pair) == 2 and pair[0] != 0x8E}
    table = {"\u20ac": b"\x80"} if encoding == "gbk" else {}
    for byte in range(0x80, 0x100):
        _put(table, bytes((byte,)), charset.text_in(bytes((byte,)), encoding))
    if len(table) > 1 and encoding != "shift_jis":  # there the kana of half width
        return table
    if encoding == "gb18030":
        table.clear()  # its euro sign of one byte is read only
    pairs = [bytes(pair) for pair in product(_LEADS.get(encoding, range(0x81, 0xFF)), range(0x30, 0xFF))]
    for pair, chars in zip(pairs, charset.text_in(b"\n".join(pairs), encoding).split("\n"), strict=True):
        if encoding == "big5" and chars in _LAST:
            table.pop(chars, None)
        _put(table, pair, chars)
    if encoding in ("euc-jp", "shift_jis"):
        table |= {"\xa5": b"\\", "\u203e": b"~", "\u2212": table["\uff0d"]}
    return table


def _put(table: dict[str, bytes], written: bytes, chars: str) -> None:
    if len(chars) == 1 and chars != "\ufffd" and not chars.isascii():
        table.setdefault(chars, written)
