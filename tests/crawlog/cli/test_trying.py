"""`crawlog fetch`, `parse`, `shell`, `init` and `genspider`: what a page gives, without a crawl."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from crawlog import try_page
from crawlog.cli.main import main
from crawlog.commands.new_spider import SPIDERS
from crawlog.streams.spiders import SpiderRef, load_runner
from tests.support.crawls import Numbered, data, run, site, there
from tests.support.processes import ended
from tests.support.sites import Answer, Threaded

__all__ = ["data", "site", "there"]  # fixtures

PRIVATE = ("-s", "network.allow_private=true", "-s", "politeness.delay_s=0")

PAGES: dict[str, Answer] = {
    "/": (200, "text/html", b"<h1>List</h1><a class=x href=/1>one</a>"),
    "/1": (200, "text/html; charset=utf-8", "<h1>Öne</h1>".encode()),
    "/secret": (200, "text/html", b"<h1>no</h1>"),
    "/robots.txt": (200, "text/plain", b"User-agent: *\nDisallow: /secret\n"),
}

SPIDER = """
from crawlog import Request, Spider

class Books(Spider):
    start_urls = ["http://a.test/"]

    def __init__(self, tag="a"):
        self.tag = tag

    def parse(self, response):
        yield {"title": response.css("h1::text").get(), "tag": self.tag}
        yield response.follow(response.css("a.x")[0], self.parse_item, cb_kwargs={"n": (1, 2)})
        yield Request("/plain", priority=3)

    def parse_item(self, response, n):
        self.last = n
        yield {"n": n[0], "title": response.css("h1::text").get()}

    def broken(self, response):
        1 / 0
"""


class Said(NamedTuple):
    """What a command left behind."""

    code: object
    out: str
    err: str


@pytest.fixture
def crawlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Said]:
    """One command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CRAWLOG_")]:
        monkeypatch.delenv(name)
    (tmp_path / "books.py").write_text(SPIDER)

    def called(*args: str) -> Said:
        with pytest.raises(SystemExit) as end:
            main(list(args))
        out, err = capfdbinary.readouterr()
        return Said(end.value.code, out.decode(), err.decode())

    return called


@pytest.fixture
def web() -> Iterator[str]:
    """The origin of a small site."""
    served = Threaded(lambda path: PAGES.get(path, (404, "text/html", b"<h1>none</h1>")))
    yield served.origin
    served.close()


def test_fetch_prints_the_body(crawlog: Callable[..., Said], web: str) -> None:
    """The body alone on standard output; an error status is an exit code."""
    said = crawlog("fetch", f"{web}/1", *PRIVATE)
    assert (said.code, said.out) == (0, "<h1>Öne</h1>")
    assert f"200 {web}/1" in said.err
    assert "text/html; charset=utf-8" in crawlog("fetch", f"{web}/1", "--headers", *PRIVATE).out
    missing = crawlog("fetch", f"{web}/none", *PRIVATE)
    assert (missing.code, missing.out) == (6, "<h1>none</h1>")


def test_what_a_crawl_may_not_ask_for_is_not_asked_for(crawlog: Callable[..., Said], web: str) -> None:
    """Robots.txt, and the egress guard."""
    said = crawlog("fetch", f"{web}/secret", *PRIVATE)
    assert (said.code, said.out) == (2, "")
    assert "robots.txt forbids it" in said.err
    assert crawlog("fetch", f"{web}/secret", *PRIVATE, "-s", "robots.obey=false").out == "<h1>no</h1>"
    guarded = crawlog("fetch", f"{web}/1", "-s", "robots.obey=false")
    assert (guarded.code, guarded.out) == (6, "")
    assert "private_address" in guarded.err


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("http://127.0.0.1:8000/", "-s network.allow_private=true"),
        ("http://169.254.169.254/", ""),
        ("http://127.0.0.1:25/", ""),
        ("http://x.invalid/", "-s robots.obey=false"),
    ],
)
def test_an_unread_robots_txt_is_told_with_the_setting_that_helps(
    crawlog: Callable[..., Said], url: str, setting: str
) -> None:
    """A page that the egress guard refuses is not asked for without its robots.txt either."""
    said = crawlog("fetch", url)
    assert (said.code, "its robots.txt cannot be read" in said.err) == (2, True)
    assert said.err.partition("; ")[2].startswith(setting)
    assert bool(setting) == ("; -s " in said.err)


