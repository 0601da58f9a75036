"""The encoding of a page: who decides, and what the bytes then are."""

import base64
import json
from pathlib import Path

import pytest
import webencodings
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.html import charset
from crawlog.streams.html.charset import decide, decode

RUSSIAN = "Привет, это обычный русский текст о погоде и природе."


def test_html5libs_encodings_are_found(testdata: Path) -> None:
    """At least 98 % of the cases that need no script."""
    cases = json.loads((testdata / "html-encoding-html5lib" / "encoding_cases.json").read_text(encoding="utf-8"))
    asked = [case for case in cases if not case["scripted"]]
    wrong = []
    for case in asked:
        wanted = webencodings.lookup(case["encoding"])
        assert wanted is not None
        if decide(base64.b64decode(case["data_base64"]), "") != wanted.name:
            wrong.append(case["data_base64"])
    assert len(wrong) <= 0.02 * len(asked), wrong


@pytest.mark.parametrize(
    ("body", "content_type", "encoding"),
    [
        (b"\xef\xbb\xbfx", "text/html; charset=latin1", "utf-8"),
        (b"\xff\xfex\x00", "text/html; charset=utf-8", "utf-16le"),
        (b"\xfe\xff\x00x", "", "utf-16be"),
        (b'<meta charset="koi8-r">', "text/html; charset=utf-8", "utf-8"),
        (b'<meta charset="koi8-r">', "text/html; charset='windows-1251'", "windows-1251"),
        (b'<meta charset="koi8-r">', "text/html; charset=nonsense", "koi8-r"),
        (b'<meta charset="koi8-r">', "text/html", "koi8-r"),
        (b'<META http-equiv=content-type content="text/html; charset=euc-jp">', "", "euc-jp"),
        (b'<meta content="text/html; charset=euc-jp">', "", "windows-1252"),
        (b"<meta http-equiv=content-type content='charset=\"koi8-r\"'>", "", "koi8-r"),
        (b"<meta http-equiv=content-type content='charset=koi8-r\"'>", "", "windows-1252"),
        (b"<meta http-equiv=content-type content='charset=\"koi8-r; charset=latin2'>", "", "windows-1252"),
        (b'<meta = charset="koi8-r">', "", "koi8-r"),
        (b'<meta charset="koi8-r>', "", "windows-1252"),
        (b'<meta charset="koi8-r"', "", "windows-1252"),
        ("<meta charset=\u212aoi8-r>".encode(), "", "utf-8"),
        (b"", "text/html; charset=\u212aoi8-r", "windows-1252"),
        (b'<meta charset="utf-16">', "", "utf-8"),
        (b'<meta charset="x-user-defined">', "", "windows-1252"),
        (b"<!-- <meta charset=koi8-r> -->", "", "windows-1252"),
        (b'<a title="<meta charset=koi8-r>">', "", "windows-1252"),
        (b"x" * 2000 + b"<meta charset=koi8-r>", "", "koi8-r"),
        (b"<script>" + b"x" * 2000 + b"<meta charset=koi8-r></script>", "", "windows-1252"),
        (b"", "text/html; charset=ISO-8859-1", "windows-1252"),
        (b"", "text/html; charset=iso-2022-kr", "replacement"),
        (b"", 'text/html; charset="koi8-r', "koi8-r"),
        (b"", 'text/html; a="charset=koi8-r"; charset="\\latin2"; q', "iso-8859-2"),
        (b"", 'text/html; a="charset=koi8-r', "windows-1252"),
        (b"", "text/html; xcharset=koi8-r", "windows-1252"),
        (b"", "text/html; charset=; charset=koi8-r; charset=latin2", "koi8-r"),
        (b"<meta charset=latin2>", "text/html; charset=koi8-r utf-8", "iso-8859-2"),
        (b"", "charset = koi8-r", "koi8-r"),
        (b"<?xml version='1.0' encoding = \"koi8-r\"?><p>", "", "koi8-r"),
        (b'<?xml encoding="utf-16"?><p>', "", "utf-8"),
        (b'<?xml encoding="koi8-r"?><meta charset=latin2>', "", "iso-8859-2"),
        (b'<?xml encoding="koi8-r"?>' + b" " * 2000 + b"<meta charset=latin2>", "", "iso-8859-2"),
        (b' <?xml encoding="koi8-r"?>', "", "windows-1252"),
        (b'<?xml encoding="koi8-r', "", "windows-1252"),
        ("<?xml version='1.0'?><p>".encode("utf-16le"), "", "utf-16le"),
        ("<?xml version='1.0'?><p>".encode("utf-16be"), "", "utf-16be"),
        (b"plain", "", "windows-1252"),
        (RUSSIAN.encode(), "", "utf-8"),
        (RUSSIAN.encode("cp1251"), "", "windows-1251"),
        ("これは日本語の文章です。今日は天気がいいですね。".encode("shift_jis"), "", "shift_jis"),
        ("Voilà l'été, où l'on déjeune à l'ombre".encode("latin-1"), "", "windows-1252"),
    ],
)
def test_the_mark_decides_then_the_header_then_the_meta_then_the_bytes(
    body: bytes, content_type: str, encoding: str
) -> None:
    """WHATWG's order, and its names."""
    assert decide(body, content_type) == encoding


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (b"\x80\x81\x9f", "windows-1252", "€\x81Ÿ"),
        (b"\xca", "windows-1255", "\u05ba"),
        (b"\xae\xbe", "koi8-u", "ўЎ"),
        (b"\xa1", "windows-1257", "\ufffd"),
        (b"\xe3\x81<", "utf-8", "\ufffd<"),
        (b"\xef\xbb\xbfx", "", "x"),
        (b"\xff\xfex\x00", "", "x"),
        (b"anything", "hz-gb-2312", "\ufffd"),
        (b"\x82\xa0", "sjis", "あ"),
        (b"\x87\x40\xfa\x5c\xa0\x80\x82<", "shift_jis", "①纊\ufffd\x80\ufffd<"),
        (b"\xad\xa1\xfc\xee\xa1\xc1\x8f\xa2\xb7\x8e\xb1\x8f\xa1", "euc-jp", "①黑\uff5e\uff5eｱ\ufffd"),
        (b"\xa4<\xa4\x80\x8f\xff<", "euc-jp", "\ufffd<\ufffd\ufffd<"),
        (b"\x1b$B-!\x1b(J\\~\x1b(I1\x1b(Bx\x80", "iso-2022-jp", "①\xa5\u203eｱx\ufffd"),
        (b"\x1b$B\x1b(B\x1b!\x1b$B$", "iso-2022-jp", "\ufffd\ufffd!\ufffd"),
        (b"\x80\xa3\xa0\xa8\xbc\x81\x35\xf4\x37\xfe\x59", "gbk", "€\u3000ḿ\ue7c7\u9fb4"),
        (b"\x81\x30\x81\x30\x84\x32\x81\x30\x81\x30\x81", "gb18030", "\x80\ufffd\ufffd"),
        (b"\xa1\x45\xa2\x41\xa1\xfe\x87\x7a\xa3\xe1\xff\x81", "big5", "\u2027\u2215\uff0f㡵€\ufffd\ufffd"),
        (b"\xb0\xa1\x81\x41\x81\x20\xff", "euc-kr", "가갂\ufffd \ufffd"),
    ],
)
def test_bytes_are_what_whatwg_says(body: bytes, charset: str, text: str) -> None:
    """Also where Python's own tables differ."""
    assert decode(body, f"text/html; charset={charset}")[1] == text


