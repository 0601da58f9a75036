"""What the adapter does with callbacks, errbacks, middlewares and redirects; and how it refuses what it cannot do."""

import asyncio
import math
from collections import OrderedDict, defaultdict
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import msgspec
import pytest
import scrapy
from scrapy import Request, Spider, signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import CloseSpider, DropItem, IgnoreRequest, NotSupported
from scrapy.http import FormRequest, HtmlResponse, JsonRequest, Response
from scrapy.item import Field, Item
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider
from twisted.internet.defer import Deferred, succeed

from crawlog.schemas.pages import PageMeta
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Sources, resolve
from crawlog.streams.sink.batch import plain_row
from crawlog.streams.spiders.exchange import CallResult, PageCall, RequestOut
from crawlog.streams.spiders.scrapy import ScrapyRunner, StandInCrawler, item_of, scraping, scrapy_runner
from crawlog.streams.spiders.scrapy.arrived import RAISED, response_of
from crawlog.streams.timing import Timing
from tests.support.adapting import HTML, SITE, asking, failed_page_of, given_by, page_of, runner_of, started

pytestmark = pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")

HERE = __name__


def rows(result: CallResult) -> list[str]:
    """Its items, as text."""
    return [bytes(item).decode() for item in result.items]


def error_of(kind: type[Spider], settings: dict[str, Any] | None = None, path: str = "/") -> str:
    """The error of a page of this spider."""
    return given_by(runner_of(kind, settings), page_of(asking(path=path), "<h1>x</h1>")).error


def spider(parse: Any, **attributes: Any) -> type[Spider]:
    """A spider with this callback."""
    return type("Own", (Spider,), {"name": "own", "parse": parse, "__module__": HERE} | attributes)


# Callbacks.


class Everything(Spider):
    """All forms of a callback."""

    name = "everything"

    def plain(self, response: Any) -> Any:
        """A list."""
        return [{"url": response.url}, None, Request(f"{SITE}/next")]

    def one(self, response: Any) -> Any:  # noqa: ARG002  # Scrapy's own signature
        """One item."""
        return {"one": 1}

    def generator(self, response: Any, number: int = 0) -> Any:  # noqa: ARG002  # as above
        """Several."""
        yield {"number": number}

    async def coroutine(self, response: Any) -> Any:  # noqa: ARG002  # as above
        """A list, later."""
        await asyncio.sleep(0)
        return [{"later": True}]

    async def streamed(self, response: Any) -> Any:  # noqa: ARG002  # as above
        """Several, later."""
        for number in range(2):
            await asyncio.sleep(0)
            yield {"number": number}

    def three(self, response: Any) -> Any:  # noqa: ARG002  # as above
        """Three items, then an exception."""
        yield from ({"number": number} for number in range(3))
        yield Request(f"{SITE}/before")
        raise ValueError("after three")

    def closing(self, response: Any) -> Any:  # noqa: ARG002  # as above
        """Stops the job."""
        yield {"last": 1}
        raise CloseSpider("enough")


@pytest.mark.parametrize(
    ("callback", "wanted"),
    [
        ("plain", ['{"url": "http://shop.test/"}']),
        ("one", ['{"one": 1}']),
        ("coroutine", ['{"later": true}']),
        ("streamed", ['{"number": 0}', '{"number": 1}']),
    ],
)
def test_a_callback_may_have_any_form(callback: str, wanted: list[str]) -> None:
    """A function, a generator, a coroutine, an async generator."""
    result = given_by(runner_of(Everything), page_of(asking(callback), "<p>"))
    assert (rows(result), result.error) == (wanted, "")


class OfTheClass(Spider):
    """Callbacks that need no object of the spider."""

    name = "of-the-class"

    def parse(self, response: Any) -> Any:  # noqa: ARG002  # as above
        """Asks for both."""
        yield Request(f"{SITE}/a", self.static, errback=self.static)
        yield Request(f"{SITE}/b", self.of_class)

    @staticmethod
    def static(response: Any) -> Any:
        """Of no object."""
        yield {"static": response.url}

    @classmethod
    def of_class(cls, response: Any) -> Any:  # noqa: ARG003  # as above
        """Of the class."""
        yield {"of": cls.name}


def test_a_callback_may_be_static_or_of_the_class() -> None:
    """Where `self` is not used, linters want it so."""
    runner = runner_of(OfTheClass)
    first, second = given_by(runner, page_of(asking(), "<p>")).requests
    assert rows(given_by(runner, page_of(first, "<p>"))) == ['{"static": "http://shop.test/a"}']
    assert rows(given_by(runner, page_of(second, "<p>"))) == ['{"of": "of-the-class"}']


def test_properties_of_the_spider_are_not_read_for_the_name_of_a_callback() -> None:
    """They may open a database. A callback with two underscores is looked for among all names."""

    class Private(Spider):
        name = "private"

        @property
        def __broken(self) -> Any:
            raise ValueError("no database")

        def parse(self, response: Any) -> Any:  # noqa: ARG002  # as above
            yield Request(f"{SITE}/a", self.__item)

        def __item(self, response: Any) -> Any: ...

    result = given_by(runner_of(Private), page_of(asking(), "<p>"))
    assert result.error == ""
    assert [out.request.callback for out in result.requests if out.request] == ["_Private__item"]


def test_arguments_reach_the_callback() -> None:
    """As the request carried them."""
    result = given_by(runner_of(Everything), page_of(asking("generator", kwargs={"number": 5}), "<p>"))
    assert rows(result) == ['{"number": 5}']


def test_what_came_before_an_exception_is_kept() -> None:
    """Scrapy keeps the three; the page becomes a dead letter beside them."""
    result = given_by(runner_of(Everything), page_of(asking("three"), "<p>"))
    assert len(result.items) == 3
    assert [out.url for out in result.requests] == [f"{SITE}/before"]
    assert result.error == "ValueError: after three"
    assert result.is_final
    assert "test_scraping.py" in result.trace
    assert result.stats["spider_exceptions/ValueError"] == 1


def test_an_exception_of_a_callback_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """`spider_error` of LOG_FORMATTER makes it; the traceback begins with the project's code."""
    given_by(runner_of(Everything), page_of(asking("three"), "<p>"))
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == f"Spider error processing <GET {SITE}/> (referer: None)"
    first, place, *_, last = (record.exc_text or "").splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: after three")
    assert "test_scraping.py" in place


