"""Spiders of users: how a file becomes one, and what its parse gives."""

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from crawlog import Request, Response, Spider
from crawlog.schemas.pages import PageMeta
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import Bounds, TooMuch
from crawlog.streams.spiders.page import Parsed
from crawlog.streams.spiders.values import MOST_WARNINGS
from crawlog.streams.url import InvalidUrl, serialise
from tests.support.spiders import HTML, PAGE, given, load_spider, result_of
from tests.support.transcripts import REPO


def items(parsed: Parsed) -> list[Any]:
    """The items as Python values."""
    return [json.loads(bytes(item)) for item in parsed.items]


def urls(parsed: Parsed) -> list[str]:
    """The links' URLs."""
    return [link.url for link in parsed.outlinks]


@dataclass
class Book:
    """An item that is no dict."""

    title: str


class Books(Spider):
    """Yields all kinds of things."""

    def parse(self, response: Response) -> Iterator[object]:
        """Items, requests, and a None."""
        row = {"url": response.url, "n": 1}
        yield row
        row["n"] = 2
        yield Book("Moby Dick")
        yield None
        for node in response.css("a"):
            yield response.follow(node)
        yield Request("http://other.test/x?utm_source=y#f", priority=5)
        yield Request("next", priority=900)
        yield Request("next", priority=1)


def test_a_spider_gives_items_and_requests() -> None:
    """Items as they were when they were yielded; requests canonical, in order, with their priority."""
    parsed = given(Books(), b"<base href='/b/'><a href='x'><a href='mailto:x'><a href='/y'><a href='http://['>")
    assert items(parsed) == [{"url": PAGE, "n": 1}, {"title": "Moby Dick"}]
    assert urls(parsed) == ["http://a.test/b/x", "http://a.test/y", "http://other.test/x", "http://a.test/dir/next"]
    assert parsed.priorities == {"http://other.test/x": 5, "http://a.test/dir/next": 900}


def test_a_response_has_what_users_of_scrapy_expect() -> None:
    """Nothing of it is made before it is asked for."""
    body = "<title>Été</title><a class=n href=../x>é</a>".encode("latin-1")
    response = Response(PageMeta(PAGE, "j", http=203, content_type="text/html; charset=latin-1", depth=3), body)
    assert (response.url, response.status, response.depth, response.body) == (PAGE, 203, 3, body)
    assert response.headers == {"content-type": "text/html; charset=latin-1"}
    assert response.text.startswith("<title>Été")
    assert response.css("a.n::text").getall() == ["é"] == response.xpath("//a/text()").getall()
    asked = [response.follow(one) for one in (response.css("a")[0], "../x", response.css("a::attr(href)")[0])]
    assert [request.url for request in asked] == ["http://a.test/x"] * 3
    several: list[Any] = [response.css("a, title"), response.tree.css("a, title"), ["../x"]]
    assert [[one.url for one in response.follow_all(links)] for links in several] == [["http://a.test/x"]] * 3
    assert [one.url for one in response.follow_all(css="a, title")] == ["http://a.test/x"]
    with pytest.raises(TypeError, match="does the selector find what it looks for"):
        response.follow(response.css("b::attr(href)").get())  # type: ignore[arg-type]  # which mypy would tell
    assert response.urljoin("?z") == "http://a.test/dir/p?z"
    assert Response(PageMeta(PAGE, "j"), b'{"a": [1]}').json() == {"a": [1]}


@given_any(st.text(alphabet="/.aZ09~%?&=+;:@!$()*-,_ #\\'é", max_size=12))
def test_a_link_from_the_root_is_joined_as_any_other(href: str) -> None:
    """The short way of most links gives what the URL parser gives."""
    for url, base in ((PAGE, b""), ("https://u:p@a.test:8443/x/", b"<base href='//b.test/c/d'>")):
        response = Response(PageMeta(url, "j", http=200, content_type=HTML), base + b"<p>")
        whole = "https://b.test/c/d" if base else url
        assert response.urljoin(f"/{href}") == joined(f"/{href}", whole)


def joined(href: str, base: str) -> str:
    """By the URL parser; the href itself where it is no URL."""
    try:
        return serialise(href, base)
    except InvalidUrl:
        return href


class One(Spider):
    """Returns something that is no generator."""

    def __init__(self, output: Any) -> None:
        self.output = output

    def parse(self, response: Response) -> Any:  # noqa: ARG002  # as a spider's is called
        """As it was told."""
        return self.output