def test_parse_shows_what_a_spider_makes_of_a_page(crawlog: Callable[..., Said], web: str) -> None:
    """Items, then requests with their callbacks; one callback alone; the error with its traceback."""
    said = crawlog("parse", "--spider", "books.py", "-a", "tag=b", f"{web}/", *PRIVATE)
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        "{", '  "title": "List",', '  "tag": "b"', "}",
        f'GET {web}/1  -> parse_item  {{"n":{{"$tuple":[1,2]}}}}',
        f"GET {web}/plain  priority 3",
    ]  # fmt: skip
    assert "1 items, 2 requests" in said.err
    one = crawlog("parse", "--spider", "books.py", "-c", "parse_item", "--cb-kwargs", '{"n": [5]}', "--json",
                  f"{web}/1", *PRIVATE)  # fmt: skip
    assert json.loads(one.out)["items"] == [{"n": 5, "title": "Öne"}]
    assert "a callback changes self.last" in one.err
    broken = crawlog("parse", "--spider", "books.py", "-c", "broken", f"{web}/1", *PRIVATE)
    assert broken.code == 4
    assert "the callback fails: ZeroDivisionError" in broken.err
    assert "books.py" in broken.err


@pytest.mark.parametrize("name", ["books.py", "scraped.py"])
def test_a_callback_that_the_spider_lacks_is_told(crawlog: Callable[..., Said], name: str) -> None:
    """It is a slip of the user, not another version of the spider."""
    Path("asked.page").write_bytes(ASKED)
    Path("scraped.py").write_text("import scrapy\nclass Scraped(scrapy.Spider):\n    name = 'scraped'\n")
    said = crawlog("parse", "--spider", name, "-c", "parse_itme", "asked.page")
    assert (said.code, "has no method parse_itme" in said.err) == (2, True), said.err


def test_parse_says_where_a_crawl_would_do_otherwise(crawlog: Callable[..., Said], web: str) -> None:
    """A status that no callback gets, a type that is not kept."""
    said = crawlog("parse", "--spider", "books.py", f"{web}/none", *PRIVATE)
    assert "status 404: no page for a callback; see handle_httpstatus_list" in said.err
    item = ("-c", "parse_item", "--cb-kwargs", '{"n": [1]}')
    said = crawlog("parse", "--spider", "books.py", *item, f"{web}/robots.txt", *PRIVATE)
    assert "fetch.content_types" not in said.err, "a crawl keeps what the spider asks for"
    html = ("-s", "fetch.content_types=text/html")
    said = crawlog("parse", "--spider", "books.py", *item, f"{web}/robots.txt", *PRIVATE, *html)
    assert "of links that it only finds a crawl keeps no body of type text/plain: see fetch.content_types" in said.err


def test_a_saved_page_is_parsed_without_a_request(crawlog: Callable[..., Said], web: str, tmp_path: Path) -> None:
    """On the command line, and in a test."""
    assert crawlog("fetch", f"{web}/1", "--save", "one.page", *PRIVATE).code == 0
    said = crawlog("parse", "--spider", "books.py", "-c", "parse_item", "--cb-kwargs", '{"n": [5]}', "one.page")
    assert json.loads(said.out) == {"n": 5, "title": "Öne"}
    tried = try_page(tmp_path / "books.py", tmp_path / "one.page", "parse_item", n=(7,))
    assert tried.items == [{"n": 7, "title": "Öne"}]
    with pytest.raises(ZeroDivisionError):
        try_page(tmp_path / "books.py", tmp_path / "one.page", "broken")


ASKED = (
    b'{"v":2,"url":"http://a.test/1","job":"test","http":200,"content_type":"text/html",'
    b'"request":{"callback":"parse_item","kwargs":{"n":[5]}}}\n<h1>one</h1><a class=x href=/2>'
)


