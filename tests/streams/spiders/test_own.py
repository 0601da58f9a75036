"""crawlog's own spiders in their process: callbacks, values, errors, start."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pydantic
import pytest
import scrapy

from crawlog import Request, Response, Spider
from crawlog.schemas.pages import PageMeta, with_body
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import known_keys
from crawlog.streams.spiders import (
    CallResult,
    PageCall,
    RequestOut,
    Runner,
    SpiderRef,
    load_runner,
    request_id,
    unfiltered_id,
)
from crawlog.streams.spiders.request_records import request_carrier
from crawlog.streams.timing import Timing
from crawlog.streams.url import fingerprint
from tests.support.spiders import PAGE, result_of


class Shop(Spider):
    """Lists, and pages of one thing."""

    def parse(self, response: Response) -> Iterator[Request]:
        """A list."""
        for row in response.css("li"):
            url = row.css("a::attr(href)").get()
            if url:
                yield response.follow(url, self.parse_item, cb_kwargs={"price": row.css("b::text").get()})
        yield from response.follow_all(css="a.next", callback=self.parse)

    def parse_item(self, response: Response, price: str) -> Iterator[dict[str, Any]]:
        """A thing."""
        yield {"title": response.css("h1::text").get(), "price": price}


def asked(result: CallResult) -> list[tuple[str, RequestRecord | None]]:
    """The URLs and records of a result without error."""
    assert result.error == "", result.trace
    return [(one.url, one.request) for one in result.requests]


def rows(result: CallResult) -> list[Any]:
    """The items of a result without error."""
    assert result.error == "", result.trace
    return [json.loads(bytes(item)) for item in result.items]


def test_a_page_goes_to_the_callback_of_its_request() -> None:
    """With the arguments that the request carried; a link to `parse` stays a plain GET."""
    listed = result_of(Shop(), b"<li><a href=/1>x</a><b>5</b></li><a class=next href='?p=2'>")
    record = RequestRecord(callback="parse_item", kwargs={"price": "5"})
    assert asked(listed) == [("http://a.test/1", record), ("http://a.test/dir/p?p=2", None)]
    assert listed.requests[0].id == fingerprint("http://a.test/1")
    item = result_of(Shop(), b"<h1>t</h1>", request=record)
    assert rows(item) == [{"title": "t", "price": "5"}]


def test_a_page_that_was_not_modified_goes_to_the_callback_too() -> None:
    """With the body of the older page, as if it had been sent again."""
    record = RequestRecord(callback="parse_item", kwargs={"price": "5"}, errback="parse")
    old = PageMeta(PAGE, "j", http=200, content_type="text/html")
    new = with_body(PageMeta(PAGE, "j", http=304, same_as=(0, 1), request=record, epoch=1), old)
    item = result_of(Shop(), b"<h1>t</h1>", **msgspec.structs.asdict(new))
    assert rows(item) == [{"title": "t", "price": "5"}]


class Once(Spider):
    """Yields what it is given."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def parse(self, response: Response) -> Iterator[Any]:  # noqa: ARG002  # as a spider's is called
        """As it was told."""
        yield from self.given

    def other(self, response: Response) -> Any:
        """Another callback."""
        return {"other": response.url}

    def failed(self, failure: Any) -> Any:
        """The errback."""
        return {"kind": type(failure.value).__name__, "reason": failure.value.reason, "url": failure.request.url}