def test_a_page_says_that_it_gives_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each thousand requests and items: not after those that are dropped, and not for ever."""
    page = page_of(asking(), "<p>")

    def told(*urls: str, count: int) -> int:
        def parse(self: Spider, response: Any) -> Any:  # as above
            for number in range(count):
                yield from (Request(f"{url}{number}") for url in urls)
                yield {"n": number}

        heard: list[None] = []
        call = msgspec.structs.replace(page, gives_more=lambda: heard.append(None))
        result = given_by(runner_of(spider(parse, allowed_domains=["shop.test"])), call)
        assert len(result.requests) + len(result.items) == count * (1 + (f"{SITE}/" in urls))
        return len(heard)

    assert told("http://other.test/", count=2500) == 2
    assert told(f"{SITE}/", count=1000) == 2
    monkeypatch.setattr(scraping, "MOST_TIMED", 1000)
    assert told(f"{SITE}/", count=1000) == 1


def test_close_spider_closes_the_job() -> None:
    """With its reason, and without an error."""
    result = given_by(runner_of(Everything), page_of(asking("closing"), "<p>"))
    assert (result.closes, result.error, len(result.items)) == ("enough", "", 1)


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("text/html", "HtmlResponse"),
        ("application/xml", "XmlResponse"),
        ("application/json", "JsonResponse"),
        ("text/plain", "TextResponse"),
        ("image/png", "Response"),
    ],
)
def test_the_response_has_scrapys_class(content_type: str, kind: str) -> None:
    """By header, name and body, as Scrapy finds it; coded bodies arrive decoded."""

    def parse(self: Any, response: Any) -> Any:  # a method
        headers = response.headers
        yield {
            "kind": type(response).__name__,
            "protocol": response.protocol,
            "address": response.ip_address,
            "cookies": len(headers.getlist("Set-Cookie")),
            "coded": "Content-Encoding" in headers or "Transfer-Encoding" in headers,
        }

    headers = (
        ("content-type", content_type),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("Content-Encoding", "gzip"),
        ("Transfer-Encoding", "chunked"),
    )
    [row] = rows(given_by(runner_of(spider(parse)), page_of(asking(), b"\x89PNG\x00\x01\x02", headers=headers)))
    assert f'"kind": "{kind}"' in row
    assert '"protocol": "HTTP/1.1", "address": null, "cookies": 2, "coded": false' in row


@pytest.mark.parametrize(
    ("method", "kind", "coding"), [("HEAD", "TextResponse", "gzip"), ("GET", "HtmlResponse", None)]
)
def test_the_answer_to_a_head_request_keeps_its_coding(method: str, kind: str, coding: str | None) -> None:
    """As in Scrapy, which has nothing to decode there, and finds its class with that header."""
    headers = (("content-type", "text/html"), ("Content-Encoding", "gzip"))
    response = response_of(PageMeta(SITE, "j", http=200, headers=headers), b"", Request(SITE, method=method))
    found = response.headers.get("Content-Encoding")
    assert (type(response).__name__, found and found.decode()) == (kind, coding)


def test_a_rendered_page_is_read_as_the_browser_wrote_it() -> None:
    """In UTF-8, whatever its server's header and its `meta` say."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield {"is_read": response.css("p::text").get() == "Привет", "encoding": response.encoding}

    body = '<meta charset="windows-1251"><p>Привет'
    headers = (("content-type", "text/html; charset=windows-1251"),)
    page = page_of(asking(), body, headers=headers, content_type="text/html; charset=utf-8", rendered="rule")
    assert rows(given_by(runner_of(spider(parse)), page)) == ['{"is_read": true, "encoding": "utf-8"}']


# Requests.


def outs(parse: Any, settings: dict[str, Any] | None = None, **attributes: Any) -> CallResult:
    """What a page gives with this callback."""
    return given_by(runner_of(spider(parse, **attributes), settings), page_of(asking(), "<p>"))


def test_keys_of_meta_say_when_a_request_is_sent() -> None:
    """They are crawlog's own. A callback that passes `meta=response.meta` on does not mean them: they do not travel."""

    def parse(self: Any, response: Any) -> Any:  # a method
        if not response.request.callback:
            yield Request(f"{SITE}/1", self.parse, meta={"crawlog_countdown": "1h", "crawlog_expires": 60, "mine": 1})
            return
        yield Request(f"{SITE}/2", self.parse, meta=response.meta)

    runner = runner_of(spider(parse))
    [first] = given_by(runner, page_of(RequestOut(f"{SITE}/"), "<p>")).requests
    assert first.timing == Timing(countdown=3600.0, lasts=60.0)
    [second] = given_by(runner, page_of(first, "<p>")).requests
    assert second.timing is None
    assert second.request is not None
    assert second.request.meta["mine"] == 1


def test_a_time_in_meta_that_is_none_is_an_error_of_the_page() -> None:
    """It names the keys."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(f"{SITE}/1", meta={"crawlog_eta": "soon"})

    assert (
        "crawlog_eta, crawlog_countdown, crawlog_expires, crawlog_age, crawlog_itag: 'soon' is no time"
        in given_by(runner_of(spider(parse)), page_of(asking(), "<p>")).error
    )


def test_a_request_comes_back_as_it_was() -> None:
    """Its class, body, headers, cookies, flags, priority, encoding, fragment, and values of every type."""

    class Part(Item):
        name = Field()

    globals()["Part"], Part.__qualname__ = Part, "Part"
    seen: list[Request] = []

    def parse(self: Any, response: Any) -> Any:  # a method
        if response.request.flags:
            seen.append(response.request)
            return
        yield FormRequest(
            f"{SITE}/form?b=2&a=1#part",
            self.parse,
            formdata={"name": "é"},
            headers={"X-Own": ["1", "2"], "User-Agent": "other"},
            cookies={"id": "7"},
            meta={"part": Part(name="x"), "pair": (1, b"\x00"), "cookiejar": 3},
            cb_kwargs={},
            flags=["mine"],
            priority=5,
            encoding="latin-1",
            errback=self.parse,
        )

    runner = runner_of(spider(parse))
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    assert out.url == f"{SITE}/form?b=2&a=1"
    assert out.priority == 5
    assert out.request is not None
    assert (out.request.jar, out.request.cookies[0].value) == ("3", "7")
    result = given_by(runner, page_of(out, "<p>"))
    assert result.error == ""
    [request] = seen
    assert type(request) is FormRequest
    assert (request.url, request.method, request.body) == (f"{SITE}/form?b=2&a=1#part", "POST", b"name=%E9")
    assert (request.flags, request.priority, request.encoding) == (["mine"], 5, "latin-1")
    assert request.meta["part"] == Part(name="x")
    assert (request.meta["pair"], request.meta["cookiejar"]) == ((1, b"\x00"), 3)
    assert request.headers.getlist("X-Own") == [b"1", b"2"]
    assert request.headers["User-Agent"] == b"other"
    assert request.headers["Accept-Language"] == b"en"
    assert request.replace(cookies=request.cookies).cookies == {"id": "7"}


@pytest.mark.parametrize(
    "cookies", [{}, {"a": "1"}, [{"name": "a", "value": "1", "path": "/"}], [{"name": "a", "value": "1"}]]
)
def test_cookies_come_back_in_the_form_in_which_they_were_given(cookies: Any) -> None:
    """Middlewares of the project, which see a request again when its page is there, change them in place."""
    seen: list[Any] = []

    def parse(self: Any, response: Any) -> Any:  # a method
        seen.append(response.request.cookies)
        yield Request(f"{SITE}/a", cookies=cookies)

    runner = runner_of(spider(parse))
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    given_by(runner, page_of(out, "<p>"))
    assert seen[1] == cookies


@pytest.mark.parametrize(
    ("path", "cookie", "sent"),
    [
        ("/shop/list?a=/b/c", {}, "/shop"),
        ("/shop/", {}, "/shop"),
        ("/shop", {}, ""),
        ("", {}, ""),
        ("/shop/list", {"path": "/"}, "/"),
    ],
)
def test_a_cookie_without_a_path_is_for_its_requests_folder(path: str, cookie: dict[str, str], sent: str) -> None:
    """As Scrapy's jar has it; the request comes back with its cookies as they were given."""
    seen: list[Any] = []
    given: Any = {"name": "a", "value": "b", "secure": True} | cookie

    def parse(self: Any, response: Any) -> Any:  # a method
        seen.append(response.request.cookies)
        yield Request(SITE + path, cookies=[given])

    runner = runner_of(spider(parse))
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    assert out.request is not None
    assert out.request.cookies[0].path == sent
    given_by(runner, page_of(out, "<p>"))
    assert seen[1] == [given]


def test_json_requests_and_their_attributes_travel() -> None:
    """A class of Scrapy with an attribute of its own."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield JsonRequest(f"{SITE}/api", data={"a": 1}, dumps_kwargs={"sort_keys": False})

    [out] = outs(parse).requests
    assert out.request is not None
    assert (out.request.kind, out.request.body) == ("scrapy.http.request.json_request:JsonRequest", b'{"a": 1}')


def test_headers_of_the_job_are_not_in_each_record() -> None:
    """They are the job's; a plain link has its referer alone."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield response.follow("/a")

    [out] = outs(parse).requests
    assert out.request is not None
    assert out.request.headers == (("Referer", f"{SITE}/"),)
    assert out.request.meta == {"depth": 1}