@pytest.mark.parametrize(
    ("output", "count"), [(None, 0), ([], 0), ({"a": 1}, 1), (Request("/x"), 0), (Book("x"), 1), ([{}, {}], 2)]
)
def test_parse_may_return_what_it_likes(output: Any, count: int) -> None:
    """Nothing, one thing, or many."""
    assert len(given(One(output)).items) == count


def test_half_a_character_costs_no_item() -> None:
    """JSON and scripts have lone surrogates; UTF-8 has none. A warning tells of it, once for a field."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            assert items(given(One([{"b": {"é"}, "a": "x\ud800y"}]))) == [{"b": ["é"], "a": "x?y"}]
        assert items(given(One([{"a": "\ud800", "b": float("nan")}]))) == [{"a": "?", "b": None}]
    assert [str(one.message)[:36] for one in told] == ["an item's 'a' has half a character ("]


def test_fields_with_half_characters_are_named_up_to_a_limit() -> None:
    """Keys may be data; a warning for each would fill the log."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        given(One([{f"a{number}": "\ud800"} for number in range(3 * MOST_WARNINGS)]))
    assert len(told) == MOST_WARNINGS


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("text", "yields dicts .* got str"),
        (["text"], "got str"),
        (3, "got int"),
        ([[1]], "got list"),
        ([b"x"], "got bytes"),
        ([object()], "an item of type object is no JSON"),
        ([{"a": 1, "b": [object()]}], "an item's 'b' is no JSON: .* type object"),
        ([{"a": "x\ud800y", "b": object()}], "an item's 'b' is no JSON"),
    ],
)
def test_what_is_neither_item_nor_request_is_an_error(output: Any, says: str) -> None:
    """Which names what it got."""
    with pytest.raises(TypeError, match=says):
        given(One(output))


def test_what_a_page_may_not_give_is_told_with_its_line(tmp_path: Path) -> None:
    """The traceback ends in crawlog: a generator only waits for the next page of its own."""
    path = written(tmp_path, GOOD + "        yield response.tree.css_first('title')\n")
    with pytest.raises(TypeError, match=r"LexborNode.* \(line 11\)"):
        given(load_spider(str(path)).spider, b"<title>x</title>")


@pytest.mark.parametrize(("url", "priority"), [(None, 0), (b"http://a.test/", 0), ("/x", "1"), ("/x", None)])
def test_a_request_wants_a_url_and_a_priority(url: Any, priority: Any) -> None:
    """Where it is made, so that the traceback says where."""
    with pytest.raises(TypeError):
        Request(url, priority=priority)


@pytest.mark.parametrize(
    "meta",
    [
        {"http": 404},
        {"http": 301, "location": "/x"},
        {"http": None, "error": "timeout"},
        {"kept": False, "content_type": "application/pdf"},
    ],
)
def test_parse_is_called_for_good_pages_only(meta: dict[str, Any]) -> None:
    """As in Scrapy: redirects and errors are not its business."""
    assert given(One({"a": 1}), **meta) == Parsed([], [])


class Status(Spider):
    """Says what status it is told."""

    handle_httpstatus_list = (404,)

    def parse(self, response: Response) -> Any:
        """An item."""
        return {"status": response.status}


def test_a_spider_may_ask_for_error_pages() -> None:
    """By their status."""
    spider = One({"a": 1})
    assert given(spider, http=404) == Parsed([], [])
    spider.handle_httpstatus_list = [404]
    assert len(given(spider, http=404).items) == 1
    assert len(given(spider, http=500).items) == 0


def test_following_all_links_is_a_choice() -> None:
    """By default a spider goes only where it says; a request's priority counts for the same link too."""
    spider = One(Request("y", priority=3))
    assert urls(given(spider, b"<a href=x><a href=y>")) == ["http://a.test/dir/y"]
    spider.follow_links = True
    parsed = given(spider, b"<a href=x><a href=y>")
    assert sorted(urls(parsed)) == ["http://a.test/dir/x", "http://a.test/dir/y"]
    assert parsed.priorities == {"http://a.test/dir/y": 3}


class Following(Spider):
    """Follows all links, one of them with a callback."""

    follow_links = True

    def parse(self, response: Response) -> Iterator[object]:  # noqa: ARG002  # the base class's signature
        """One request."""
        yield Request("y", self.item, cb_kwargs={"n": 1})

    def item(self, response: Response, n: int) -> object:
        """Another page."""
        return {"url": response.url, "n": n}