@pytest.mark.parametrize(
    ("request_", "record"),
    [
        (Request("/x"), None),
        (Request("/x", priority=3), None),
        (Request("/x", callback="parse"), None),
        (Request("/x", "other"), RequestRecord(callback="other")),
        (Request("/x", method="post"), RequestRecord(method="POST")),
        (
            Request("/x", json={"a": 1}),
            RequestRecord("POST", headers=(("Content-Type", "application/json"),), body=b'{"a":1}'),
        ),
        (
            Request("/x", form={"a": ["1", "é"]}),
            RequestRecord(
                "POST", headers=(("Content-Type", "application/x-www-form-urlencoded"),), body=b"a=1&a=%C3%A9"
            ),
        ),
        (Request("/x", meta={"a": (1,)}), RequestRecord(meta={"a": {"$tuple": [1]}})),
        (
            Request("/x", meta={"cookiejar": 1, "dont_redirect": True}),
            RequestRecord(jar="1", follows=False, meta={"cookiejar": 1, "dont_redirect": True}),
        ),
        (Request("/x", errback="failed", once=True), RequestRecord(errback="failed", once=True)),
        (
            Request("/x", attempts=2, timeout=3, proxy="http://p/"),
            RequestRecord(attempts=2, timeout_s=3, proxy="http://p/"),
        ),
        (Request("/x", render=True), RequestRecord(render=True)),
        (Request("/x", headers={"X-A": ["1", "2"]}), RequestRecord(headers=(("X-A", "1"), ("X-A", "2")))),
        (Request("/x", meta={"depth": 3, "download_latency": 1.0}), None),
    ],
)
def test_a_request_becomes_its_record(request_: Request, record: RequestRecord | None) -> None:
    """A plain GET has none: it costs nothing more."""
    assert asked(result_of(Once(request_))) == [("http://a.test/x", record)]


def test_a_form_of_a_get_is_its_query() -> None:
    """As browsers send it."""
    assert asked(result_of(Once(Request("/x?a=1#f", method="GET", form={"b": 2})))) == [
        ("http://a.test/x?a=1&b=2", None)
    ]


def test_identities_are_made_with_the_request() -> None:
    """A POST by method and body; `dont_filter` by its parent, and how many were given before."""
    post, again = Request("/x", form={"a": 1}), Request("/x", dont_filter=True)
    first, second, third = result_of(Once(post, again, again)).requests
    assert first.request is not None
    assert first.id == request_id("http://a.test/x", first.request)
    plain = fingerprint("http://a.test/x")
    parent = fingerprint(PAGE)
    assert [second.id, third.id] == [unfiltered_id(parent, 1, plain, count) for count in (0, 1)]
    swapped = result_of(Once(again, {"a": 1}, again, post)).requests
    assert {one.id for one in swapped} == {first.id, second.id, third.id}


def test_headers_that_the_job_names_tell_requests_apart() -> None:
    """`fingerprint.headers`."""
    given = Request("/x", headers={"Accept": "a/b"})
    [one] = result_of(Once(given)).requests
    [other] = result_of(Once(given), spec={"fingerprint_headers": ("accept",)}).requests
    assert one.id == fingerprint(one.url) != other.id


@pytest.mark.parametrize(
    ("meta", "row"),
    [
        ({"http": None, "error": "dns"}, {"kind": "DnsFailed", "reason": "dns"}),
        (
            {"http": None, "error": "private_address: 10.0.0.1"},
            {"kind": "NotSent", "reason": "private_address: 10.0.0.1"},
        ),
        ({"http": 404}, {"kind": "HttpError", "reason": "status 404"}),
        ({"http": 302, "kept": False, "error": "scope: redirects"}, {"kind": "NotSent", "reason": "scope: redirects"}),
        ({"http": 200, "kept": False, "error": "too_large"}, {"kind": "BadAnswer", "reason": "too_large"}),
    ],
)
def test_a_failure_goes_to_the_errback(meta: dict[str, Any], row: dict[str, Any]) -> None:
    """With an exception whose class says what went wrong; without an errback nobody is called."""
    request = RequestRecord(errback="failed")
    assert rows(result_of(Once(), request=request, **meta)) == [row | {"url": PAGE}]
    assert result_of(Once({"a": 1}), **meta) == CallResult()


