"""Which encoding a page is in: byte order mark, header, `meta`, XML declaration, then its bytes (WHATWG HTML 13.2.3).

Names are WHATWG's, in lower case. The bytes decide last: valid UTF-8 is UTF-8, chardetng guesses the rest. The text of
a page is decoded as browsers do it, by Firefox's encoding_rs.
"""

import codecs
import re
from functools import lru_cache

import endec
import webencodings
from chardetng_py import EncodingDetector

PRESCAN_BYTES = 1024  # How far a `meta` is looked for byte by byte (WHATWG HTML, "prescan a byte stream")

LATE_BYTES = 64 * 1024  # How far a later `meta` is looked for: browsers change the encoding when the parser meets one

DETECT_BYTES = 64 * 1024  # How much is shown to the detector: it costs 0.5 ms per 30 kB

# A longer label is none, and would stay in a cache: the longest that means an encoding has 19 characters.
LABEL_CHARS = 32

FALLBACK = "windows-1252"

# Labels of encodings that attacks hide in: WHATWG decodes them to one U+FFFD.
_REPLACEMENT = frozenset({"replacement", "csiso2022kr", "hz-gb-2312", "iso-2022-cn", "iso-2022-cn-ext", "iso-2022-kr"})

_SPACE = b"\t\n\x0c\r "
# One of a header's parameters; a quoted value may hold what ends others, and its end may be missing.
_PARAMETER = re.compile(r"""[;,]?\s*([^;=]*)(?:=\s*(?:"((?:[^"\\]|\\.?)*)(?:"[^;]*)?|([^;]*)))?""", re.DOTALL)
_LOOSE_CHARSET = re.compile(r"(?<![\w-])charset\s*=\s*([^\s;,]+)", re.IGNORECASE)
# One of a tag's attributes; a quoted value without its end goes on to the end of the page.
_ATTRIBUTE = re.compile(
    rb"""[\t\n\x0c\r /]*(=?[^\t\n\x0c\r />=]*)[\t\n\x0c\r ]*"""
    rb"""(?:=[\t\n\x0c\r ]*("[^"]*"?|'[^']*'?|[^\t\n\x0c\r >]*))?"""
)
# A comment, an element that holds text, or a `meta`, in lower case.
_LATE = re.compile(rb"<(?:(!--)|(script|style|textarea|title|xmp|noframes)(?=[\t\n\x0c\r />])|meta(?=[\t\n\x0c\r /]))")
_META = re.compile(rb"<meta[\t\n\x0c\r /]", re.IGNORECASE)
_NAMED = re.compile(rb"</?[a-z]", re.IGNORECASE)
_XML_DECLARED = re.compile(
    rb"""<\?xml(?:(?!encoding)[^>])*+encoding[\x00-\x20]*=[\x00-\x20]*(["'])([^\x00-\x20>]*?)\1[^>]*>"""
)
_UTF_16 = ("utf-16be", "utf-16le")
_CONTENT_CHARSET = re.compile(
    rb"""charset[\t\n\x0c\r ]*=[\t\n\x0c\r ]*(?:(["'])([^"']*)\1|(?!["'])([^\t\n\x0c\r ;]*)|)""", re.IGNORECASE
)


def decide(body: bytes, content_type: str) -> str:
    """The encoding of a page.

    Args:
        content_type: The response's header, as sent; may be empty.
    """
    return (
        _from_mark(body)
        or _from_header(content_type)
        or _from_meta(body[:PRESCAN_BYTES])
        or _from_late_meta(body)
        or _from_declaration(body[:PRESCAN_BYTES])
        or _from_bytes(body)
    )


def decode(body: bytes, content_type: str) -> tuple[str, str]:
    """The encoding of a page and its text, without byte order mark; wrong bytes are U+FFFD."""
    encoding = decide(body, content_type)
    return encoding, text_in(body, encoding)


def text_in(body: bytes, encoding: str) -> str:
    """The text of bytes in an encoding that `decide` named, without byte order mark; wrong bytes are U+FFFD."""
    if encoding == "utf-8":  # Python's own decoder is twice as fast
        return body.decode("utf-8", "replace").removeprefix("\ufeff")
    return endec.decode(body, encoding, "replace", bom="strip")


def of_form(accept_charset: str, encoding: str) -> str:
    """The encoding in which a form is sent (WHATWG HTML 4.10.22.5).

    Args:
        accept_charset: The form's attribute: labels, of which browsers take the first known one.
        encoding: Of its page.
    """
    labels = accept_charset.replace(",", " ").split()
    return next(filter(None, map(_named, labels)), "utf-8") if accept_charset else encoding


def _from_mark(body: bytes) -> str | None:
    if body.startswith(codecs.BOM_UTF8):
        return "utf-8"
    if body.startswith(codecs.BOM_UTF16_BE):
        return "utf-16be"
    if body.startswith(codecs.BOM_UTF16_LE):
        return "utf-16le"
    return None


@lru_cache(1024)
def _known(label: str) -> str | None:
    label = webencodings.ascii_lower(label)
    if label in _REPLACEMENT:
        return "replacement"
    found = webencodings.lookup(label)
    return str(found.name) if found else None