@given(st.binary(max_size=300), st.text(max_size=30))
def test_nothing_makes_it_raise(body: bytes, content_type: str) -> None:
    """Any bytes under any header have an encoding and a text that can be written."""
    encoding, text = decode(b"<meta " + body, content_type)
    assert encoding
    text.encode()


@pytest.mark.parametrize("piece", [b"<!--", b"<script ", b"<meta ", b"<a ", b"<", b"=", b'<a b="'])
def test_a_hostile_page_is_read_in_linear_time(piece: bytes) -> None:
    """Openings that never close; the search ends at its limits."""
    assert decide(b"charset " + piece * 200_000 + b"charset", "") == "windows-1252"


def test_each_tag_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `meta` that never closes holds the ones behind it: read anew for each, 64 KiB took half a minute."""
    reads = []

    def read(head: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
        reads.append(at)
        return attributes(head, at)

    attributes = charset._attributes
    monkeypatch.setattr(charset, "_attributes", read)
    assert decide(b"charset " + b"<meta " * 990 + b"a " * 29_000, "text/html") == "windows-1252"
    assert len(reads) <= 2


def test_the_detectors_python_names_become_whatwgs() -> None:
    """Thai bytes without a label: the detector says `cp874`."""
    assert decode(b"\xd5\xe8", "")[0] == "windows-874"


def test_no_server_fills_the_memory_with_labels() -> None:
    """A page may name an encoding of 60 kB, and each page another one."""
    before = charset._known.cache_info().currsize
    for number in range(50):
        body = b'<html><meta charset="%08d%s">' % (number, b"x" * 900)
        assert charset.decide(body, f"text/html; charset=utf-8; n={number}") == "utf-8"
        assert charset.decide(body, "text/html") == charset.FALLBACK
    assert charset._known.cache_info().currsize <= before + 1
    assert charset._header_charset.cache_info().maxsize is not None