async def test_a_page_is_tried_where_a_loop_runs(tmp_path: Path) -> None:
    """In a notebook, and in an async test."""
    (tmp_path / "asked.page").write_bytes(ASKED)
    (tmp_path / "books.py").write_text(SPIDER)
    assert try_page(tmp_path / "books.py", tmp_path / "asked.page").items == [{"n": 5, "title": "one"}]


def test_the_pages_own_request_says_what_is_not_given(crawlog: Callable[..., Said], tmp_path: Path) -> None:
    """Its callback where only arguments are given, its arguments where only the callback is."""
    Path("asked.page").write_bytes(ASKED)
    spider = tmp_path / "books.py"
    assert try_page(spider, "asked.page", n=(7,)).items == [{"n": 7, "title": "one"}]
    assert try_page(spider, "asked.page", "parse_item").items == [{"n": 5, "title": "one"}]
    assert try_page(spider, "asked.page", "parse").items == [{"title": "one", "tag": "a"}]
    said = crawlog("parse", "--spider", "books.py", "--cb-kwargs", '{"n": [8]}', "asked.page")
    assert json.loads(said.out) == {"n": 8, "title": "one"}


def test_a_page_that_was_not_modified_is_one_for_a_callback(crawlog: Callable[..., Said]) -> None:
    """It has the older page's body."""
    Path("same.page").write_bytes(ASKED.replace(b'"http":200', b'"http":304,"same_as":[0,1]'))
    said = crawlog("parse", "--spider", "books.py", "same.page")
    assert json.loads(said.out) == {"n": 5, "title": "one"}
    assert "no page for a callback" not in said.err


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
        return item

class Piped(Spider):
    pipelines = [Clean]

    def parse(self, response):
        yield Book(response.css("h1::text").get(), date(2026, 1, 2))
"""


def test_items_for_pipelines_are_shown_as_rows(crawlog: Callable[..., Said], tmp_path: Path) -> None:
    """Not with the tags with which they travel."""
    Path("asked.page").write_bytes(ASKED)
    Path("piped.py").write_text(PIPED)
    row = {"title": "one", "day": "2026-01-02"}
    assert try_page(tmp_path / "piped.py", "asked.page", "parse").items == [row]
    said = crawlog("parse", "--spider", "piped.py", "-c", "parse", "--json", "asked.page")
    assert json.loads(said.out)["items"] == [row]


@pytest.mark.parametrize("has_ipython", [True, False])
def test_shell_has_the_response(
    crawlog: Callable[..., Said], web: str, *, has_ipython: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With selectors, `follow` and `fetch`; IPython where it is installed."""
    line = "fetch(response.follow(response.css('a.x')[0])).css('h1::text').get()"
    said = crawlog("shell", f"{web}/", "-c", line, *PRIVATE)
    assert (said.code, said.out) == (0, "'Öne'\n")
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    if has_ipython:
        (tmp_path / "IPython.py").write_text("def start_ipython(argv, user_ns): print(user_ns['response'])\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert crawlog("shell", f"{web}/", *PRIVATE).out == f"<200 {web}/>\n"
        return
    monkeypatch.setitem(sys.modules, "IPython", None)
    met: list[Any] = []
    monkeypatch.setattr("code.interact", lambda *banner, **named: met.extend((*banner, named["local"]["response"])))
    assert crawlog("shell", f"{web}/", *PRIVATE).code == 0
    assert f"<200 {web}/>" in met[0]
    assert met[1].css("h1::text").get() == "List"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1 / 0", "-c: ZeroDivisionError: division by zero\n  1 / 0"),
        ("n = 0\nfor _ in 'a':\n    1 / n", "-c: ZeroDivisionError: division by zero\n  1 / n"),
        (
            "import json\njson.loads('')",
            "-c: JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n  json.loads('')",
        ),
        ("a = 1\nb = (", "-c: SyntaxError: '(' was never closed (<shell>, line 2)\n  b = ("),
        ("compile('(', 'x', 'eval')", "-c: SyntaxError: '(' was never closed (x, line 1)\n  compile('(', 'x', 'eval')"),
        ("fetch('a.test')", "-c: InvalidUrl: not a URL: 'a.test'\n  fetch('a.test')"),
        ("fetch('http://127.0.0.1:1/')", "http://127.0.0.1:1/: its robots.txt cannot be read"),
    ],
)
def test_an_error_of_the_code_of_shell_is_no_bug_of_ours(crawlog: Callable[..., Said], line: str, told: str) -> None:
    """It is told with its line; an error of `fetch` says itself what is wrong."""
    said = crawlog("shell", "-c", line)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"crawlog: {told}")
    assert "internal error" not in said.err


