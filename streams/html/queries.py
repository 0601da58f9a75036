"""A link's query in the encoding of its page, as browsers send it (WHATWG URL, query state; Encoding, encoders).

A character that the encoding lacks is written as a reference by its number. So are the yen sign and the overline in
ISO-2022-JP, for which browsers change to its Roman set.
"""

from functools import lru_cache

import endec

UNICODE = frozenset({"utf-8", "utf-16le", "utf-16be", "replacement"})
"""Encodings of a page whose links' queries are in UTF-8."""

_KEPT = frozenset(range(0x21, 0x7F)).difference(b"\"#'<>")
"""Bytes that stand in a query as they are, those of ISO-2022-JP's characters too."""

_NOT_WRITTEN = (b"&#", b"\x1b(")
"""How a reference begins, and a character of the Roman set."""


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
    escaped = "".join(char if char.isascii() else _escape(char, encoding) for char in query)
    return escaped.replace("%1B(B%1B$B", "")  # ISO-2022-JP's characters side by side


@lru_cache(4096)
def _escape(char: str, encoding: str) -> str:
    is_surrogate = "\ud800" <= char <= "\udfff"
    written = b"" if is_surrogate else endec.encode(char, encoding, "xmlcharrefreplace")
    if is_surrogate or written.startswith(_NOT_WRITTEN):
        return f"%26%23{ord(char)}%3B"
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in written)