COPIED = {
    "Accept": "a/b",
    "Accept-Encoding": "gzip, deflate, br",
    "Connection": "keep-alive",
    "Host": "shop.test",
    "User-Agent": "copied/1",
    "Authorization": "Bearer x",
    "Cookie": "a=1",
    "Upgrade-Insecure-Requests": "1",
}
"""Headers as users copy them from a browser."""


@pytest.mark.parametrize("cookies", [False, True])
def test_headers_that_were_copied_from_a_browser_do_no_harm(cookies: bool) -> None:  # a parameter
    """The job has what a job may have, a request what only a request may; the rest is named."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(f"{SITE}/a")

    runner = runner_of(spider(parse), {"DEFAULT_REQUEST_HEADERS": COPIED, "COOKIES_ENABLED": cookies})
    settings = runner.facts.settings
    assert settings["fetch.headers"] == ["Accept: a/b", "Upgrade-Insecure-Requests: 1"]
    assert settings["fetch.user_agent"] == "copied/1"
    resolve(Sources(flags={}, spider=settings))
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    assert out.request is not None
    headers = dict(out.request.headers)
    assert headers.pop("Referer") == f"{SITE}/"
    assert headers == {"Authorization": "Bearer x"} | ({} if cookies else {"Cookie": "a=1"})
    assert any("Accept-Encoding, Connection, Host" in note for note in runner.facts.notes)


def test_the_same_page_gives_the_same_identities_in_any_order() -> None:
    """Scrapy's fingerprint; unfiltered ones by the page, and by how often it gave them."""

    def parse(self: Any, response: Any) -> Any:  # a method
        paths = ["/a", "/b?y=2&x=1", "/b?x=1&y=2", "/a"]
        for path in reversed(paths) if self.turned else paths:
            yield Request(SITE + path)
            yield Request(SITE + path, dont_filter=True)

    plain, turned = (outs(parse, turned=turned).requests for turned in (False, True))
    ids = [out.id for out in plain]
    assert len(set(ids)) == 2 + 4
    assert sorted(ids) == sorted(out.id for out in turned)


def test_a_chain_that_asks_for_itself_moves() -> None:
    """`dont_filter` on one URL: each page has another identity."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(response.url, dont_filter=True)

    runner = runner_of(spider(parse))
    [first] = given_by(runner, page_of(asking(), "<p>")).requests
    [second] = given_by(runner, page_of(first, "<p>")).requests
    assert first.id != second.id


def test_start_requests_are_not_filtered() -> None:
    """As Scrapy's `start` makes them; those of `start_requests` are as the spider makes them."""
    [result] = started(runner_of(spider(None, start_urls=[f"{SITE}/a", f"{SITE}/a"])))
    assert len({out.id for out in result.requests}) == 2
    assert all(out.request is not None and out.request.unfiltered for out in result.requests)

    def start_requests(self: Any) -> Any:  # a method
        yield Request(f"{SITE}/old")

    runner = runner_of(spider(None, start_requests=start_requests))
    results = started(runner)
    assert [out.url for result in results for out in result.requests] == [f"{SITE}/old"]
    assert [line for result in results for line in result.warnings] == []
    assert any("start_requests" in note for note in runner.facts.notes)


@pytest.mark.parametrize(
    ("base", "attribute", "callback"),
    [(Spider, "start_urls", ""), (SitemapSpider, "sitemap_urls", "_parse_sitemap")],
)
def test_start_requests_may_change_those_of_the_class_above(base: Any, attribute: str, callback: str) -> None:
    """Scrapy's classes have no such method since 2.13; what they give by `start` is the same."""

    class Own(base):  # type: ignore[misc]  # a parameter
        name = "own"

        def start_requests(self) -> Any:
            for request in super().start_requests():
                yield request.replace(meta={"kept": True})

    setattr(Own, attribute, [f"{SITE}/a", f"{SITE}/b"])
    [result] = started(runner_of(Own))
    assert result.error == ""
    assert [(out.url, out.request.callback, out.request.meta["kept"]) for out in result.requests if out.request] == [
        (f"{SITE}/a", callback, True),
        (f"{SITE}/b", callback, True),
    ]


def test_start_may_be_endless_and_slow() -> None:
    """It is given in parts; a part waits half a second for more."""

    async def start(self: Any) -> Any:  # a method
        number = 0
        while True:
            yield Request(f"{SITE}/{number}")
            number += 1
            if number % 60 == 0:
                await asyncio.sleep(3600)

    async def first_parts(runner: ScrapyRunner) -> list[int]:
        parts = []
        async for result in runner.start():
            parts.append(len(result.requests))
            if len(parts) == 2:
                break
        return parts

    assert asyncio.run(first_parts(runner_of(spider(None, start=start)))) == [50, 10]


def test_an_error_of_start_is_said_and_what_came_before_is_kept() -> None:
    """An exception after one request."""

    async def start(self: Any) -> Any:  # a method
        yield Request(f"{SITE}/1")
        raise ValueError("no more")

    results = started(runner_of(spider(None, start=start)))
    assert [out.url for result in results for out in result.requests] == [f"{SITE}/1"]
    assert (results[-1].error, results[-1].goes_on) == ("ValueError: no more", False)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (lambda own: Request("ftp://shop.test/list", errback=own.failed), "no page of a failure"),
        (lambda own: Request(f"{SITE}/ignored", errback=own.failed), "no page of a failure"),
        (lambda _: Request(f"{SITE}/invented"), "no price"),
        (lambda own: Request("ftp://shop.test/again", errback=own.failed), "1,000 requests with dont_filter"),
        (lambda _: {"n": object()}, "an item is lost"),
    ],
    ids=["cannot be sent", "ignored", "answered", "endless", "item"],
)
def test_start_goes_on_after_an_error_beside_it(output: Any, said: str) -> None:
    """Of a callback, an errback or an item: in Scrapy none of them ends it."""

    async def start(self: Any) -> Any:  # a method
        yield output(self)
        for number in range(60):
            yield Request(f"{SITE}/{number}")

    def parse(self: Any, response: Any) -> Any:
        raise ValueError("no price")

    def failed(self: Any, failure: Any) -> Any:
        if "again" in failure.request.url:
            return failure.request.replace(dont_filter=True)
        raise ValueError("no page of a failure")

    pipelines = {"ITEM_PIPELINES": {f"{HERE}.Dropping": 1}}
    results = started(runner_of(spider(parse, start=start, failed=failed), MIDDLEWARES | pipelines))
    assert sum(len(result.requests) for result in results) == 60
    assert [(said in result.error, result.goes_on) for result in results if result.error] == [(True, True)]


# Failures.


class Failing(Spider):
    """Says what its errback gets."""

    name = "failing"

    def parse(self, response: Any) -> Any:
        """A page."""
        yield {"status": response.status}

    def failed(self, failure: Any) -> Any:
        """A failure."""
        status = getattr(getattr(failure.value, "response", None), "status", None)
        yield {"type": failure.type.__name__, "status": status, "why": failure.request.cb_kwargs.get("why")}
        yield Request(f"{SITE}/other")


@pytest.mark.parametrize("error", RAISED)
def test_each_error_is_an_exception_of_scrapys(error: str) -> None:
    """Word by word."""
    out = asking(errback="failed", kwargs={"why": "asked"})
    for said in (error, f"{error}: because"):
        result = given_by(runner_of(Failing), failed_page_of(out, said))
        assert rows(result) == [f'{{"type": "{RAISED[error][0].__name__}", "status": null, "why": "asked"}}']
        assert [one.url for one in result.requests] == [f"{SITE}/other"]
    assert given_by(runner_of(Failing), failed_page_of(asking(), error)) == CallResult(
        stats=given_by(runner_of(Failing), failed_page_of(asking(), error)).stats
    )