def test_new_spiders_load_and_their_tests_pass(crawlog: Callable[..., Said], tmp_path: Path) -> None:
    """One of each template; nothing is overwritten."""
    assert crawlog("init", "shop").code == 0
    os.chdir(tmp_path / "shop")
    assert crawlog("settings").code == 0  # the settings file is read
    tests = []
    for template in SPIDERS:
        said = crawlog("genspider", f"old_{template}", "shop.example", "-t", template)
        assert said.code == 0, said.err
        spider, test = said.out.splitlines()
        facts: Any = load_runner(SpiderRef(spider)).facts
        assert facts.label.startswith(f"old_{template}@")
        assert "scope.include" in facts.settings
        tests.append(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=tmp_path / "shop", capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(tests)} passed" in done.stdout
    again = crawlog("genspider", "old_basic", "shop.example")
    assert (again.code, "is not overwritten" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("genspider", "Old-Books", "a.test"), "lower case letters"),
        (("genspider", "books", "a test"), "name a host"),
        (("genspider", "books", "a.test", "-t", "none"), "there are basic, rules, sitemap, login, api, pyspider"),
        (("init", "."), "is there already"),
        (("parse", "--spider", "none.py", "http://a.test/"), "none.py"),
        (("fetch", "a.test"), "did you mean https://a.test/"),
    ],
)
def test_a_wrong_word_is_one_clear_error(crawlog: Callable[..., Said], args: tuple[str, ...], says: str) -> None:
    """With the way out."""
    said = crawlog(*args)
    assert said.code == 2
    assert says in said.err


@pytest.mark.broker
@pytest.mark.slow
def test_stored_pages_are_parsed_without_a_request(
    crawlog: Callable[..., Said], site: Numbered, data: Path, there: list[str]
) -> None:
    """The newest page of the URL in the log; the site is asked for nothing more."""
    assert ended(run(site, data, "--max-pages", 3, *there))[0] == 0
    asked = sum(site.asked.values())
    log = ("--data", str(data), *there)
    said = crawlog("parse", "--spider", "books.py", "-c", "parse_item", "--cb-kwargs", '{"n": [1]}', "--stored",
                   site.url, *log)  # fmt: skip
    assert json.loads(said.out) == {"n": 1, "title": None}
    shown = crawlog("shell", "--stored", site.url, "-c", "response.css('title::text').get()", *log)
    assert (shown.code, shown.out) == (0, "'1'\n")
    saved = crawlog("fetch", "--stored", site.url, *log)
    assert saved.out.startswith("<html><title>1</title>")
    unknown = crawlog("fetch", "--stored", f"{site.origin}/none", *log)
    assert (unknown.code, "the log has no page of it" in unknown.err) == (2, True)
    assert sum(site.asked.values()) == asked


def test_a_file_that_is_no_page_is_named(crawlog: Callable[..., Said], tmp_path: Path) -> None:
    """It is no bug of crawlog."""
    (tmp_path / "notes.md").write_text("# Notes\n")
    with pytest.raises(ValueError, match=r"notes\.md is no page; `crawlog fetch URL --save .*notes\.md` makes one"):
        try_page(tmp_path / "books.py", tmp_path / "notes.md")
    said = crawlog("fetch", str(tmp_path / "notes.md"))
    assert (said.code, "notes.md is no page; `crawlog fetch URL --save" in said.err) == (2, True)
