"""Requests for scrapy-playwright as records, and their pages with what the actions returned."""

from typing import Any

import pytest
import scrapy

from crawlog.schemas.pages import ActionResult
from crawlog.schemas.requests import Action
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders.exchange import RequestOut
from crawlog.streams.spiders.scrapy import ScrapyRunner
from tests.support.adapting import SITE, asking, given_by, page_of, runner_of

page_method = pytest.importorskip("scrapy_playwright.page").PageMethod

ON = {"DOWNLOAD_HANDLERS": {"http": "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"}}


class Shop(scrapy.Spider):
    """Asks for a page with this meta."""

    name = "shop"
    start_urls = [f"{SITE}/"]  # noqa: RUF012  # as users write it
    given: Any = None

    def parse(self, response: Any) -> Any:  # noqa: ARG002  # Scrapy's own signature
        """Gives the request."""
        yield scrapy.Request(f"{SITE}/next", self.seen, meta=self.given)

    def seen(self, response: Any) -> Any:
        """Shows the results, and where the page came to; asks for one more with the same meta."""
        methods = response.meta["playwright_page_methods"]
        named = methods if isinstance(methods, dict) else dict(enumerate(methods))
        shown = {str(key): repr(method.result) for key, method in named.items()}
        yield {"results": shown, "url": response.url, "flags": response.flags}
        yield scrapy.Request(f"{SITE}/more", meta=response.meta)


def asked(meta: dict[str, Any], **settings: Any) -> tuple[ScrapyRunner, list[RequestOut], str]:
    """The request of a page with this meta, and the page's error."""
    runner = runner_of(Shop, ON | settings)
    runner.spider.given = {"playwright": True} | meta  # type: ignore[attr-defined]  # Shop has it
    result = given_by(runner, page_of(asking(), "<p>"))
    return runner, result.requests, result.error


CLICK, READ = page_method("click", "a.more", timeout=500), page_method("evaluate", "1 + 1")
DONE = [Action("click", {"selector": "a.more", "timeout": 500}), Action("evaluate", {"expression": "1 + 1"})]


@pytest.mark.parametrize("methods", [[CLICK, READ], {"first": CLICK, "second": READ}])
def test_page_methods_travel_as_data_and_come_back_with_their_results(methods: Any) -> None:
    """In the list or the dict in which they were given; a copy of the meta asks for the same again."""
    runner, [out], error = asked({"playwright_page_methods": methods, "playwright_context": "de"})
    assert (error, out.request is not None) == ("", True)
    record = out.request
    assert record is not None
    assert (record.render, record.jar, record.keeps_cookies) == (True, "de", True)
    assert record.actions == (Action("context"), *DONE)
    results = (ActionResult(), ActionResult(), ActionResult("2"))
    page = page_of(out, "<p>", rendered="request", results=results, shown_url=f"{SITE}/there")
    result = given_by(runner, page)
    keys = ["first", "second"] if isinstance(methods, dict) else ["0", "1"]
    shown = b'{"results": {"%s": "None", "%s": "2"}, "url": "http://shop.test/there", "flags": ["playwright"]}'
    assert bytes(result.items[0]) == shown % tuple(key.encode() for key in keys)
    [more] = result.requests
    assert more.request is not None
    assert more.request.actions == record.actions


def test_a_context_shows_the_page_and_has_its_jar() -> None:
    """That of the settings counts before that of the request, as it is there first; `networkidle` is waited for."""
    contexts = {"de": {"locale": "de-DE", "ignore_https_errors": True}}
    meta = {
        "playwright_context": "de",
        "playwright_context_kwargs": {"locale": "fr"},
        "playwright_page_goto_kwargs": {"wait_until": "networkidle", "timeout": 1},
    }
    _, [out], _ = asked(meta, PLAYWRIGHT_CONTEXTS=contexts)
    assert out.request is not None
    waits = Action("wait_for_load_state", {"state": "networkidle"})
    assert out.request.actions == (Action("context", {"locale": "de-DE"}), waits)


def test_a_page_has_cookies_where_the_project_has_none_for_others() -> None:
    """A browser's context has them, whatever COOKIES_ENABLED is; plain requests of the job send none."""
    runner, [out], _ = asked({}, COOKIES_ENABLED=False)
    assert out.request is not None
    assert (out.request.keeps_cookies, runner.facts.settings["fetch.cookies"], runner.facts.renders) == (True,) * 3
    _, [out], _ = asked({"playwright": False}, COOKIES_ENABLED=False)
    assert out.request is not None
    assert (out.request.keeps_cookies, out.request.actions, out.request.render) == (False, (), None)


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"playwright_page_methods": [page_method(print)]}, "it calls a function, which cannot travel in the log"),
        ({"playwright_page_methods": [page_method("expose_function", "x")]}, "'expose_function' is no action; there"),
        ({"playwright_page_methods": [page_method("screenshot", path="x.png")]}, "no action reads or writes a file"),
        ({"playwright_page_methods": [page_method("click")]}, "click needs the argument 'selector'"),
        ({"playwright_page_methods": [page_method("evaluate", "x", object())]}, "evaluate: its arguments are not data"),
        ({"playwright_page_goto_kwargs": {"referer": "x"}}, "['referer']: set it as a header of the request"),
        ({"playwright_context_kwargs": {"storage_state": {}}}, "'storage_state' is refused: give the cookies to a req"),
        ({"playwright_include_page": True}, "a page of the browser cannot travel in the log"),
    ],
)
def test_what_cannot_travel_is_refused_with_the_reason(meta: dict[str, Any], reason: str) -> None:
    """The page that asks for it gives nothing more and becomes a dead letter."""
    _, requests, error = asked(meta)
    assert requests == []
    assert reason in error


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"PLAYWRIGHT_CONTEXTS": {"a": {"user_data_dir": "/tmp/x"}}}, "PLAYWRIGHT_CONTEXTS['a']: 'user_data_dir' is r"),
        (
            {"PLAYWRIGHT_CONTEXTS": {"a": {"geolocation": {}}}},
            "PLAYWRIGHT_CONTEXTS['a']: context: the argument 'geo",
        ),
        ({"PLAYWRIGHT_LAUNCH_OPTIONS": {"proxy": {"server": "x"}}}, "PLAYWRIGHT_LAUNCH_OPTIONS['proxy']: set meta['pr"),
    ],
)
def test_a_browser_that_cannot_be_so_is_refused_at_the_start(settings: dict[str, Any], reason: str) -> None:
    """Before anything is asked for."""
    with pytest.raises(Misconfigured) as refusal:
        runner_of(Shop, ON | settings)
    assert reason in str(refusal.value)


def test_without_the_handler_its_keys_are_the_spiders_own() -> None:
    """As in Scrapy, where nobody reads them then."""
    runner = runner_of(Shop)
    runner.spider.given = {"playwright": True, "playwright_include_page": True}  # type: ignore[attr-defined]  # as above
    [out] = given_by(runner, page_of(asking(), "<p>")).requests
    assert out.request is not None
    assert (out.request.render, out.request.meta["playwright_include_page"]) == (None, True)