def test_a_request_for_a_link_keeps_its_callback_where_all_are_followed() -> None:
    """The log knows one of them only: the one that says more."""
    result = result_of(Following(), b"<a href=x><a href=y>")
    assert [(out.url, out.request and out.request.callback) for out in result.requests] == [
        ("http://a.test/dir/y", "item"),
        ("http://a.test/dir/x", None),
    ]


def test_what_a_page_wishes_counts_where_it_is_obeyed() -> None:
    """A page that says noindex is not shown to a spider either."""
    body = b"<meta name=robots content=noindex><a href=x>"
    assert len(given(One({"a": 1}), body).items) == 1
    assert given(One({"a": 1}), body, spec={"meta_robots": True}) == Parsed([], [])


class Endless(Spider):
    """Never stops, and wants to clean up."""

    closed = False

    def parse(self, response: Response) -> Iterator[object]:  # noqa: ARG002  # as a spider's is called
        """One item after the other."""
        try:
            while True:
                yield {"a": "x" * 1000}
        finally:
            Endless.closed = True


@pytest.mark.parametrize("bounds", [Bounds(outputs=100), Bounds(size_bytes=10_000)])
def test_an_endless_generator_ends(bounds: Bounds) -> None:
    """At a number or at a size; its `finally` has run before anybody hears of it."""
    Endless.closed = False
    with pytest.raises(TooMuch, match="more than"):
        given(Endless(), bounds=bounds)
    assert Endless.closed


# From file to spider.

GOOD = """
from crawlog import Request, Spider

class Books(Spider):
    version = "2"
    start_urls = ["http://a.test/"]
    settings = {"politeness.delay_s": 0.5}

    def parse(self, response):
        yield {"url": response.url}
"""


def written(tmp_path: Path, source: str, name: str = "books.py") -> Path:
    """A spider's file."""
    path = tmp_path / name
    path.write_text(source)
    return path


def test_a_file_with_one_spider_needs_no_class(tmp_path: Path) -> None:
    """Its place is absolute, for the workers."""
    path = written(tmp_path, GOOD)
    for named in (f"{path}", f"{path}:Books"):
        loaded = load_spider(named)
        assert (loaded.path, loaded.label) == (f"{path}:Books", "Books@2")
        assert items(given(loaded.spider)) == [{"url": PAGE}]


def test_the_version_is_the_files_hash_by_default(tmp_path: Path) -> None:
    """Of what is run: no cached compilation gets in between, however fast the file changes."""
    labels = []
    for text in ("one", "two"):
        path = written(tmp_path, GOOD.replace('"2"', "''").replace('"url": response.url', f'"a": "{text}"'))
        loaded = load_spider(str(path))
        labels.append(loaded.label)
        assert items(given(loaded.spider)) == [{"a": text}]
    assert labels[0] != labels[1]
    assert all(len(label) == len("Books@12345678") for label in labels)


def test_neighbours_may_be_imported(tmp_path: Path) -> None:
    """As by a script; dataclasses and names of the own module work."""
    written(tmp_path, "KEY = 'k'", "spider_neighbour.py")
    source = "from dataclasses import dataclass\nfrom spider_neighbour import KEY\n" + GOOD
    source += (
        "\n@dataclass\nclass Item:\n    a: 'int' = 1\n\nclass More(Books):\n    def parse(self, r): yield {KEY: 1}\n"
    )
    path = written(tmp_path, source)
    assert items(given(load_spider(f"{path}:More").spider)) == [{"k": 1}]


