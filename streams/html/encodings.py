"""WHATWG's encodings of several bytes, on top of Python's codecs, which decode in C but not quite the same.

What a codec does not know, or breaks off at, an error handler answers; what it maps otherwise is replaced in its text.
Compared with encoding_rs (Firefox) over all sequences of two bytes, and over random ones.
"""

import codecs
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

_REPLACED = "\ufffd"
_ASCII = 0x80

_BIG5_RUNS = (
    "877a㡵𡵓𣚞𦀡㻬 87a1𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦 "
    "87bf珄𥶹瓆鿇垳䤯呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿 87dd拁灮鿋 8e69箸 8e6f簆 8e7e糎 "
    "8eab緒 8eb4縝 8ecd者 8ed0耨 8f57菁 8f69蒨 8f6e萏 8fcb覦覩 8ffe起 906d都 907a銹 90dc靜 90f1響 91bf鼖 "
    "9244蔃 92af兙兛兝兞 92c8鍮 92d1瑹 9447浧 94ca禛 95d9邗 9644靝 96ed瀞 96fc嬨 9b76爁 9b78矗 9b7b纇 "
    "9bc6駖 9bde釔 9bec惞 9bf6澶 9c42輶 9c53侻 9c62營 9c68鄄 9c6b鷰 9c77菏 9cbc尐秣 9cd0婧 9d57輋 9d5a筑 "
    "9dc4拐 9ea9恢 9eef痹 9efd汊 9f60鬮 9f66鼗 9fcb僭 9fd8弌 a063蠏 a077拎 a0d5瑨 a0df煢 a0e4牐 "
    "a3c0␀␁␂␃␄␅␆␇␈␉␊␋␌␍␎␏␐␑␒␓␔␕␖␗␘␙␚␛␜␝ a3de␞␟␡€ c6cf廴 c6d3无 c6d5癶 "
    "c6d7隶 c6de〃仝 fa5f倩 fa66偽 fabd包 fac5卄 fad5卿 fb48嘅 fbb8婷 fbf3幵 fbf9廐 fc4f彘 fc6c悤 fcb9撐 "
    "fce2晴 fcf1杞 fdb7沜渝 fdbb港 fdf1煮 fe52猪 fe6f瑜 feaa瓩 fedd砉 "
)
"""HKSCS characters beyond Python's table: where a run begins, then its characters."""


def _big5_missing() -> dict[bytes, str]:
    return {
        (int(run[:4], 16) + index).to_bytes(2, "big"): char
        for run in _BIG5_RUNS.split()
        for index, char in enumerate(run[4:])
    }


_NO_CHARS: dict[str, str] = {}
_NO_BYTES: dict[bytes, str] = {}


class _Kind(NamedTuple):
    """What differs in one encoding.

    Attributes:
        codec: Python's.
        leads: Bytes that begin a sequence of two or more.
        known: The character of a sequence that the codec refuses, or None.
        replaced: Characters of the codec, and what they are instead.
        token: Matches one sequence, where `by_bytes` is asked.
        by_bytes: Sequences whose character the codec gives to others too, with what they are.
    """

    codec: str
    leads: frozenset[int]
    known: Callable[[bytes], str | None]
    replaced: dict[str, str] = _NO_CHARS
    token: re.Pattern[bytes] | None = None
    by_bytes: dict[bytes, str] = _NO_BYTES


def text_in(body: bytes, encoding: str) -> str | None:
    """The text of bytes in one of these encodings (WHATWG's name, lower case); None for another encoding."""
    if encoding == "iso-2022-jp":
        return _iso_2022_jp(body)
    kind = _kind(encoding)
    if kind is None:
        return None
    text = codecs.decode(body, kind.codec, f"crawlog-{encoding}")
    for theirs, ours in kind.replaced.items():
        if theirs in text:
            text = text.replace(theirs, ours)
    if kind.token is not None and any(body.find(sequence) >= 0 for sequence in kind.by_bytes):
        return _token_by_token(body, encoding, kind)
    return text


