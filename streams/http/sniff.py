"""The type of a body by its first bytes: the part of the MIME Sniffing standard that decides whether a page is kept.

A header that says HTML is believed unless the bytes are plainly something else; so is any other header. Without a
header, unrecognised bytes are taken for HTML, so that a crawl loses nothing.
"""

import re
from collections.abc import Sequence

# Bytes that are looked at; the standard's resource header is 1,445 bytes, for signatures that do not matter here.
SNIFFED_BYTES = 512

HTML, XHTML = "text/html", "application/xhtml+xml"

UNKNOWN = frozenset({"", "unknown/unknown", "application/unknown", "*/*"})  # Types that say nothing

_SPACE = b"\t\n\x0c\r "

_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
    (b"\x00\x00\x02\x00", "image/x-icon"),
    (b"BM", "image/bmp"),
    (b"%!PS-Adobe-", "application/postscript"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"Rar!\x1a\x07\x00", "application/x-rar-compressed"),
    (b"OggS\x00", "application/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
)
# First bytes of the signatures. No HTML page begins so, so nearly every body passes with one look-up.
_MAYBE_SIGNATURE = frozenset(mark[0] for mark, _ in _SIGNATURES) | {ord("R")}

# Letters that a text may begin with: they count where a byte follows that no text has.
_AMBIGUOUS = frozenset({b"BM", b"ID3"})

_FEED = re.compile(rb"<(?:!--.*?--|![^>]*|\?.*?\?)>", re.DOTALL)
_FEED_ROOTS = (
    (b"<rss", "application/rss+xml"),
    (b"<feed", "application/atom+xml"),
    (b"<rdf:RDF", "application/rdf+xml"),
)
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")


def essence(content_type: str) -> str:
    """Type and subtype of a header's value, in lower case; empty where there is none."""
    return content_type.partition(";")[0].strip().lower()


def computed(content_type: str, head: bytes) -> str:
    """The type of a body.

    Args:
        content_type: The header's value; may be empty.
        head: The body's beginning, at least `SNIFFED_BYTES` of it where it has so many.
    """
    said = essence(content_type)
    if said == HTML:
        return _signature(head) or _feed(head) or said
    if said not in UNKNOWN and "/" in said:
        return said
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
    if text.startswith(b"<?xml"):
        return _feed(head) or ("application/xhtml+xml" if b"<html" in head else "text/xml")
    return _signature(head) or _feed(head) or ("application/octet-stream" if _is_binary(head) else HTML)


def _signature(head: bytes) -> str | None:
    if head[:1] and head[0] in _MAYBE_SIGNATURE:
        for mark, kind in _SIGNATURES:
            if head.startswith(mark) and (mark not in _AMBIGUOUS or _BINARY.search(head)):
                return kind
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return "image/webp"
    return "video/mp4" if head[4:8] == b"ftyp" else None


def _feed(head: bytes) -> str | None:
    """RSS, Atom or RDF, where that is the first element (MIME Sniffing 7.1)."""
    if b"<rss" not in head and b"<feed" not in head and b"<rdf:RDF" not in head:  # nearly every page
        return None
    rest = head.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
    while (skipped := _FEED.match(rest)) is not None:
        rest = rest[skipped.end() :].lstrip(_SPACE)
    for root, kind in _FEED_ROOTS:
        if rest.startswith(root) and rest[len(root) : len(root) + 1] in (b" ", b">", b"\t", b"\n", b"\r", b""):
            return kind
    return None


def _is_binary(head: bytes) -> bool:
    """A byte that no text has, unless a byte order mark says UTF-16."""
    return not head.startswith((b"\xfe\xff", b"\xff\xfe")) and _BINARY.search(head) is not None


# The type that a response says its body has, where it says several (Fetch, "extract a MIME type").

# A part of a header between commas; a comma in quotes is none.
_VALUE = re.compile(r'(?:[^",]++|"(?:[^"\\]|\\.)*+(?:"|\\?\Z))++', re.DOTALL)

_TYPE = re.compile(r"[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]*(?:;|\Z)")
_PARAMETER = re.compile(r';([^;="]*+)(?:=("(?:[^"\\]|\\.)*+"?[^;]*+|[^;]*+))?', re.DOTALL)


def said_type(headers: Sequence[str]) -> str:
    """The value of Content-Type that counts, as sent; empty where there is none.

    Of several types that is the last one which is valid and not `*/*`, with the charset of equal types before it if it
    has none. Without such a type it is the first header.
    """
    if not headers:
        return ""
    if len(headers) == 1 and "," not in headers[0]:  # nearly every response
        return headers[0]
    value = charset = ""
    for said in (one.strip(" \t") for header in headers for one in _VALUE.findall(header)):
        if _TYPE.match(said) is None or essence(said) == "*/*":
            continue
        own = _charset(said)
        charset = own or (charset if essence(said) == essence(value) else "")
        value = said if own or not charset else f"{said};charset={charset}"
    return value or headers[0]


def _charset(value: str) -> str:
    names = (found[2] or "" for found in _PARAMETER.finditer(value) if found[1].strip().lower() == "charset")
    return next(filter(None, names), "")