def test_a_status_goes_to_the_errback_unless_it_is_wanted() -> None:
    """HttpError for others than 2xx; `handle_httpstatus_list` of the spider and of the request."""
    out = asking(errback="failed")
    assert rows(given_by(runner_of(Failing), page_of(out, "<p>", http=404))) == [
        '{"type": "HttpError", "status": 404, "why": null}'
    ]
    wanted = asking(errback="failed", meta={"handle_httpstatus_list": [404]})
    assert rows(given_by(runner_of(Failing), page_of(wanted, "<p>", http=404))) == ['{"status": 404}']
    allowing = runner_of(Failing, {"HTTPERROR_ALLOW_ALL": True})
    assert rows(given_by(allowing, page_of(out, "<p>", http=500))) == ['{"status": 500}']


UNSENDABLE = ("ftp://shop.test/file", "whatsapp://send?text=x", "http://", "http://exa mple.com/")


def test_a_request_that_cannot_be_sent_fails_alone() -> None:
    """Its errback gets Scrapy's error, once; the rest of the page stays."""

    def parse(self: Any, response: Any) -> Any:  # a method
        for url in UNSENDABLE:
            yield Request(url, errback=self.failed)
            yield Request(url, errback=self.failed)
        yield Request(f"{SITE}/after")
        yield {"after": 1}

    def failed(self: Any, failure: Any) -> Any:  # a method
        yield {"url": failure.request.url, "type": failure.type.__name__}

    result = outs(parse, failed=failed)
    assert (result.error, result.warnings) == ("", [])
    assert [out.url for out in result.requests] == [f"{SITE}/after"]
    told = [msgspec.json.decode(row) for row in result.items[1:]]
    assert told == [{"url": url, "type": "UnsupportedURLSchemeError"} for url in UNSENDABLE]


def test_a_request_that_cannot_be_sent_is_warned_of_where_it_has_no_errback() -> None:
    """Each kind once; `start` goes on too."""

    async def start(self: Any) -> Any:  # a method
        for url in (*UNSENDABLE, "ftp://shop.test/other"):
            yield Request(url)
        yield Request(f"{SITE}/after")

    [result] = started(runner_of(spider(None, start=start)))
    assert ([out.url for out in result.requests], result.error) == ([f"{SITE}/after"], "")
    assert [line.partition(":")[0] for line in result.warnings] == [
        "requests for ftp",
        "requests for whatsapp",
        "requests for what is no URL of a page, such as http",
    ]


def test_an_errback_that_asks_for_what_cannot_be_sent_again_comes_to_an_end() -> None:
    """Scrapy would call it for ever."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request("ftp://shop.test/", errback=self.failed)

    def failed(self: Any, failure: Any) -> Any:  # a method
        yield failure.request.replace(dont_filter=True)

    assert "1,000 requests with dont_filter" in outs(parse, failed=failed).error


# Redirects.


def redirect(runner: ScrapyRunner, status: int, **given: Any) -> CallResult:
    """What a redirect gives."""
    headers = (*HTML, ("Location", "/target"))
    return given_by(runner, page_of(asking("one", "/from", **given), "", status, headers))


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [(301, "POST", "GET"), (302, "POST", "GET"), (303, "PUT", "GET"), (307, "POST", "POST"), (308, "PUT", "PUT")],
)
def test_a_redirect_takes_everything_along(status: int, method: str, then: str) -> None:
    """By Scrapy's own middleware; the target of a redirected POST is sent although it may be known."""
    result = redirect(runner_of(Everything), status, method=method, body=b"x", kwargs={"a": 1}, meta={"mine": 2})
    [out] = result.requests
    record = out.request
    assert record is not None
    assert (out.url, out.hops, record.method, record.callback) == (f"{SITE}/target", 1, then, "one")
    assert (record.kwargs, record.meta["mine"], record.body) == ({"a": 1}, 2, b"" if then == "GET" else b"x")
    assert record.meta["redirect_urls"] == [f"{SITE}/from"]
    assert record.unfiltered
    runner = runner_of(Everything)
    request = runner._recorder.restored(out.url, record)
    assert not request.dont_filter


@pytest.mark.parametrize("error", ["bad_encoding", "too_large", "bad_body"])
def test_a_redirect_whose_body_cannot_be_read_is_followed(error: str) -> None:
    """Its target does not depend on the body."""
    page = page_of(asking("one", "/from"), "", 302, (*HTML, ("Location", "/target")), error=error)
    assert [out.url for out in given_by(runner_of(Everything), page).requests] == [f"{SITE}/target"]


def test_a_redirect_of_a_get_is_filtered_as_in_scrapy() -> None:
    """Its identity is that of the target."""
    [out] = redirect(runner_of(Everything), 302).requests
    assert out.request is not None
    assert not out.request.unfiltered


def test_a_redirect_may_go_to_the_callback() -> None:
    """With `dont_redirect`, without redirects at all."""
    meta = {"dont_redirect": True, "handle_httpstatus_list": [302]}
    assert rows(redirect(runner_of(Everything), 302, meta=meta)) == ['{"one": 1}']
    off = runner_of(Everything, {"REDIRECT_ENABLED": False, "HTTPERROR_ALLOW_ALL": True})
    assert rows(redirect(off, 302)) == ['{"one": 1}']


def test_a_meta_refresh_is_followed() -> None:
    """As Scrapy does it."""
    page = page_of(asking(path="/from"), '<meta http-equiv="refresh" content="1; url=/there">')
    [out] = given_by(runner_of(Everything), page).requests
    assert (out.url, out.hops) == (f"{SITE}/there", 1)


# Middlewares.


class Signing:
    """Signs requests, ignores some, replaces some, answers some."""

    def process_request(self, request: Request) -> Any:
        """By path."""
        request.headers["X-Signed"] = "yes"
        if "ignored" in request.url:
            raise IgnoreRequest("as agreed")
        if "moved" in request.url:
            return request.replace(url=f"{SITE}/elsewhere")
        if "wrapped" in request.url:
            return request.replace(url=f"{SITE}/api?page={request.url[-1]}", dont_filter=True)
        if "looping" in request.url:
            return request.replace(dont_filter=True)
        if "invented" in request.url:
            return HtmlResponse(request.url, body=b"<h1>invented</h1>", request=request)
        return None


class Looking:
    """Sees answers and failures, asks again."""

    def process_response(self, request: Request, response: Response) -> Any:
        """418 is asked for elsewhere."""
        return request.replace(url=f"{SITE}/coffee") if response.status == 418 else response

    def process_exception(self, request: Request, exception: Exception) -> Any:  # noqa: ARG002  # Scrapy's signature
        """A failure becomes a page."""
        return HtmlResponse(request.url, body=b"<p>from nowhere", request=request) if "dead" in request.url else None


MIDDLEWARES = {"DOWNLOADER_MIDDLEWARES": {f"{HERE}.Signing": 543, f"{HERE}.Looking": 544}}


def asks(*paths: str) -> Any:
    """A callback that asks for paths, and shows pages."""

    def parse(self: Any, response: Any) -> Any:
        if response.url == f"{SITE}/":
            yield from (Request(SITE + path, errback=self.failed) for path in paths)
        else:
            yield {"text": response.text}

    return parse


def failed(self: Any, failure: Any) -> Any:  # a method
    """An errback."""
    yield {"failed": failure.type.__name__}