def test_statuses_that_a_request_asks_for_go_to_its_callback() -> None:
    """A redirect too, where it is not followed."""
    some = RequestRecord(callback="other", answers=(404,))
    assert rows(result_of(Once(), request=some, http=404)) == [{"other": PAGE}]
    assert result_of(Once(), request=some, http=500) == CallResult()
    once = Once({"a": 1})
    once.handle_httpstatus_list = [302]
    assert len(rows(result_of(once, http=302, location="/y"))) == 1
    assert len(rows(result_of(once, spec={"meta_robots": True}, http=302, location="/y"))) == 1
    assert rows(result_of(once, http=301, location="/y")) == []
    stays = RequestRecord(callback="other", follows=False)
    assert rows(result_of(Once(), request=stays, http=302, location="/y")) == [{"other": PAGE}]
    assert rows(result_of(Once(), request=RequestRecord(callback="other", all_answers=True), http=500)) != []


class Later(Spider):
    """Callbacks that wait."""

    async def parse(self, response: Response) -> Any:  # noqa: ARG002  # as a spider's is called
        """Returns after a while."""
        await asyncio.sleep(0)
        return [{"a": 1}, Request("/x", self.each)]

    async def each(self, response: Response) -> AsyncIterator[Any]:
        """Yields now and then."""
        yield {"a": 2}
        await asyncio.sleep(0.001)
        yield {"a": response.depth}


def test_callbacks_may_wait() -> None:
    """`async def`, with `return` and with `yield`."""
    assert rows(result_of(Later())) == [{"a": 1}]
    assert rows(result_of(Later(), request=RequestRecord(callback="each"), depth=7)) == [{"a": 2}, {"a": 7}]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (lambda page: Request("/x", meta={"page": page}), r"meta\['page'\] is a .*Response: a page does not travel"),
        (lambda page: Request("/x", cb_kwargs={"a": [page.css("a")]}), r"cb_kwargs\['a'\]\[0\] is a .*SelectorList: "),
        (lambda _: Request("/x", meta={"f": lambda: 1}), r"meta\['f'\] is a function"),
        (lambda _: Request("/x", "nowhere"), "callback = nowhere: One has no such method"),
        (lambda _: Request("/x", body=b"x" * 70_000), "the limit is 65,536"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(request_: Any, says: str) -> None:
    """The page gives nothing, and is not tried again."""

    class One(Spider):
        def parse(self, response: Response) -> Iterator[Any]:
            yield {"a": 1}
            yield request_(response)

    result = result_of(One())
    assert (result.items, result.requests, result.is_final) == ([], [], True)
    assert re.search(says, result.error), result.error


def test_an_exception_leaves_nothing_but_itself() -> None:
    """All or nothing; it is tried again."""

    class Broken(Spider):
        def parse(self, response: Response) -> Iterator[Any]:
            yield {"a": 1}
            raise KeyError(response.url)

    result = result_of(Broken())
    assert (result.items, result.is_final) == ([], False)
    assert result.error == f"KeyError: {PAGE!r}"
    assert "in parse" in result.trace


def test_response_has_its_request() -> None:
    """To be sent again as it was, with what is changed."""

    class Again(Spider):
        def parse(self, response: Response) -> Any:
            assert response.meta["n"] == 1
            return response.request.replace(dont_filter=True, meta={**response.meta, "n": 2})

    [again] = result_of(Again(), request=RequestRecord("POST", body=b"x", meta={"n": 1}), id=9).requests
    assert again.request == RequestRecord("POST", body=b"x", meta={"n": 2}, unfiltered=True)


# From file to runner.

FILE = """
from crawlog import Request, Spider

class Shop(Spider):
    version = "1"

    def __init__(self, section="all", pages="1"):
        self.section = section

    async def start(self):
        for number in range(250):
            yield Request(f"http://a.test/{self.section}/{number}", self.parse_list)

    def parse(self, response): ...
    def parse_list(self, response): ...
"""


def runner(tmp_path: Path, source: str = FILE, **args: str) -> Runner:
    """The runner of a file."""
    path = tmp_path / "shop.py"
    path.write_text(source)
    return load_runner(SpiderRef(str(path), tuple(args.items()), spec=JobSpec()))


def started(loaded: Runner) -> list[CallResult]:
    """All that start gives."""

    async def all_of() -> list[CallResult]:
        return [result async for result in loaded.start()]

    return asyncio.run(all_of())


def test_start_gives_its_requests_in_batches(tmp_path: Path) -> None:
    """Small ones first; they are seeds of depth 0."""
    loaded = runner(tmp_path, section="books")
    assert (loaded.facts.starts, loaded.facts.label, loaded.facts.start_urls) == (True, "Shop@1", ())
    results = started(loaded)
    assert [len(result.requests) for result in results][:4] == [1, 2, 4, 8]
    requests = [request for result in results for request in result.requests]
    assert len(requests) == 250
    url = "http://a.test/books/0"
    assert requests[0] == RequestOut(url, fingerprint(url), 0, RequestRecord(callback="parse_list"), depth=0)


def test_start_that_fails_says_so_behind_what_it_gave(tmp_path: Path) -> None:
    """What it gave before is sent."""
    *given, failed = started(
        runner(
            tmp_path,
            FILE.replace("yield Request", "1 / (number - 9) and (yield Request").replace("list)\n\n", "list))\n\n", 1),
        )
    )
    assert sum(len(result.requests) for result in given) == 9
    assert failed.error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"colour": "red"}, "-a colour: Shop of .* has no such argument; it takes section, pages"),
        ({"self": "x"}, "-a self"),
    ],
)
def test_an_argument_that_is_not_taken_is_an_error(tmp_path: Path, args: dict[str, str], says: str) -> None:
    """Which names those that are."""
    with pytest.raises(Misconfigured, match=says):
        runner(tmp_path, **args)