def _named(label: str) -> str | None:
    label = label.strip("\t\n\x0c\r ")
    return _known(label) if len(label) <= LABEL_CHARS else None


def _from_header(content_type: str) -> str | None:
    if len(content_type) > PRESCAN_BYTES:
        return None
    return _header_charset(content_type)


@lru_cache(1024)
def _header_charset(content_type: str) -> str | None:
    for found in _PARAMETER.finditer(content_type):
        if found[1].strip().lower() == "charset" and (label := _value(found)):
            return _named(label.strip("'"))
    loose = _LOOSE_CHARSET.search(content_type) if '"' not in content_type else None
    return _named(loose[1].strip("'")) if loose else None


def _value(parameter: re.Match[str]) -> str:
    """What a parameter says (WHATWG MIME Sniffing 4.4)."""
    quoted = parameter[2]
    return (parameter[3] or "").rstrip() if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)


def _from_meta(head: bytes) -> str | None:
    """The encoding that a `meta` in the first bytes of a page declares (WHATWG HTML 13.2.3.2)."""
    if head.startswith((b"<\0?\0x\0", b"\0<\0?\0x")):
        return "utf-16be" if head[0] == 0 else "utf-16le"
    at = 0
    while (at := head.find(b"<", at)) >= 0:
        if head.startswith(b"<!--", at):
            at = _behind(b"-->", head, at + 2)
        elif _META.match(head, at):
            attributes, at = _attributes(head, at + 5)
            encoding = _declared(attributes)
            if encoding:
                return encoding
        elif _NAMED.match(head, at):
            at = _attributes(head, _skip_name(head, at + 1))[1]
        elif head[at + 1 : at + 2] in (b"!", b"/", b"?"):
            at = _behind(b">", head, at)
        else:
            at += 1
    return None


def _behind(mark: bytes, head: bytes, at: int) -> int:
    """Where the mark that comes next ends, else the end of it all."""
    found = head.find(mark, at)
    return found + len(mark) if found >= 0 else len(head)


def _from_declaration(head: bytes) -> str | None:
    """The encoding that a page written as XML declares in its first line (WHATWG HTML, "get an XML encoding")."""
    found = _XML_DECLARED.match(head)
    if found is None:
        return None
    encoding = _named(found[2].decode("latin-1"))
    return "utf-8" if encoding in _UTF_16 else encoding


def _from_late_meta(body: bytes) -> str | None:
    """The encoding that a `meta` behind the prescan declares, comments and texts left out."""
    head = body[:LATE_BYTES]
    lowered = head.lower()
    if len(head) <= PRESCAN_BYTES or b"charset" not in lowered:
        return None
    at = 0
    while found := _LATE.search(lowered, at):
        at = found.end()
        if found[1]:
            at = _behind(b"-->", lowered, at)
        elif found[2]:
            at = _behind(b"</" + found[2], lowered, at)
        else:
            attributes, at = _attributes(head, at)
            if encoding := _declared(attributes):
                return encoding
    return None


def _skip_name(head: bytes, at: int) -> int:
    while at < len(head) and head[at] not in b"\t\n\x0c\r >":
        at += 1
    return at


def _attributes(head: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """A tag's attributes, the first of each name, and where it ends."""
    attributes: dict[bytes, bytes] = {}
    while at < len(head):
        found = _ATTRIBUTE.match(head, at)
        assert found is not None
        if found.end() == at or (not found[1] and found[2] is None):
            return attributes, max(found.end(), at)
        value = found[2] or b""
        if value[:1] in (b'"', b"'"):
            value = value[1:-1]
        attributes.setdefault(found[1].lower(), value)
        at = found.end()
    return {}, at


def _declared(attributes: dict[bytes, bytes]) -> str | None:
    """The encoding in a `meta` element's attributes."""
    label = attributes.get(b"charset")
    if label is None:
        if attributes.get(b"http-equiv", b"").lower() != b"content-type":
            return None
        found = _CONTENT_CHARSET.search(attributes.get(b"content", b""))
        if found is None:
            return None
        label = found[2] or found[3] or b""
    encoding = _named(label.decode("latin-1"))
    if encoding in _UTF_16:
        return "utf-8"  # the meta was read as ASCII, so it cannot be UTF-16
    return FALLBACK if encoding == "x-user-defined" else encoding


def _from_bytes(body: bytes) -> str:
    if body.isascii() and b"\x1b" not in body:  # an escape may open ISO-2022-JP
        return FALLBACK
    try:
        body.decode()
    except UnicodeDecodeError:
        pass
    else:
        if b"\x1b" not in body:
            return "utf-8"
    detector = EncodingDetector()
    detector.feed(body[:DETECT_BYTES], last=len(body) <= DETECT_BYTES)
    return _of_codec(detector.guess(tld=None, allow_utf8=True))


def _of_codec(guess: str) -> str:
    """WHATWG's name of an encoding that the detector calls as Python does."""
    label = f"windows-{guess[2:]}" if guess.startswith(("cp8", "cp12")) else guess
    known = webencodings.lookup(label)
    return FALLBACK if known is None else str(known.name)
