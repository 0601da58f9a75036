"""Habits of Scrapy's users: what crawlog does not have is refused at load time, with the way to do it here."""

from pathlib import Path
from typing import Any

import pytest

from crawlog import Request, Response, Spider
from crawlog.schemas.pages import PageMeta
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import known_keys
from crawlog.streams.spiders import scrapy_names
from crawlog.streams.spiders.loading import load_spider
from tests.support.spiders import given

GOOD = """
import crawlog
from crawlog import Request as R, Spider

class Books(Spider):
    start_urls = ["http://a.test/"]

    def parse(self, response):
        yield {"url": response.url}
"""


def refusal(tmp_path: Path, source: str) -> str:
    """What is said of a spider's file."""
    path = tmp_path / "books.py"
    path.write_text(source)
    with pytest.raises(Misconfigured) as refused:
        load_spider(str(path))
    return str(refused.value)


@pytest.mark.parametrize(
    ("body", "way"),
    [
        ("    allowed_domains = ['a.test']", 'settings = {"scope.kind": "host"}'),
        ("    custom_settings = {'DOWNLOAD_DELAY': 2}", 'settings = {"politeness.delay_s": 2}'),
        ("    def start_requests(self): yield R('/x')", "start_urls = ["),
        ("    async def start(self): yield R('/x')", "start_urls = ["),
        ("    def closed(self, reason): print(reason)", "once `crawlog run` has ended"),
        ("    @classmethod\n    def from_crawler(cls, crawler): return cls()", "__init__"),
        ("    def __init__(self): self.allowed_domains = ['a.test']", "scope"),
        ("    download_delay = 2", "politeness.delay_s"),
        ("    user_agent = 'me'", "fetch.user_agent"),
        ("    http_user = 'ann'", "fetch.logins"),
    ],
)
def test_a_name_of_scrapy_that_does_nothing_is_refused(tmp_path: Path, body: str, way: str) -> None:
    """A crawl that ignores it would go further, or faster, than its owner thinks."""
    said = refusal(tmp_path, GOOD + body)
    name = next(name for name in scrapy_names.OF_SPIDER if name in body)
    assert f"Books.{name} does nothing here: " in said
    assert way in said


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("R('/x', callback=self.parse_item)", "callback"),
        ("R('/x', self.parse_item)", "callback"),
        ("crawlog.Request('/x', meta={'a': 1})", "meta"),
        ("R('/x', priority=1, dont_filter=True)", "dont_filter"),
        ("response.follow('/x', self.parse_item)", "callback"),
        ("response.follow('/x', cb_kwargs={'a': 1})", "cb_kwargs"),
        ("R('/x', method='POST')", "method"),
        ("R('/x', cookies={})", "cookies"),
    ],
)
def test_an_argument_of_scrapys_requests_is_refused(tmp_path: Path, call: str, name: str) -> None:
    """Before anything is asked for, with its line; not by each page when its turn comes."""
    source = f"{GOOD}        yield {call}\n\n    def parse_item(self, response): yield {{}}\n"
    said = refusal(tmp_path, source)
    assert f"line 10: {name}" in said
    assert scrapy_names.OF_REQUEST[name] in said


def test_all_names_are_told_at_once(tmp_path: Path) -> None:
    """Whoever brings a spider from Scrapy changes it once."""
    source = f"{GOOD}        yield R('/x', callback=self.parse, errback=self.parse)\n"
    source += "    allowed_domains = []\n    download_delay = 1\n"
    said = refusal(tmp_path, source).splitlines()
    assert [line.partition(" does nothing here: ")[0].strip() for line in said[1:]] == [
        "Books.allowed_domains",
        "Books.download_delay",
        "line 10: callback",
        "line 10: errback",
    ]


def test_a_spider_with_names_of_its_own_is_taken(tmp_path: Path) -> None:
    """Other functions may be called Request or follow, and an attribute `start` need not be a method."""
    source = GOOD.replace("class Books", "def Request(url, callback): return url\n\nclass Books")
    source += "        yield {'u': Request('/x', callback=1), 'f': self.follow(callback=2)}\n"
    source += "    start = 0\n    closed = False\n    def follow(self, callback): return callback\n"
    path = tmp_path / "books.py"
    path.write_text(source)
    assert load_spider(str(path)).path == f"{path}:Books"


