"""Habits of Scrapy's users: what crawlog does not have is refused at load time, with the way to do it here."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crawlog import Request, Response, Spider
from crawlog.schemas.pages import PageMeta
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import known_keys
from crawlog.streams.spiders import scrapy_names
from tests.support.spiders import given, load_spider, result_of

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
        ("    custom_settings = {'DOWNLOAD_DELAY': 2}", 'settings = {"politeness.delay_s": 2}'),
        ("    def start_requests(self): yield R('/x')", "write it as `start`"),
        ("    @classmethod\n    def from_crawler(cls, crawler): return cls()", "__init__"),
        ("    def __init__(self): self.download_delay = 3", "politeness.delay_s"),
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


def test_all_names_are_told_at_once(tmp_path: Path) -> None:
    """Whoever brings a spider from Scrapy changes it once."""
    said = refusal(tmp_path, f"{GOOD}    custom_settings = {{}}\n    download_delay = 1\n").splitlines()
    assert [line.partition(" does nothing here: ")[0].strip() for line in said[1:]] == [
        "Books.custom_settings",
        "Books.download_delay",
    ]


def test_a_spider_with_names_of_its_own_is_taken(tmp_path: Path) -> None:
    """An attribute `closed` need not be a method."""
    source = GOOD + "    closed = False\n    def follow(self, callback): return callback\n"
    path = tmp_path / "books.py"
    path.write_text(source)
    assert load_spider(str(path)).path == f"{path}:Books"


def test_the_ways_name_settings_that_there_are() -> None:
    """A hint that names another one would be worse than none."""
    ways = " ".join(scrapy_names.OF_SPIDER.values())
    sections = {key.partition(".")[0] for key in known_keys()}
    named = {word.strip("`\"':{},;()") for word in ways.split()}
    keys = {word for word in named if word.partition(".")[0] in sections and "." in word}
    assert len(keys) > 3
    assert keys <= known_keys().keys()


def page(html: bytes = b"<a class=x href=/y>t</a><a>u</a>") -> Response:
    """A page that was fetched."""
    return Response(PageMeta("http://a.test/", "j", http=200, content_type="text/html"), html)


@pytest.mark.parametrize("query", ["a[", "a::first"])
def test_a_selector_that_cannot_be_read_is_an_error_of_its_line(query: str) -> None:
    """It is named."""
    with pytest.raises(ValueError, match=re.escape(f"the selector {query!r} cannot be read")):
        page().css(query)


@pytest.mark.parametrize(("name", "way"), [("css_first", "response.css"), ("certificate", "not stored")])
def test_what_a_response_lacks_is_named_with_the_way(name: str, way: str) -> None:
    """A page's dead letter says it; what nobody has is an AttributeError as ever."""
    with pytest.raises(AttributeError, match=f"response.{name}: .*{way}"):
        getattr(page(), name)
    with pytest.raises(AttributeError, match="'Response' object has no attribute 'nonsense'"):
        _ = page().nonsense  # type: ignore[attr-defined]  # mypy tells of it too


class Nested(Spider):
    """Has a selector in the wrong place."""

    def parse(self, response: Response) -> Any:
        """Asks a node, which crawlog does not make."""
        for node in response.tree.css("a"):
            yield {"t": node.css("b::text")}


def test_a_selector_that_a_node_cannot_read_is_named_by_its_line() -> None:
    """The node is selectolax's own; its error says neither the selector nor the line."""
    with pytest.raises(Exception, match="selector"):
        given(Nested(), b"<a>x</a>")
    result = result_of(Nested(), b"<a>x</a>")
    assert re.match(r"ValueError: line \d+: .*node\.css\(\"b::text\"\)", result.error)
    assert "node.text()" in result.error


def test_a_function_as_callback_is_named() -> None:
    """Where the request is made: the page comes to another process."""
    for function in (print, lambda _: None, partial(print)):
        with pytest.raises(TypeError, match="a method of the spider"):
            Request("/x", function)