def test_a_spider_without_init_has_its_arguments_as_attributes(tmp_path: Path) -> None:
    """As in Scrapy; but a method is not replaced."""
    source = "from crawlog import Spider\nclass One(Spider):\n    def parse(self, response): yield {'a': self.tag}\n"
    loaded: Any = runner(tmp_path, source, **{"tag": "x", "qs:year": "2020"})
    assert (loaded._spider.tag, getattr(loaded._spider, "qs:year")) == ("x", "2020")
    with pytest.raises(Misconfigured, match="-a parse"):
        runner(tmp_path, source, parse="x")


WAITING = """
import asyncio
from crawlog import Request, Spider

class Slow(Spider):
    async def start(self):
        for number in range(20):
            if number == 13:
                await asyncio.sleep(0.01)
            yield Request(f"http://a.test/{number}")

    def parse(self, response): ...
"""


def test_what_start_gave_does_not_wait_for_what_it_waits_for(tmp_path: Path) -> None:
    """A start that reads from a queue, for example."""
    assert [len(result.requests) for result in started(runner(tmp_path, WAITING))] == [1, 2, 4, 6, 7]


def test_a_start_that_is_cancelled_while_it_waits_hears_of_it(tmp_path: Path) -> None:
    """Its `finally` runs."""
    source = WAITING.replace("await asyncio.sleep(0.01)", "await self.wait()")
    source += """
    async def wait(self):
        try:
            await asyncio.sleep(600)
        finally:
            self.ended = True
"""
    loaded: Any = runner(tmp_path, source)

    async def cancelled() -> None:
        async with asyncio.timeout(0.1):
            async for _ in loaded.start():
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert loaded._spider.ended


def test_a_request_travels_within_a_request() -> None:
    """With its callback, which is a method of the spider again."""

    class Chain(Spider):
        def parse(self, _: Response) -> Any:
            return Request("/login", self.after, meta={"then": Request("/shop", self.shop, cb_kwargs={"n": 1})})

        def after(self, response: Response) -> Any:
            return response.meta["then"]

        def shop(self, _: Response, n: int) -> Any:
            return {"n": n}

    carrier = request_carrier
    [login] = result_of(Chain(), carrier=carrier).requests
    [shop] = result_of(Chain(), request=login.request, carrier=carrier).requests
    assert shop.request == RequestRecord(callback="shop", kwargs={"n": 1})
    assert rows(result_of(Chain(), request=shop.request, carrier=carrier)) == [{"n": 1}]