def _token_by_token(body: bytes, encoding: str, kind: _Kind) -> str:
    """The slow way, for a text that may hold what cannot be told apart afterwards."""
    assert kind.token is not None
    errors = f"crawlog-{encoding}"

    @cache
    def char(sequence: bytes) -> str:
        text = kind.by_bytes.get(sequence)
        if text is None:
            text = codecs.decode(sequence, kind.codec, errors)
            for theirs, ours in kind.replaced.items():
                text = text.replace(theirs, ours)
        return text

    return "".join(map(char, kind.token.findall(body)))


@cache
def _kind(encoding: str) -> _Kind | None:
    make = _KINDS.get(encoding)
    if make is None:
        return None
    kind = make()
    codecs.register_error(f"crawlog-{encoding}", _handler(kind))
    return kind


def _handler(kind: _Kind) -> Callable[[UnicodeError], tuple[str, int]]:
    """Answers where the codec stops: a character it does not know, or U+FFFD for as many bytes as WHATWG takes."""

    def answer(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        body, at = error.object, error.start
        pair = body[at : at + 2]
        char = kind.known(pair)
        if char is not None:
            return char, at + (2 if pair[0] in kind.leads else 1)
        return _REPLACED, at + _mistake(kind, body[at : at + 4])

    return answer


def _mistake(kind: _Kind, found: bytes) -> int:
    """How many bytes, of up to four, one mistake takes: a second byte that is ASCII is read again by itself."""
    if found[0] not in kind.leads or len(found) == 1:
        return 1
    if kind.codec == "gb18030" and _FOUR.fullmatch(found):
        return len(found)
    if found[1] < _ASCII:
        return 1
    if kind.codec == "euc_jp" and found[0] == 0x8F and 0xA1 <= found[1] <= 0xFE and found[2:3] >= b"\x80":
        return 3
    return 2


def _nothing(_sequence: bytes) -> str | None:
    return None


def _euro(sequence: bytes) -> str | None:
    return "\u20ac" if sequence[0] == 0x80 else None


def _jis_row(sequence: bytes) -> str | None:
    """A character of JIS X 0208 as vendors extended it: two bytes over 0xA0."""
    if len(sequence) < 2 or not (0xA1 <= sequence[0] <= 0xFE and 0xA1 <= sequence[1] <= 0xFE):
        return None
    return _jis0208(sequence[0] - 0xA1, sequence[1] - 0xA1)


@cache
def _jis0208(row: int, cell: int) -> str | None:
    """A character by its row and cell, both from 0: Shift_JIS has the same table, folded."""
    lead = row >> 1
    trail = cell + 94 * (row & 1)
    shifted = bytes([lead + (0x81 if lead < 0x1F else 0xC1), trail + (0x40 if trail < 0x3F else 0x41)])
    try:
        return shifted.decode("cp932")
    except UnicodeDecodeError:
        return None


def _iso_2022_jp(body: bytes) -> str:
    """Text in pieces between escape sequences; each switches to another set (WHATWG Encoding 12.2.1)."""
    out: list[str] = []
    decode = _JIS_SETS[b"(B"]
    at, just_switched = 0, False
    for escape in _ESCAPE.finditer(body):
        if escape.start() > at:
            out.append(decode(body[at : escape.start()]))
            just_switched = False
        if not escape[1] or just_switched:
            out.append(_REPLACED)
        just_switched = bool(escape[1])
        decode = _JIS_SETS[escape[1]] if escape[1] else decode
        at = escape.end()
    out.append(decode(body[at:]))
    return "".join(out)


def _one_byte(chars: str) -> Callable[[bytes], str]:
    """Decodes with a table of the first 128 bytes."""
    table = chars + _REPLACED * (256 - len(chars))
    return lambda piece: codecs.charmap_decode(piece, "replace", table)[0]


def _two_bytes(piece: bytes) -> str:
    out: list[str] = []
    at = 0
    while at < len(piece):
        lead, trail = piece[at], piece[at + 1 : at + 2]
        is_lead = 0x21 <= lead <= 0x7E
        char = _jis0208(lead - 0x21, trail[0] - 0x21) if is_lead and trail and 0x21 <= trail[0] <= 0x7E else None
        out.append(char or _REPLACED)
        at += 2 if is_lead else 1
    return "".join(out)


_ESCAPE = re.compile(rb"\x1b(\([BJI]|\$[@B])?")
_LATIN = "".join(map(chr, range(_ASCII))).replace("\x0e", _REPLACED).replace("\x0f", _REPLACED)
_JIS_SETS: dict[bytes, Callable[[bytes], str]] = {
    b"(B": _one_byte(_LATIN),
    b"(J": _one_byte(_LATIN.replace("\\", "\xa5").replace("~", "\u203e")),
    b"(I": _one_byte(_REPLACED * 0x21 + "".join(map(chr, range(0xFF61, 0xFFA0)))),
    b"$@": _two_bytes,
    b"$B": _two_bytes,
}


def _between(first: int, last: int) -> frozenset[int]:
    return frozenset(range(first, last + 1))


_GB_REPLACED = dict(
    zip(
        "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
        "\u3000\ufe10\ufe12\ufe11\ufe13\ufe14\ufe15\ufe16\ufe17\ufe18\ufe19\u9fb4\u9fb5\u9fb6\u9fb7\u9fb8\u9fb9\u9fba\u9fbb",
        strict=True,
    )
)
_FOUR = re.compile(rb"[\x81-\xfe][0-9](?:[\x81-\xfe][0-9]|[\x81-\xfe]?\Z)")
"""A sequence of four, or what the end left of it."""

_GB_TOKEN = re.compile(
    rb"[\x81-\xfe][0-9](?:[\x81-\xfe][0-9]|[\x81-\xfe]?\Z)|[\x81-\xfe][\x40-\x7e\x80-\xff]|.", re.DOTALL
)
_EUC_TOKEN = re.compile(rb"\x8f[\xa1-\xfe][\x80-\xff]|[\x8e\x8f\xa1-\xfe][\x80-\xff]|.", re.DOTALL)
_BIG5_TOKEN = re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xff]|.", re.DOTALL)