@pytest.mark.parametrize("has_scrapy", [True, False])
def test_a_spider_of_scrapys_own_is_told_the_import_to_change(tmp_path: Path, *, has_scrapy: bool) -> None:
    """Whether Scrapy is installed or not."""
    if has_scrapy:
        (tmp_path / "scrapy.py").write_text("class Spider: pass\n")
    said = refusal(tmp_path, GOOD.replace("class Books(Spider)", "import scrapy\nclass Books(scrapy.Spider)"))
    assert "`from crawlog import Request, Spider`" in said


def test_the_ways_name_settings_that_there_are() -> None:
    """A hint that names another one would be worse than none."""
    ways = " ".join([*scrapy_names.OF_SPIDER.values(), *scrapy_names.OF_REQUEST.values()])
    sections = {key.partition(".")[0] for key in known_keys()}
    named = {word.strip("`\"':{},;()") for word in ways.split()}
    keys = {word for word in named if word.partition(".")[0] in sections and "." in word}
    assert len(keys) > 5
    assert keys <= known_keys().keys()


def page(html: bytes = b"<a class=x href=/y>t</a><a>u</a>") -> Response:
    """A page that was fetched."""
    return Response(PageMeta("http://a.test/", "j", http=200, content_type="text/html"), html)


@pytest.mark.parametrize(
    ("selector", "way"),
    [
        ("h3 a::text", "node.text()"),
        ("a::attr(href)", "node.attributes['href']"),
        ("//a/@href", "no XPath"),
        ("a:contains('x')", ':lexbor-contains("x")'),
        ("a:first", "css_first"),
        ("a[", "not a CSS selector"),
        ("", "not a CSS selector"),
    ],
)
def test_a_selector_that_cannot_be_read_is_named_with_the_way(selector: str, way: str) -> None:
    """In `css` and in `css_first`."""
    for method in (page().css, page().css_first):
        with pytest.raises(ValueError, match="selector") as wrong:
            method(selector)
        assert repr(selector) in str(wrong.value)
        assert way in str(wrong.value)


@pytest.mark.parametrize("name", ["get", "getall", "extract", "extract_first", "xpath", "css", "text", "attrib", "re"])
def test_a_list_of_nodes_names_its_selector_where_one_node_is_meant(name: str) -> None:
    """Scrapy's lists have these methods, and selectolax's nodes have some."""
    with pytest.raises(AttributeError, match=rf"css\('a.x'\) is a list of nodes, and has no {name}: ") as wrong:
        getattr(page().css("a.x"), name)
    assert "css_first" in str(wrong.value)
    assert page().css("a.x") == page().css("a.x")[:1]
    assert not hasattr(page().css("a.x"), "nonsense")


@pytest.mark.parametrize(
    ("name", "way"),
    [("xpath", "css"), ("follow_all", "response.follow"), ("meta", "response.url"), ("selector", "response.tree")],
)
def test_what_scrapys_responses_have_is_named_with_the_way(name: str, way: str) -> None:
    """A page's dead letter says it; what nobody has is an AttributeError as ever."""
    with pytest.raises(AttributeError, match=f"response.{name}: .*{way}"):
        getattr(page(), name)
    with pytest.raises(AttributeError, match="'Response' object has no attribute 'nonsense'"):
        _ = page().nonsense  # type: ignore[attr-defined]  # mypy tells of it too


class Nested(Spider):
    """Has a selector in the wrong place."""

    def parse(self, response: Response) -> Any:
        """Asks a node, which crawlog does not make."""
        for node in response.css("a"):
            yield {"t": node.css("b::text")}


def test_a_selector_that_a_node_cannot_read_is_named_by_its_line() -> None:
    """The node is selectolax's own; its error says neither the selector nor the line."""
    with pytest.raises(ValueError, match=r"line \d+: .*node\.css\(\"b::text\"\)") as wrong:
        given(Nested(), b"<a>x</a>")
    assert "node.text()" in str(wrong.value)


def test_a_callback_as_second_argument_is_named() -> None:
    """Where it is made of something that the file does not show."""
    with pytest.raises(TypeError, match="no callbacks"):
        Request("/x", print)  # type: ignore[arg-type]  # which mypy would tell
