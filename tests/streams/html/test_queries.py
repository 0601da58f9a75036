"""Queries in the encoding of their page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html.extract import extracted, in_page
from crawlog.streams.spiders.response import Response

PAGE = '<a href="/п?q=Привет#ж" rel=nofollow>'.encode("cp1251")
CYRILLIC = "text/html; charset=windows-1251"


@pytest.mark.parametrize(
    ("href", "encoding", "written"),
    [
        ("/é?q=é&amp=1#é", "windows-1252", "/é?q=%E9&amp=1#é"),
        ("/é?q=a#é", "windows-1252", "/é?q=a#é"),
        ("?q=é", "utf-8", "?q=é"),
        ("?q=é", "utf-16le", "?q=é"),
        ("?q=é", "replacement", "?q=é"),
        ("?q=漢é", "windows-1251", "?q=%26%2328450%3B%26%23233%3B"),
        ("?漢字−¥ｶ", "shift_jis", "?%8A%BF%8E%9A%81|\\%B6"),
        ("?漢字−ｶﾞ", "euc-jp", "?%B4%C1%BB%FA%A1%DD%8E%B6%8E%DE"),
        ("?漢字 a字", "iso-2022-jp", "?%1B$B4A;z%1B(B a%1B$B;z%1B(B"),
        ("?ｶﾞ", "iso-2022-jp", "?%1B$B%+!+%1B(B"),
        ("?€", "gbk", "?%80"),
        ("?€", "gb18030", "?%A2%E3"),
        ("?é💩", "gb18030", "?%A8%A6%949%DA3"),
        ("?💩", "gbk", "?%26%23128169%3B"),
        ("?\ue78d\ue7c7", "gbk", "?%A6%D9%26%2359335%3B"),
        ("?\ue5e5\ue7c7", "gb18030", "?%26%2358853%3B%815%F47"),
        ("?十═漢", "big5", "?%A4Q%F9%F9%BA~"),
        ("?漢", "euc-kr", "?%F9%D3"),
    ],
)
def test_a_query_is_written_as_browsers_write_it(href: str, encoding: str, written: str) -> None:
    """Bytes of the encoding, escaped; a reference where it has none; the path and the fragment as they are."""
    assert in_page(href, encoding) == written


def test_links_of_a_page_have_its_encoding_in_their_queries() -> None:
    """Those that are marked nofollow are named alike, and a spider's `urljoin` gives the same."""
    page = extracted(PAGE, CYRILLIC, "http://a.test/", ("a",), nofollow=True)
    assert page.hrefs == ["/п?q=%CF%F0%E8%E2%E5%F2#ж"]
    assert page.nofollowed == set(page.hrefs)
    response = Response(PageMeta("http://a.test/", "j", http=200, content_type=CYRILLIC), PAGE)
    assert response.urljoin("?q=я") == "http://a.test/?q=%FF"


@given(st.text(), st.sampled_from(["windows-1252", "big5", "iso-2022-jp", "gb18030", "euc-kr", "shift_jis"]))
def test_whatever_a_query_holds_becomes_ascii(query: str, encoding: str) -> None:
    """Nothing raises."""
    query = query.replace("#", "")
    assert in_page(f"?{query}", encoding).isascii()