def test_process_request_runs_when_a_request_leaves() -> None:
    """It changes, drops and replaces requests; what it answers itself goes to the callback at once."""
    result = outs(asks("/a", "/ignored", "/moved", "/invented", "/invented"), MIDDLEWARES, failed=failed)
    assert result.error == ""
    assert [out.url for out in result.requests] == [f"{SITE}/a", f"{SITE}/elsewhere"]
    assert all(("X-Signed", "yes") in out.request.headers for out in result.requests if out.request)
    assert rows(result) == ['{"failed": "IgnoreRequest"}', '{"text": "<h1>invented</h1>"}']
    assert any("answers requests by itself" in line for line in result.warnings)


def test_a_request_is_filtered_as_it_was_made_whatever_takes_its_place() -> None:
    """Middlewares of scraping services set `dont_filter`: Scrapy's filter has seen the first request already."""
    first, second = (runner_of(spider(asks("/wrapped/1", "/wrapped/2"), failed=failed), MIDDLEWARES) for _ in range(2))
    one, two = given_by(first, page_of(asking(), "<p>")).requests
    assert one.request is not None
    assert (one.url, one.request.unfiltered) == (f"{SITE}/api?page=1", False)
    assert one.id != two.id
    again, _ = given_by(second, page_of(msgspec.structs.replace(asking(), id=8), "<p>")).requests
    assert again.id == one.id
    known, _ = given_by(first, page_of(msgspec.structs.replace(asking(), id=8), "<p>")).requests
    assert (known.id, known.is_known) == (one.id, True)


def test_a_request_that_took_a_place_comes_back_with_its_dont_filter() -> None:
    """A redirect of it is sent without the filter, too."""
    seen: list[Request] = []

    def parse(self: Any, response: Any) -> Any:  # a method
        seen.append(response.request)
        yield Request(f"{SITE}/wrapped/1")

    runner = runner_of(spider(parse), MIDDLEWARES)
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    given_by(runner, page_of(out, "<p>"))
    assert seen[1].dont_filter is True


def test_a_request_that_a_middleware_refuses_goes_to_its_errback_once() -> None:
    """Each page that links to it called it. That of the first one gives it again when it is parsed again."""
    runner = runner_of(spider(asks("/ignored", "/ignored"), failed=failed), MIDDLEWARES)
    first, other = (page_of(msgspec.structs.replace(asking(), id=number), "<p>") for number in (7, 8))
    told = ['{"failed": "IgnoreRequest"}']
    assert [rows(given_by(runner, page)) for page in (first, other, first)] == [told, [], told]


def test_a_request_without_a_filter_goes_to_its_errback_each_time() -> None:
    """As with Scrapy."""

    def parse(self: Any, response: Any) -> Any:  # a method
        for _ in range(2):
            yield Request(f"{SITE}/ignored", errback=self.failed, dont_filter=True)

    assert len(outs(parse, MIDDLEWARES, failed=failed).items) == 2
    unfiltered = {"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"}
    assert len(outs(asks("/ignored", "/ignored"), MIDDLEWARES | unfiltered, failed=failed).items) == 2


def test_an_answer_without_the_filter_leaves_a_request_with_it_to_be_made() -> None:
    """A middleware may answer the first URLs, which have no filter in Scrapy, by a stand-in: it never saw those."""

    def parse(self: Any, response: Any) -> Any:  # a method
        if "first" not in response.meta:
            yield Request(f"{SITE}/invented", dont_filter=True, meta={"first": True})
        elif response.meta["first"]:
            yield Request(f"{SITE}/invented", meta={"first": False})
        else:
            yield {"text": response.text}

    assert rows(outs(parse, MIDDLEWARES)) == ['{"text": "<h1>invented</h1>"}']


def chain(self: Any, response: Any) -> Any:  # a method
    """A callback of invented pages, each of which leads to the next one."""
    number = int(response.url.rpartition("/")[2] or 0)
    yield {"n": number}
    if number < self.last:
        yield Request(f"{SITE}/invented/{number + 1}")
    elif self.closes:
        raise CloseSpider("enough")


def chained(last: int, *, closes: bool = False, **attributes: Any) -> ScrapyRunner:
    """A spider of such pages."""
    return runner_of(spider(chain, last=last, closes=closes, **attributes), MIDDLEWARES)


def test_a_page_may_lead_to_many_that_middlewares_answer() -> None:
    """All pages of a project whose middleware drives a browser are such: a chain of them, or many from one page."""
    result = given_by(chained(1500), page_of(asking(), "<p>"))
    assert (len(result.items), result.error) == (1501, "")

    seen: list[str] = []

    def parse(self: Any, response: Any) -> Any:  # a method that gives nothing, but may write files
        seen.append(response.url)
        return [] if "invented" in response.url else [Request(f"{SITE}/invented/{n}") for n in range(1500)]

    assert (outs(parse, MIDDLEWARES).error, len(seen)) == ("", 1501)


def test_what_follows_from_one_page_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its answer can hold; that is kept."""
    monkeypatch.setattr(scrapy_runner, "MOST_TIMED", 10)
    result = given_by(chained(50), page_of(asking(), "<p>"))
    assert len(result.items) == 11
    assert "10 items and requests came of requests of a page" in result.error


def test_what_follows_from_start_comes_in_parts() -> None:
    """Without a limit; a CloseSpider ends it."""
    start_urls = [f"{SITE}/invented/{n}" for n in (1, 1001)]
    parts = started(chained(130, start_urls=start_urls[:1]))
    assert [len(part.items) for part in parts] == [50, 50, 30]
    [closed] = started(chained(130, closes=True, start_urls=start_urls[::-1]))
    assert (closed.closes, len(closed.items)) == ("enough", 1)


def test_requests_that_are_replaced_without_end_are_refused() -> None:
    """A middleware that always returns a request."""
    assert "one after the other" in outs(asks("/looping"), MIDDLEWARES, failed=failed).error


def test_process_response_and_process_exception_run_when_the_page_arrives() -> None:
    """A request that they return is sent, a response goes to the callback."""
    runner = runner_of(spider(asks()), MIDDLEWARES)
    [out] = given_by(runner, page_of(asking(path="/tea"), "", http=418)).requests
    assert out.url == f"{SITE}/coffee"
    assert rows(given_by(runner, failed_page_of(asking(path="/dead"), "dns"))) == ['{"text": "<p>from nowhere"}']


class OwnRetry(RetryMiddleware):
    """Of the project, in place of Scrapy's."""


def test_a_subclassed_retry_middleware_sees_every_answer() -> None:
    """Crawlog tries once; the subclass asks again, after a failure too, as often as it says."""
    settings = {
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
            f"{HERE}.OwnRetry": 550,
        },
        "RETRY_TIMES": 1,
    }
    runner = runner_of(spider(asks()), settings)
    assert runner.facts.settings["fetch.attempts"] == 1
    for first in (page_of(asking(path="/x"), "", http=503), failed_page_of(asking(path="/x"), "connect")):
        [again] = given_by(runner, first).requests
        assert again.request is not None
        assert (again.request.meta["retry_times"], again.request.unfiltered) == (1, True)
        assert given_by(runner, page_of(again, "", http=503)).requests == []


def test_attempts_of_crawlog_are_scrapys_retries() -> None:
    """The callback reads them, and `get_retry_request` goes on counting."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield {"retries": response.meta.get("retry_times", 0)}

    assert rows(given_by(runner_of(spider(parse)), page_of(asking(), "<p>", attempt=3))) == ['{"retries": 2}']


def test_spider_middlewares_run_around_callbacks() -> None:
    """Depth and URL length are limited, other sites left out, the referer set: by Scrapy's own classes."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(f"{SITE}/near")
        yield Request("http://other.test/far")
        yield Request("http://other.test/allowed", meta={"allow_offsite": True})
        yield Request(f"{SITE}/{'x' * 3000}")

    result = outs(parse, allowed_domains=["shop.test"])
    assert [out.url for out in result.requests] == [f"{SITE}/near", "http://other.test/allowed"]
    assert result.stats["offsite/filtered"] == 1
    deep = given_by(runner_of(spider(parse), {"DEPTH_LIMIT": 2}), page_of(asking(meta={"depth": 2}), "<p>"))
    assert deep.requests == []


