"""Headers, cookies and methods that cannot be sent are refused where the request is made, in spiders of both kinds."""

from contextlib import nullcontext
from typing import Any

import pytest
import scrapy

from crawlog import Request
from tests.support.adapting import SITE, asking, given_by, page_of, runner_of

REFUSED = [
    ("Transfer-Encoding", "chunked"),
    ("Upgrade", "h2c"),
    ("Expect", "100-continue"),
    ("Proxy-Something", "1"),
    ("X-A", "1\r\nHost: inside.test"),
    ("X-A", "1\nX-B: 2"),
    ("X-A\r\nX-B", "1"),
    ("X A", "1"),
]


class Asks(scrapy.Spider):
    """Gives one request with the parts that the test wants."""

    name = "asks"
    given: Any = None

    def parse(self, response: Any) -> Any:  # noqa: ARG002  # Scrapy's own signature
        """One request."""
        yield scrapy.Request(f"{SITE}/next", self.parse, **self.given)


def asked(monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    """What a page gives whose callback asks so."""
    monkeypatch.setattr(Asks, "given", given)
    return given_by(runner_of(Asks), page_of(asking(), "<p>"))


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_header_that_cannot_be_sent_is_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value is not repeated: it may be a secret."""
    told = asked(monkeypatch, headers={name: value})
    assert "is refused" in told.error
    assert "inside.test" not in told.error
    with pytest.raises(ValueError, match="cannot be se"):
        Request(f"{SITE}/", headers={name: value})


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Connection"])
def test_a_spider_of_our_own_gives_no_framing_header(name: str) -> None:
    """Scrapy's users copy some of them from browsers: theirs are left out."""
    with pytest.raises(ValueError, match="is set by crawlog"):
        Request(f"{SITE}/", headers={name: "1"})


@pytest.mark.parametrize(
    ("value", "sent", "lost"),
    [
        ("hidden\r\n", "hidden\r\n", ""),
        ("hidden;y", "hidden", "the value of 'sid' ends before its `;`"),
        ("hid\nden", "", "'sid' is left out: it has a line end or a control character"),
    ],
)
def test_a_cookie_that_cannot_be_sent_is_told_by_its_name(
    value: str, sent: str, lost: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scrapy's spiders send what Scrapy sends, with a warning; ours are refused. The jar takes off outer blanks."""
    [out] = asked(monkeypatch, cookies={"sid": value}).requests
    assert [cookie.value for cookie in out.request.cookies] == [sent] * bool(sent)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [f"Invalid cookie found in request <GET {SITE}/next>: {lost}"] * bool(lost)
    with pytest.raises(ValueError, match="the cookie 'sid' cannot be sent") if lost else nullcontext() as refused:
        Request(f"{SITE}/", cookies={"sid": value})
    assert "hid" not in str(refused)


@pytest.mark.parametrize("method", ["CONNECT", "GE T", "GET / HTTP/1.1\r\nX: y"])
def test_a_method_is_a_word(method: str) -> None:
    """And not one for proxies."""
    with pytest.raises(ValueError, match="the method cannot be sent"):
        Request(f"{SITE}/", method=method)


@pytest.mark.parametrize(
    ("proxy", "expected"),
    [
        ("http://proxy.test:3128", "http://ann:p%40ss@proxy.test:3128"),
        ("http://bob:word@proxy.test:3128", "http://bob:word@proxy.test:3128"),
        ("proxy.test:3128", "http://ann:p%40ss@proxy.test:3128"),
        ("//proxy.test:3128", "http://ann:p%40ss@proxy.test:3128"),
        ("", ""),
    ],
)
def test_a_proxys_login_may_stand_in_its_header(proxy: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HttpProxyMiddleware puts it there; it travels with the proxy's URL, and to the proxy alone."""
    told = asked(monkeypatch, meta={"proxy": proxy}, headers={"Proxy-Authorization": "Basic YW5uOnBAc3M="})
    (out,) = told.requests
    assert out.request.proxy == expected
    assert "Proxy-Authorization" not in dict(out.request.headers)


def test_another_login_of_a_proxy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be left out, and the proxy would answer 407."""
    told = asked(
        monkeypatch, meta={"proxy": "http://proxy.test:3128"}, headers={"Proxy-Authorization": "Bearer s3cret"}
    )
    assert "Proxy-Authorization is refused" in told.error
    assert "s3cret" not in told.error