PIPED = """
from dataclasses import dataclass
from datetime import date
from crawlog import Spider

@dataclass
class Book:
    title: str
    day: date

class Clean:
    def process_item(self, item, spider):
        item.title = item.title.strip()
        return item

class Books(Spider):
    start_urls = ["http://a.test/"]
    pipelines = [Clean]

    def parse(self, response):
        yield Book(" x ", date(2026, 1, 2))

    def closed(self, reason): ...
"""


def test_items_of_a_spider_with_pipelines_stay_as_scraped(tmp_path: Path) -> None:
    """Class and values travel; the row is made behind the pipelines."""
    loaded: Any = runner(tmp_path, PIPED)
    assert loaded.facts.has_pipelines
    result = asyncio.run(loaded.page(PageCall(PageMeta(PAGE, "j", http=200))))
    assert result.is_raw
    assert rows(result) == [{"$object": ["spider:Book", {"title": " x ", "day": {"$date": "2026-01-02"}}]}]
    made = asyncio.run(loaded.pipelines().made(b"~" + bytes(result.items[0])))
    assert json.loads(bytes(made.row)) == {"title": "x", "day": "2026-01-02"}


def test_classes_of_the_spiders_package_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of any module in its outermost package, by their names; other ones are refused."""
    package = tmp_path / "own_shop"
    (package / "spiders").mkdir(parents=True)
    for folder in (package, package / "spiders"):
        (folder / "__init__.py").touch()
    (package / "items.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Card:\n    name: str\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = """
from fractions import Fraction
from own_shop.items import Card
from crawlog import Request, Spider

class Cards(Spider):
    def parse(self, response):
        yield Request("/x", meta={"card": Card("a")})

    def other(self, response):
        yield Request("/x", meta={"half": Fraction(1, 2)})
"""
    path = package / "spiders" / "cards.py"
    path.write_text(source)
    loaded = load_runner(SpiderRef(str(path)))
    page = PageMeta(PAGE, "j", http=200)
    [(_, record)] = asked(asyncio.run(loaded.page(PageCall(page))))
    assert record is not None
    assert record.meta == {"card": {"$object": ["own_shop.items:Card", {"name": "a"}]}}
    other = PageMeta(PAGE, "j", http=200, request=RequestRecord(callback="other"))
    refused = asyncio.run(loaded.page(PageCall(other)))
    assert "meta['half'] is a fractions.Fraction, which does not travel" in refused.error


DOCS = Path(__file__).parents[3] / "docs"


def test_the_spider_of_the_documentation_loads(tmp_path: Path) -> None:
    """As it is written there."""
    source = (DOCS / "spiders.md").read_text().partition("```python\n")[2].partition("```")[0]
    loaded = runner(tmp_path, source, section="books")
    assert [request.url for request in started(loaded)[0].requests] == ["https://shop.example/books"]
    assert loaded.facts.settings["scope.kind"] == "any"


@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("", ["*/*"]),
        ("follow_links = True", None),
        ("settings = {'fetch.content_types': ['text/html']}", ["text/html"]),
    ],
)
def test_a_spider_that_asks_for_each_page_itself_gets_pages_of_any_type(
    tmp_path: Path, body: str, types: list[str] | None
) -> None:
    """Unless it names the types; where links are followed for it, the job's setting decides about them."""
    loaded = runner(
        tmp_path, f"from crawlog import Spider\nclass S(Spider):\n    {body}\n    def parse(self, _): ...\n"
    )
    assert loaded.facts.settings.get("fetch.content_types") == types