def test_a_neighbour_hides_no_module_of_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker imports while a spider is loaded would take it, too; a package's own modules are its own."""
    for name in ("sched", "queue"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        written(tmp_path, "1 / 0", f"{name}.py")
    (tmp_path / "spider_helpers").mkdir()
    written(tmp_path, "KEY = 'k'", "spider_helpers/queue.py")
    finders = sys.meta_path[:]
    source = "import sched, queue\nfrom spider_helpers.queue import KEY\n" + GOOD
    source += "    found = [sched.scheduler, queue.Queue, KEY]\n"
    spider: Any = load_spider(str(written(tmp_path, source))).spider
    assert [getattr(found, "__name__", found) for found in spider.found] == ["scheduler", "Queue", "k"]
    assert (sys.meta_path, str(tmp_path) in sys.path) == (finders, False)


def test_a_script_that_calls_crawl_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    """Each process of its crawl loads it, and would begin another crawl, whose processes load it, and so on."""
    source = f"{GOOD}\nimport asyncio\nfrom crawlog import crawl\nasyncio.run(crawl(output='no.such'))\n"
    with pytest.raises(Misconfigured, match=r'while the file is loaded.* below `if __name__ == "__main__":`'):
        load_spider(str(written(tmp_path, source)))


@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_a_file_of_a_package_that_imports_from_its_package_says_how_to_name_it(tmp_path: Path) -> None:
    """It is run as a file of its own, so a relative import leads nowhere."""
    with pytest.raises(Misconfigured, match=r"a file of an installed package is named pkg\.module:Class"):
        load_spider(str(written(tmp_path, "from .items import Book")))


PYSPIDER = "from pyspider.libs.base_handler import *\n\nclass Handler(BaseHandler): ..."
CELERY = "from celery import Celery\n\napp = Celery('shop')"


@pytest.mark.parametrize(("source", "page"), [(PYSPIDER, "from-pyspider.md"), (CELERY, "from-celery.md")])
@pytest.mark.parametrize("is_installed", [False, True])
def test_a_file_of_another_framework_is_told_the_way_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, page: str, is_installed: bool
) -> None:
    """Whether or not that is installed; the page is there."""
    if is_installed:
        for name, base in (("pyspider.libs.base_handler", "BaseHandler"), ("celery", "Celery")):
            kind = type(base, (), {"__module__": name, "__init__": lambda *_: None})
            module = ModuleType(name)
            vars(module).update({base: kind, "__path__": []})
            for parent in ("pyspider", "pyspider.libs"):
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
            monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(Misconfigured, match=f"docs/{page} lists") as error:
        load_spider(str(written(tmp_path, source)))
    assert "ModuleNotFoundError" not in str(error.value)
    assert (REPO / "docs" / page).is_file()


@pytest.mark.parametrize(
    ("source", "named", "says"),
    [
        ("class", "", "line 1: SyntaxError"),
        ("x = 1\n1 / 0", "", "line 2: ZeroDivisionError: division by zero"),
        ("import nowhere_to_be_found", "", "line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit()", "", "line 2: SystemExit"),
        ("x = 1", "", "no subclass of crawlog.Spider"),
        ("x = 1", ":X", "there is no spider X in it; it has none"),
        (GOOD, ":X", "there is no spider X in it; it has Books"),
        (GOOD, ":Spider", "there is no spider Spider in it"),
        (GOOD + GOOD.replace("Books", "More"), "", "name one: --spider books.py:Books"),
        (GOOD.replace("def parse", "def other"), "", "has no parse"),
        (GOOD.replace('"2"', '"2 b"'), "", "version = '2 b'"),
        (GOOD.replace('["http://a.test/"]', '"http://a.test/"'), "", "a list of URLs"),
        (GOOD.replace('{"politeness.delay_s": 0.5}', "3"), "", "a dict by dotted names"),
        (GOOD + "\n    def __init__(self, x): pass", "", "needs arguments: -a x="),
        (GOOD + "\n    start_urls = None", "", "start_urls = None: it is a list of URLs"),
        (GOOD + "\n    start_urls = iter(('http://a.test/',))", "", "it is a list of URLs"),
        (GOOD + "\n    handle_httpstatus_list = 404", "", "handle_httpstatus_list = 404: it is a list of numbers"),
        (GOOD + "\n    handle_httpstatus_list = ['404']", "", "it is a list of numbers"),
        (GOOD.replace("(self, response)", "(response)"), "", "write it as parse(self, response)"),
        (GOOD.replace("(self, response)", "(self, response, page)"), "", "missing a required argument: 'page'"),
        (GOOD + "\n    parse = 5", "", "write it as parse(self, response)"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, source: str, named: str, says: str) -> None:
    """With the line, where there is one."""
    with pytest.raises(Misconfigured) as error:
        load_spider(f"{written(tmp_path, source)}{named}")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("named", ["books.txt", "none.py", "none.py:X", "", ":X", "."])
def test_what_is_no_file_is_said(named: str) -> None:
    """As it was written."""
    with pytest.raises(Misconfigured, match="--spider"):
        load_spider(named)