# Items, stats, signals.


def test_rows_are_made_as_scrapy_exports_them() -> None:
    """Serializers of fields, dates, sets; the fields of FEED_EXPORT_FIELDS in their order."""

    class Priced(Item):
        price = Field(serializer=lambda value: f"{value:.2f}")
        name = Field()
        secret = Field()

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Priced(price=1, name="x", secret="s")

    assert rows(outs(parse)) == ['{"price": "1.00", "name": "x", "secret": "s"}']
    assert rows(outs(parse, {"FEED_EXPORT_FIELDS": {"name": "title"}})) == ['{"title": "x"}']


def test_numbers_and_characters_that_json_does_not_have_do_no_harm() -> None:
    """Null and question marks, as in the rows of crawlog's own spiders; the other items stay."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield {"price": math.nan, "prices": [1.5, math.inf, {"least": -math.inf}], "text": "NaN é😀\ud800"}
        yield {"price": 1.0}

    result = msgspec.json.decode(msgspec.json.encode(outs(parse)), type=CallResult)
    assert rows(result) == [
        r'{"price": null, "prices": [1.5, null, {"least": null}], "text": "NaN \u00e9\ud83d\ude00?"}',
        '{"price": 1.0}',
    ]


def one_bad_item(self: Any, response: Any) -> Any:  # a method
    """Of several outputs."""
    yield {"n": 1}
    yield {"n": object()}
    yield {"n": 2}
    yield Request(f"{SITE}/after")


def test_an_item_without_a_row_is_lost_alone() -> None:
    """As in Scrapy: an error is logged, and the page goes on; here it is a warning and is counted, too."""

    class Broken(Item):
        n = Field(serializer=lambda value: value["gone"])

    def parse(self: Any, response: Any) -> Any:  # a method
        yield from ("text", 7, {"body": b"x"}, Broken(n={}))
        yield from one_bad_item(self, response)

    result = outs(parse)
    assert (rows(result), result.error) == (['{"n": 1}', '{"n": 2}'], "")
    assert [out.url for out in result.requests] == [f"{SITE}/after"]
    assert result.stats["item_error_count"] == 5
    assert [line.split(": ")[1:3] for line in result.warnings] == [
        ["str", "TypeError"],
        ["int", "TypeError"],
        ["dict", "TypeError"],
        ["Broken", "KeyError"],
        ["dict", "TypeError"],
    ]


def test_an_item_that_cannot_reach_its_pipelines_is_a_dead_letter_beside_the_others() -> None:
    """Scrapy's pipelines would have got it."""
    result = outs(one_bad_item, {"ITEM_PIPELINES": {f"{HERE}.Dropping": 1}})
    assert (len(result.items), len(result.requests), result.is_final) == (2, 1, True)
    assert "an item is lost: dict" in result.error
    assert "spider_exceptions/count" not in result.stats


class Tagged(Item):
    """An item with a class."""

    name = Field()


class Dropping:
    """A pipeline."""

    def process_item(self, item: Any) -> Any:
        """Drops."""
        raise DropItem(f"dropped {item}")


def test_items_are_raw_where_there_are_pipelines() -> None:
    """With their class, for the pipelines' process."""
    listed = defaultdict(list, {"name": ["x"]})

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Tagged(name="x")
        yield {"name": b"\x00"}
        yield OrderedDict(name=listed)

    runner = runner_of(spider(parse), {"ITEM_PIPELINES": {f"{HERE}.Dropping": 1}})
    result = given_by(runner, page_of(asking(), "<p>"))
    assert result.is_raw
    assert runner.facts.has_pipelines
    items = [item_of(bytes(raw), runner.kinds) for raw in result.items]
    assert items == [Tagged(name="x"), {"name": b"\x00"}, {"name": listed}]
    assert (type(items[2]), type(items[2]["name"])) == (OrderedDict, defaultdict)
    assert [plain_row(bytes(raw)) for raw in result.items[2:]] == [b'{"name":{"name":["x"]}}']


def test_stats_are_differences() -> None:
    """What one page changed, so that they can be added up over workers."""

    def parse(self: Any, response: Any) -> Any:  # a method
        self.crawler.stats.inc_value("mine", 2)
        self.crawler.stats.set_value("level", self.crawler.stats.get_value("level", 0) + 3)

    runner = runner_of(spider(parse))
    for _ in range(2):
        stats = given_by(runner, page_of(asking(), "<p>")).stats
        assert (stats["mine"], stats["level"], stats["downloader/response_count"]) == (2, 3, 1)


def test_greatest_and_least_values_are_those_of_the_page() -> None:
    """Marked, so that the greatest one of all workers is found; `request_depth_max` of Scrapy is one."""

    def parse(self: Any, response: Any) -> Any:  # a method
        for size in response.meta["sizes"]:
            self.crawler.stats.max_value("size/max", size)
            self.crawler.stats.min_value("size/min", size)
        self.crawler.stats.max_value("last", response.url)
        yield Request(f"{SITE}/a")

    runner = runner_of(spider(parse))
    for sizes, most, least in (([5, 9, 7], 9, 5), ([3], 3, 3)):
        stats = given_by(runner, page_of(asking(meta={"sizes": sizes}), "<p>")).stats
        assert (stats["<max>size/max"], stats["<min>size/min"], stats["<max>request_depth_max"]) == (most, least, 1)
        assert "<max>last" not in stats
    assert runner.crawler.stats.get_value("size/max") == 9


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Decimal("19.90"), 19.9),
        (Fraction(1, 4), 0.25),
        (2**70, 2.0**70),
        (True, None),
        pytest.param(10**400, None, id="10**400"),
        (math.inf, None),
        (math.nan, None),
    ],
)
def test_stats_of_any_kind_of_number_leave_the_page_whole(value: Any, told: float | None) -> None:
    """They come to another process as JSON; what no float can be stays in this one."""

    def parse(self: Any, response: Any) -> Any:  # a method
        for method in ("set_value", "max_value", "min_value"):
            getattr(self.crawler.stats, method)(method, value)
        self.crawler.stats.set_value("set_value", 0.5)
        self.crawler.stats.inc_value("true", True)  # as spiders count what holds
        yield {"a": 1}

    result = given_by(runner_of(spider(parse)), page_of(asking(), "<p>"))
    came = msgspec.json.decode(msgspec.json.encode(result), type=CallResult)
    assert rows(came) == ['{"a": 1}']
    assert (came.stats.get("<max>max_value"), came.stats.get("<min>min_value")) == (told, told)
    assert came.stats["true"] == 1


def test_a_callback_reads_what_scrapy_counts_of_the_crawl() -> None:
    """The start and the responses of its process, as CoreStats keeps them; a project may turn that off."""

    def parse(self: Any, response: Any) -> Any:  # a method
        read = self.crawler.stats.get_value
        yield {"began": str(read("start_time"))[-6:], "responses": read("response_received_count")}

    result = given_by(runner_of(spider(parse)), page_of(asking(), "<p>"))
    assert rows(result) == ['{"began": "+00:00", "responses": 1}']
    assert result.stats["item_scraped_count"] == 1
    off = {"EXTENSIONS": {"scrapy.extensions.corestats.CoreStats": None}}
    assert rows(given_by(runner_of(spider(parse), off), page_of(asking(), "<p>"))) == [
        '{"began": "None", "responses": null}'
    ]