@pytest.mark.parametrize("page", ["spiders.md", "scrapy.md"])
def test_settings_that_the_documentation_names_are_there(page: str) -> None:
    """In both pages about spiders."""
    text = (DOCS / page).read_text()
    known = known_keys()
    sections = {key.partition(".")[0] for key in known}
    named = {word for word in re.findall(r"`([a-z]+\.[a-z_0-9]+)(?:=[a-z]+)?`", text) if word.split(".")[0] in sections}
    assert len(named) > 5
    assert named - {"response.tree", "canonical.plain"} <= known.keys()  # names in code


class Tag(pydantic.BaseModel):
    """An item of pydantic."""

    name: str
    price: Decimal


@attrs.define
class Shelf:
    """An item of attrs."""

    tags: list[Tag]


def test_items_of_any_class_with_fields_are_rows() -> None:
    """Also within others, and Scrapy's own."""

    class Card(scrapy.Item):
        name = scrapy.Field()

    tag = Tag(name="x", price=Decimal("1.50"))
    found = rows(result_of(Once(tag, Shelf([tag]), Card(name="c"), {"at": {"t": tag}, "s": "\ud800"})))
    told = {"name": "x", "price": "1.50"}
    assert found == [told, {"tags": [told]}, {"name": "c"}, {"at": {"t": told}, "s": "?"}]


def test_a_request_of_scrapys_is_told_the_import_to_change() -> None:
    """In a spider of crawlog's own."""
    error = result_of(Once(scrapy.Request("http://a.test/"))).error
    assert "a Request of Scrapy's; crawlog has its own: `from crawlog import Request, Spider`" in error


def test_start_wants_absolute_urls(tmp_path: Path) -> None:
    """There is no page that they could belong to."""
    *_, failed = started(runner(tmp_path, FILE.replace("http://a.test/{self.section}", "/{self.section}")))
    assert failed.error == "ValueError: start gives '/all/0': its URLs are absolute, http or https"


def test_an_attribute_that_nothing_reads_is_noted_with_the_likely_name(tmp_path: Path) -> None:
    """Not what the class itself has under the right name too, nor attributes that are far from any."""
    file = tmp_path / "near.py"
    file.write_text(
        "import crawlog\n\nclass Near(crawlog.Spider):\n    start_url = ['http://a.example/']\n    rule = []\n"
        "    parser = None\n    base_url = 'http://a.example/'\n    def close(self, reason): ...\n"
        "    def parse(self, response): ...\n"
    )
    notes = load_runner(SpiderRef(str(file))).facts.notes
    assert [note.replace(" is not an attribute that crawlog reads; did you mean", ":") for note in notes] == [
        "Near.close: closed?",
        "Near.rule: rules?",
        "Near.start_url: start_urls?",
    ]


class Timed(Spider):
    """Asks for pages at other times."""

    def parse(self, response: Response) -> Iterator[Request]:  # noqa: ARG002  # as spiders have it
        """Two plain GETs; the first keeps its time where it is asked for twice."""
        yield Request("http://a.test/1", countdown="1d")
        yield Request("http://a.test/2", eta=datetime(2027, 1, 15, 8, tzinfo=UTC), expires="2h")
        yield Request("http://a.test/2", priority=3)


def test_times_of_a_request_travel_beside_it() -> None:
    """A plain GET stays one; the copy of a request keeps them, and the page's own request has none."""
    first, second = result_of(Timed(), b"").requests
    assert (first.request, first.timing) == (None, Timing(countdown=86_400))
    assert (second.priority, second.timing) == (3, Timing(eta=1.8e9, lasts=7200))
    request = Request("http://a.test/", countdown=timedelta(hours=1), expires=60)
    assert request.replace(url="http://a.test/x").timing == Timing(countdown=3600, lasts=60)
    with pytest.raises(ValueError, match="one of eta and countdown"):
        request.replace(eta=1.8e9)
