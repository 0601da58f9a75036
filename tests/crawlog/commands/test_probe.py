"""`crawlog probe`: a line in, a line out."""

import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.commands.probe import KINDS, answer, run


def asked(kind: str, **question: Any) -> dict[str, Any]:
    """The answer to a question; bytes are sent as base64."""
    coded = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in question.items()
    }
    told: dict[str, Any] = json.loads(answer(kind, json.dumps(coded).encode()))
    return told


@pytest.mark.parametrize(
    ("kind", "question", "told"),
    [
        ("normalize", {"url": "HTTP://EX.com/a b#c"}, {"url": "http://ex.com/a%20b"}),
        ("normalize", {"url": "?x", "base": "http://a/b"}, {"url": "http://a/b?x"}),
        ("normalize", {"url": "http://a/?utm_source=1", "base": None}, {"url": "http://a/?utm_source=1"}),
        ("normalize", {"url": "http://a/\ud800"}, {"url": "http://a/%EF%BF%BD"}),
        ("domain", {"host": "www.example.co.uk"}, {"domain": "example.co.uk"}),
        ("egress", {"url": "http://0x7f.1:8080/"}, {"allowed": False, "reason": "private address 127.0.0.1"}),
        ("egress", {"url": "https://example.com/"}, {"allowed": True, "reason": None}),
        ("egress", {"url": "https://example.com:25/"}, {"allowed": True, "reason": None}),
        ("egress", {"address": "10.0.0.1", "url": None}, {"allowed": False, "reason": "private address 10.0.0.1"}),
        ("decode", {"body": b"\xe9", "content_type": "a; charset=latin1"}, {"encoding": "windows-1252", "text": "é"}),
        ("links", {"body": b"<a href=x rel=nofollow><a href=#f><a href=?utm_a=1>", "url": "http://a/"},
         {"links": ["http://a/x", "http://a/", "http://a/?utm_a=1"]}),
        ("links", {"body": b"<a href=//u:p@b./x><a href=y>", "url": "http://u@a./"},
         {"links": ["http://u:p@b./x", "http://u@a./y"]}),
        ("normalize", {"url": "http://u:p@a./"}, {"url": "http://u:p@a./"}),
        ("robots", {"body": b"User-agent: *\nDisallow: /p\nCrawl-delay: 2", "user_agent": "FooBot/2.1", "url": "http://a/p"},
         {"allowed": False, "crawl_delay": 2.0}),
        ("sitemap", {"body": b"<url><loc>/a</loc><lastmod>2020</lastmod></url><url><loc>/b</loc></url>", "url": "http://a/"},
         {"urls": [{"loc": "http://a/a", "lastmod": "2020"}, {"loc": "http://a/b"}], "sitemaps": []}),
        ("sitemap", {"body": b"<sitemap><loc>/s.xml</loc></sitemap>", "url": "http://a/", "content_type": None},
         {"urls": [], "sitemaps": ["http://a/s.xml"]}),
        ("robots", {"body": "User-agent: *\nDisallow: /é b".encode(), "user_agent": "x", "url": "/é b"},
         {"allowed": False, "crawl_delay": None}),
        ("robots", {"body": b"User-agent: *\nDisallow: /x", "user_agent": "x", "url": "ftp://a/x"},
         {"allowed": False, "crawl_delay": None}),
        ("robots", {"body": b"", "user_agent": "x", "url": "http://a/p"}, {"allowed": True, "crawl_delay": None}),
    ],
)  # fmt: skip
def test_each_kind_answers(kind: str, question: dict[str, Any], told: dict[str, Any]) -> None:
    """Exactly the fields that are promised."""
    assert asked(kind, **question) == told


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("normalize", b"{"),
        ("normalize", b"[]"),
        ("normalize", b"{}"),
        ("normalize", b'{"url": 1}'),
        ("normalize", b'{"url": "x"}'),
        ("robots", b'{"body": "!", "user_agent": "a", "url": "b"}'),
        ("sitemap", b"{}"),
        ("domain", b"\xff"),
    ],
)
def test_a_bad_line_answers_itself(kind: str, line: bytes) -> None:
    """And says what is wrong with it."""
    assert list(json.loads(answer(kind, line))) == ["error"]


TEXTS = st.none() | st.text() | st.text("\u0085\u2028\u2029\ud800")
"""With what ends a line, and with half a character."""


@given(
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(st.sampled_from(["url", "base", "body", "host", "address", "content_type", "user_agent"]), TEXTS),
)
def test_no_question_makes_it_raise(kind: str, question: dict[str, str | None]) -> None:
    """Every line gets one JSON object without a line end of any kind."""
    told = answer(kind, json.dumps(question).encode())
    assert len(told.decode().splitlines()) == 1
    assert isinstance(json.loads(told), dict)


def test_each_line_has_an_answer_in_order() -> None:
    """An empty line too: whoever counts lines finds the answer to each question."""
    out = io.BytesIO()
    assert run("domain", io.BytesIO(b'{"host":"a.b.com"}\n\nx\n{"host":"c.org"}'), out) == 0
    first, second, third, fourth = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first, fourth) == ({"domain": "b.com"}, {"domain": "c.org"})
    assert second == {"error": "the line is empty; a question is a JSON object"}
    assert list(third) == ["error"]


def test_an_unknown_kind_is_a_usage_error() -> None:
    """With the kinds that there are."""
    out = io.BytesIO()
    assert run("nonsense", io.BytesIO(), out) == 2
    assert "normalize" in json.loads(out.getvalue())["error"]


def test_a_page_that_would_keep_the_parser_for_ever_is_an_error_of_its_line() -> None:
    """The next line is answered."""
    told = asked("links", body=b"<div>x</p>" * 100_000, url="http://a/")
    assert told["error"].startswith("too_complex")
    assert asked("links", body=b"<a href=x>", url="http://a/") == {"links": ["http://a/x"]}