def test_lines_of_the_log_are_counted_by_level() -> None:
    """By Scrapy's extension, in each process; a project may turn it off."""

    def parse(self: Any, response: Any) -> Any:  # a method
        self.logger.warning("careful")
        yield {}
        raise ValueError

    stats = given_by(runner_of(spider(parse)), page_of(asking(), "<p>")).stats
    assert (stats["log_count/WARNING"], stats["log_count/ERROR"]) == (1, 1)
    off = {"EXTENSIONS": {"scrapy.extensions.logcount.LogCount": None}}
    stats = given_by(runner_of(spider(parse), off), page_of(asking(), "<p>")).stats
    assert not any(name.startswith("log_count/") for name in stats)


class Listening:
    """An extension of the project."""

    heard: list[str] = []  # noqa: RUF012  # of all

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        """Connects."""
        self = cls()
        for name in ("spider_opened", "response_received", "request_scheduled", "item_scraped", "spider_idle"):
            crawler.signals.connect(getattr(self, name), getattr(signals, name))
        return self

    def spider_opened(self, spider: Any) -> None:  # noqa: ARG002  # Scrapy's own signature
        """Once."""
        self.heard.append("opened")

    def response_received(self, response: Any) -> None:
        """A page."""
        self.heard.append(f"received {response.status}")

    def request_scheduled(self, request: Any) -> None:
        """A request."""
        self.heard.append(f"scheduled {request.url}")

    def item_scraped(self, item: Any) -> None:
        """An item."""
        self.heard.append(f"scraped {item}")

    def spider_idle(self) -> None:
        """Never."""


def test_signals_reach_the_projects_extensions() -> None:
    """Those that are never sent are named at the start."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(f"{SITE}/a")

    Listening.heard.clear()
    runner = runner_of(spider(parse), {"EXTENSIONS": {f"{HERE}.Listening": 1}})
    given_by(runner, page_of(asking(), "<p>"))
    assert Listening.heard == ["opened", "received 200", f"scheduled {SITE}/a"]
    assert any("the job goes on until it is stopped" in note for note in runner.facts.notes)


class Judging:
    """An extension that is told of two signals."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        """Connects to what the test wants."""
        self = cls()
        for name in crawler.settings.getlist("HEARD"):
            crawler.signals.connect(self.heard, getattr(signals, name))
        return self

    def heard(self) -> None:
        """Whatever it is."""


@pytest.mark.parametrize(
    ("heard", "is_named"),
    [
        (["spider_error", "spider_closed"], True),
        (["request_scheduled", "spider_closed"], True),
        (["item_error", "spider_closed"], False),
        (["spider_error", "spider_opened"], False),
    ],
)
def test_an_extension_that_hears_of_pages_and_of_the_end_is_named(heard: list[str], is_named: bool) -> None:
    """Two processes hear of them; items and the end come to the same one."""
    notes = runner_of(Everything, {"EXTENSIONS": {f"{HERE}.Judging": 1}, "HEARD": heard}).facts.notes
    assert any(note.startswith(f"Judging hears {heard[0]} beside the spider") for note in notes) == is_named


def test_a_handler_of_item_scraped_may_wait() -> None:
    """It was never run: its coroutine was dropped."""

    class Waiting(Spider):
        name = "waiting"

        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            self = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(self.scraped, signals.item_scraped)
            return self

        async def scraped(self, item: Any, response: Any) -> None:
            await asyncio.sleep(0)
            self.crawler.stats.set_value("scraped", f"{item} {response.status}")

        def parse(self, response: Any) -> Any:  # noqa: ARG002  # Scrapy's own signature
            yield {"a": 1}

    runner = runner_of(Waiting)
    assert len(given_by(runner, page_of(asking(), "<p>")).items) == 1
    assert runner.crawler.stats.get_value("scraped") == "{'a': 1} 200"


def test_what_counts_on_one_process_is_warned_of_once() -> None:
    """An object in several requests, an attribute that a callback changes."""

    def parse(self: Any, response: Any) -> Any:  # a method
        self.count = getattr(self, "count", 0) + 1
        item = {"n": [1]}
        yield Request(f"{SITE}/{self.count}", meta={"item": item})
        yield Request(f"{SITE}/{self.count}/2", meta={"item": item})

    runner = runner_of(spider(parse))
    said = given_by(runner, page_of(asking(), "<p>")).warnings
    assert "Own: the dict meta['item'] is in several requests" in said[0]
    assert any("a callback changes self.count" in line for line in said)
    assert given_by(runner, page_of(asking(), "<p>")).warnings == []


class Opening(Spider):
    """Sets an attribute when it is opened, as a project's extension does, too."""

    name = "opening"

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        """Waits for the signal."""
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.opened, signals.spider_opened)
        return self

    def opened(self) -> None:
        """Reads a list."""
        self.sections = ["books"]

    def parse(self, response: Any) -> Any:  # noqa: ARG002  # Scrapy's own signature
        """Gives the list."""
        yield {"sections": self.sections}


def test_what_is_set_when_the_spider_is_opened_is_not_warned_of() -> None:
    """Every process sets it, before the first callback."""
    assert given_by(runner_of(Opening), page_of(asking(), "<p>")).warnings == []


def test_a_spider_has_a_state_of_its_process() -> None:
    """Scrapy's extension gives it one; with JOBDIR, the start says that it is not kept. An argument stays."""

    def parse(self: Any, response: Any) -> Any:  # a method
        self.state["pages"] = self.state.get("pages", 0) + 1
        yield {"pages": self.state["pages"]}

    runner = runner_of(spider(parse), {"JOBDIR": "jobs/own"})
    results = [given_by(runner, page_of(asking(), "<p>")) for _ in range(2)]
    assert [rows(result) for result in results] == [['{"pages": 1}'], ['{"pages": 2}']]
    assert ["a callback changes self.state" in line for line in results[0].warnings] == [True]
    assert any("`self.state` is a dict of each process" in note for note in runner.facts.notes)
    assert vars(runner_of(spider(parse), args={"state": "CA"}).spider)["state"] == "CA"


def test_an_argument_of_any_name_reaches_the_spider() -> None:
    """In its `**kwargs`, as `qs:` and the name of a parameter of its URLs."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield {}

    args = {"qs:year": "2020", "1st": "x"}
    assert args.items() <= vars(runner_of(spider(parse), args=args).spider).items()


class Older:
    """A spider middleware for Scrapy before 2.13."""

    def process_start_requests(self, start_requests: Any, spider: Any) -> Any:  # noqa: ARG002  # Scrapy's signature
        """Never called."""
        return start_requests


def test_a_method_that_scrapy_does_not_call_any_more_is_named() -> None:
    """At the start; and a depth that is no number harms nobody."""
    notes = runner_of(Everything, {"SPIDER_MIDDLEWARES": {f"{HERE}.Older": 1}}).facts.notes
    assert any("Older.process_start_requests is called by no Scrapy since 2.13" in note for note in notes)

    async def start(self: Any) -> Any:  # a method
        yield Request(f"{SITE}/", meta={"depth": "deep"})

    assert started(runner_of(spider(None, start=start)))[0].requests[0].depth == 0


# What cannot work is refused by name, with the way out.


def helper(response: Any) -> None:
    """A function that is no method."""


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (lambda _: None, "its callback is a lambda"),
        (partial(helper), "its callback is functools.partial"),
        (helper, "its callback is <function helper"),
        (Everything(name="other").plain, "its callback is <bound method Everything.plain"),
        (scrapy.http.request.NO_CALLBACK, "NO_CALLBACK"),
    ],
)
def test_a_callback_is_a_method_of_the_spider(callback: Any, said: str) -> None:
    """Anything else cannot be named in the log."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield {"before": 1}
        yield Request(f"{SITE}/a", callback)
        yield {"after": 1}

    result = outs(parse)
    assert said in result.error
    assert len(result.items) == 1