def _gb() -> _Kind:
    # GB 18030-2005, which the codec knows, swapped two characters that WHATWG keeps where they were.
    swapped = {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7"}
    return _Kind("gb18030", _between(0x81, 0xFE), _euro, _GB_REPLACED, _GB_TOKEN, swapped)


def _big5() -> _Kind:
    replaced = dict(
        zip(
            "\u2022\uff64\u203e\u223c\u2641\u2609\xa5\xa2\xa3",
            "\u2027\ufe51\xaf\uff5e\u2295\u2299\uffe5\uffe0\uffe1",
            strict=True,
        )
    )
    twice = {b"\xa2\x41": "\u2215", b"\xa2\x42": "\ufe68"}
    return _Kind("big5hkscs", _between(0x81, 0xFE), _big5_missing().get, replaced, _BIG5_TOKEN, twice)


def _euc_jp() -> _Kind:
    replaced = dict(zip("\u301c\u2016\u2212\xa2\xa3\xac", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2", strict=True))
    tilde = {b"\x8f\xa2\xb7": "\uff5e"}
    return _Kind("euc_jp", _between(0xA1, 0xFE) | {0x8E, 0x8F}, _jis_row, replaced, _EUC_TOKEN, tilde)


def _shift_jis() -> _Kind:
    replaced = dict.fromkeys("\uf8f0\uf8f1\uf8f2\uf8f3", _REPLACED)
    return _Kind("cp932", _between(0x81, 0x9F) | _between(0xE0, 0xFC), _nothing, replaced)


def _euc_kr() -> _Kind:
    return _Kind("cp949", _between(0x81, 0xFE), _nothing)


_KINDS = {
    "gbk": _gb,
    "gb18030": _gb,
    "big5": _big5,
    "euc-jp": _euc_jp,
    "shift_jis": _shift_jis,
    "euc-kr": _euc_kr,
}