def returns_deferred(self: Any, response: Any) -> Deferred[Any]:  # a method
    """A Deferred."""
    return succeed([{"a": 1}])


def uses_engine(self: Any, response: Any) -> Any:  # a method
    """The engine."""
    self.crawler.engine.close_spider(self, "enough")


def stops_crawler(self: Any, response: Any) -> Any:  # a method
    """The crawler."""
    self.crawler.stop()


def carries_response(self: Any, response: Any) -> Any:  # a method
    """A page in meta."""
    yield Request(f"{SITE}/a", meta={"page": response})


def carries_selector(self: Any, response: Any) -> Any:  # a method
    """A selector in cb_kwargs."""
    yield Request(f"{SITE}/a", cb_kwargs={"row": response.css("p")[0]})


def carries_much(self: Any, response: Any) -> Any:  # a method
    """More than a request may have."""
    yield Request(f"{SITE}/a", meta={"text": "x" * 70_000})


def sends_host(self: Any, response: Any) -> Any:  # a method
    """A header that is the client's."""
    yield Request(f"{SITE}/a", headers={"Host": "other.test"})


@pytest.mark.parametrize(
    ("parse", "said"),
    [
        (returns_deferred, "returned a Deferred, which crawlog does not support: write `async def parse`"),
        (uses_engine, "crawler.engine.close_spider does not exist in crawlog"),
        (stops_crawler, "To stop the crawl, raise CloseSpider"),
        (carries_response, "a page does not travel; pass its url"),
        (carries_selector, "it belongs to its page; pass its text"),
        (carries_much, "a request has at most 65,536"),
        (sends_host, "the header Host is refused"),
    ],
)
def test_what_cannot_work_is_refused_by_name(parse: Any, said: str) -> None:
    """The page becomes a dead letter with this message."""
    result = outs(parse)
    assert said in result.error
    assert result.requests == []


def test_a_class_of_another_module_is_not_loaded() -> None:
    """A path in a record, or in `meta`, that is not the project's: nothing is imported for it."""
    for given in (
        {"kind": "os:system"},
        {"kind": "subprocess:Popen"},
        {"meta": {"x": {"$object": ["os:_Environ", {}]}}},
    ):
        result = given_by(runner_of(Everything), page_of(asking("one", **given), "<p>"))
        assert "cannot be made again" in result.error
        assert result.items == []


def test_a_policy_of_another_module_is_not_loaded() -> None:
    """Scrapy would import what `meta["referrer_policy"]` names, and call it."""

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(f"{SITE}/a", meta=response.meta)

    runner = runner_of(spider(parse))
    result = given_by(runner, page_of(asking(meta={"referrer_policy": "os.abort"}), "<p>"))
    assert "no class of Scrapy's or of the project" in result.error
    good = "scrapy.spidermiddlewares.referer.NoReferrerPolicy"
    [out] = given_by(runner, page_of(asking(meta={"referrer_policy": good}), "<p>")).requests
    assert out.request is not None
    assert out.request.headers == ()


def test_a_page_that_its_scripts_left_is_a_redirect() -> None:
    """The browser says where it went; its body is there."""
    call = page_of(asking("one", "/from"), "", rendered="rule")
    moved = PageCall(msgspec.structs.replace(call.meta, location="/there"), b"")
    [out] = given_by(runner_of(Everything), moved).requests
    assert (out.url, out.hops) == (f"{SITE}/there", 1)


class OwnCookies(CookiesMiddleware):
    """Of the project, in place of Scrapy's."""


def test_a_subclassed_cookies_middleware_sends_its_own() -> None:
    """Crawlog keeps none then; the header that the subclass wrote is sent."""
    settings = {
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.cookies.CookiesMiddleware": None,
            f"{HERE}.OwnCookies": 700,
        }
    }

    def parse(self: Any, response: Any) -> Any:  # a method
        yield Request(f"{SITE}/a", cookies={"id": "7"})

    runner = runner_of(spider(parse), settings)
    assert runner.facts.settings["fetch.cookies"] is False
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    assert out.request is not None
    assert ("Cookie", "id=7") in out.request.headers
    assert (out.request.cookies, out.request.keeps_cookies) == ((), False)


def test_a_callback_that_is_no_method_is_not_called() -> None:
    """A record may name anything."""
    for name in ("__class__", "name", "crawler", "gone"):
        assert "has no method" in given_by(runner_of(Everything), page_of(asking(name), "<p>")).error


class OwnRobots(RobotsTxtMiddleware):
    """Needs the engine."""


class OwnCache(HttpCacheMiddleware):
    """Keeps pages."""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"DOWNLOADER_MIDDLEWARES": {f"{HERE}.OwnRobots": 100}, "ROBOTSTXT_OBEY": True},
            r"OwnRobots is a RobotsTxtMiddleware: .* Set it to None there",
        ),
        (
            {"DOWNLOADER_MIDDLEWARES": {f"{HERE}.OwnCache": 900}, "HTTPCACHE_ENABLED": True},
            r"OwnCache is a HttpCacheMiddleware: .* Set it to None there",
        ),
        ({"DUPEFILTER_CLASS": f"{HERE}.Signing"}, "DUPEFILTER_CLASS"),
        ({"DOWNLOADER_MIDDLEWARES": {"gone.Middleware": 1}}, "No module named 'gone'"),
    ],
)
def test_a_component_that_cannot_work_is_refused_at_the_start(settings: dict[str, Any], said: str) -> None:
    """Before anything is asked."""
    with pytest.raises(Misconfigured, match=said):
        runner_of(Everything, settings)


@pytest.mark.parametrize("name", ["OwnRobots", "OwnCache"])
def test_a_middleware_that_a_setting_turns_off_does_not_refuse_the_spider(name: str) -> None:
    """ROBOTSTXT_OBEY and HTTPCACHE_ENABLED are off by default: its base raises NotConfigured."""
    runner = runner_of(Everything, {"DOWNLOADER_MIDDLEWARES": {f"{HERE}.{name}": 900}})
    assert name not in [type(one).__name__ for one in runner.crawler.downloading.middlewares]


class Browsing:
    """An add-on as scrapy-playwright's or scrapy-poet's: it sets settings."""

    def update_settings(self, settings: Any) -> None:
        """Another downloader."""
        settings.set("DOWNLOAD_HANDLERS", {"https": "scrapy_playwright.handler.Handler"}, "addon")


class Filtering(Everything):
    """Sets a setting where it is made."""

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        """As Scrapy's documentation shows it."""
        crawler.settings.set("DUPEFILTER_CLASS", f"{HERE}.Signing", "spider")
        return super().from_crawler(crawler, *args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (Everything, {"ADDONS": {f"{HERE}.Browsing": 1}}, "DOWNLOAD_HANDLERS"),
        (Filtering, {}, "DUPEFILTER_CLASS"),
    ],
)
def test_what_is_set_while_the_spider_is_made_is_refused_too(
    kind: type[Spider], settings: dict[str, Any], said: str
) -> None:
    """By an add-on, or in `from_crawler`."""
    with pytest.raises(Misconfigured, match=f"cannot run:\n  {said}"):
        runner_of(kind, settings)


async def test_the_engine_is_refused_where_a_spider_is_made() -> None:
    """In `from_crawler`: all but downloads, and these until the spider is there."""

    class Early(Spider):
        name = "early"

        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            assert crawler.engine.slot
            return super().from_crawler(crawler, *args, **kwargs)

    with pytest.raises(Misconfigured, match=r"crawler\.engine\.slot does not exist"):
        runner_of(Early)
    crawler = StandInCrawler(Everything, Settings())
    with pytest.raises(NotSupported, match="before the spider is made"):
        await crawler.engine.download_async(Request(f"{SITE}/a"))
