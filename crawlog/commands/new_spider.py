"""`crawlog init` and `genspider`: folders and files to begin with. No file is overwritten."""

import re
from pathlib import Path

from crawlog.streams.errors import Misconfigured

# By path.
PROJECT = {
    "crawlog.toml": """# Settings of this folder; `crawlog settings` lists all of them.

[politeness]
delay_s = 1.0 # rest between two requests to one host
""",
    "spiders/.gitkeep": "",
    "tests/pages/.gitkeep": "",
    "README.md": """Spiders for crawlog.

    crawlog genspider shop shop.example          # a spider, and its test
    crawlog shell https://shop.example/          # try selectors
    crawlog parse --spider spiders/shop.py https://shop.example/
    crawlog run --spider spiders/shop.py -o shop.jsonl
    crawlog fetch https://shop.example/item/1 --save tests/pages/item.page   # a page for tests
    pytest
""",
    ".gitignore": ".crawlog/\n",
}

_BASIC = '''"""@KIND@: what it takes."""

from collections.abc import Iterator
from typing import Any

from crawlog import Request, Response, Spider


class @KIND@(Spider):
    name = "@NAME@"
    allowed_domains = ("@HOST@",)
    start_urls = ("@ORIGIN@/",)
    settings = {"politeness.delay_s": 1.0}

    def parse(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """A list: its entries, and the next page."""
        for link in response.css("article a[href], li a[href]"):
            yield response.follow(link, self.parse_item, cb_kwargs={"text": link.css("::text").get()})
        yield from response.follow_all(css="a[rel=next], a.next", callback=self.parse)

    def parse_item(self, response: Response, text: str | None) -> Iterator[dict[str, Any]]:
        """One entry."""
        yield {"url": response.url, "text": text, "title": response.css("h1::text").get()}
'''

_RULES = '''"""@KIND@: links by rules."""

from collections.abc import Iterator
from typing import Any

from crawlog import Response, Rule, Spider


class @KIND@(Spider):
    name = "@NAME@"
    allowed_domains = ("@HOST@",)
    start_urls = ("@ORIGIN@/",)
    settings = {"politeness.delay_s": 1.0}
    rules = (
        Rule(r"/item/", callback="parse_item"),  # pages to take
        Rule(deny=(r"/login", r"/cart")),  # pages to search for more links
    )

    def parse_item(self, response: Response) -> Iterator[dict[str, Any]]:
        """One page that the first rule took."""
        yield {"url": response.url, "title": response.css("h1::text").get()}
'''

_SITEMAP = '''"""@KIND@: the pages that a sitemap lists."""

from collections.abc import Iterator
from typing import Any

from crawlog import Request, Response, Spider


class @KIND@(Spider):
    name = "@NAME@"
    allowed_domains = ("@HOST@",)
    settings = {"politeness.delay_s": 1.0}

    def start(self) -> Iterator[Request]:
        """The sitemap."""
        yield Request("@ORIGIN@/sitemap.xml", self.parse_sitemap)

    def parse_sitemap(self, response: Response) -> Iterator[Request]:
        """A sitemap, or an index of sitemaps."""
        for kind, callback in (("sitemap", self.parse_sitemap), ("url", self.parse)):
            places = response.xpath("//*[local-name()=$kind]/*[local-name()='loc']/text()", kind=kind)
            yield from response.follow_all(places, callback)

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """A page."""
        yield {"url": response.url, "title": response.css("title::text").get()}
'''

_LOGIN = '''"""@KIND@: pages behind a login form. Run it with -a user=… -a password=… """

from collections.abc import Iterator
from typing import Any

from crawlog import Request, Response, Spider


class @KIND@(Spider):
    name = "@NAME@"
    allowed_domains = ("@HOST@",)
    settings = {"politeness.delay_s": 1.0, "fetch.cookies": True}

    def __init__(self, user: str = "", password: str = "") -> None:
        self.user, self.password = user, password

    def start(self) -> Iterator[Request]:
        """The page with the form."""
        yield Request("@ORIGIN@/login", self.log_in)

    def log_in(self, response: Response) -> Request:
        """Submits the form, with its hidden fields. `once`: a kill never posts it twice."""
        return response.submit({"username": self.user, "password": self.password}, self.logged_in, once=True)

    def logged_in(self, response: Response) -> Iterator[Request]:
        """The first page as a user."""
        if response.css("form input[type=password]"):
            raise ValueError("the login failed")
        yield response.follow("/", self.parse, dont_filter=True)

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """A page."""
        yield {"url": response.url, "title": response.css("title::text").get()}
'''

_API = '''"""@KIND@: an API that answers with JSON, page by page."""

from collections.abc import Iterator
from typing import Any

from crawlog import Request, Response, Spider


class @KIND@(Spider):
    name = "@NAME@"
    allowed_domains = ("@HOST@",)
    settings = {"politeness.delay_s": 1.0}

    def start(self) -> Iterator[Request]:
        """The first page. A POST: Request(url, self.parse_page, json={"page": 1})."""
        yield Request("@ORIGIN@/api/items?page=1", self.parse_page, headers={"Accept": "application/json"})

    def parse_page(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """A page of items."""
        page = response.json()
        yield from page["items"]
        if page.get("has_next"):
            url = f"@ORIGIN@/api/items?page={page['page'] + 1}"
            yield Request(url, self.parse_page, headers={"Accept": "application/json"})
'''

_PYSPIDER = '''"""@KIND@: each comment is the counterpart in pyspider; docs/from-pyspider.md has more."""

from collections.abc import Iterator
from typing import Any

from crawlog import Request, Response, Spider, every


class @KIND@(Spider):  # class Handler(BaseHandler):
    name = "@NAME@"  # the project's name
    allowed_domains = ("@HOST@",)  # pyspider asks every host that a page names
    age = "10d"  # crawl_config = {"age": 10 * 24 * 60 * 60}, auto_recrawl: older pages are asked for again
    settings = {"politeness.delay_s": 1.0}  # rate: 1.0, burst: 1; crawl_config = {…}

    @every(days=1)  # @every(minutes=24 * 60)
    def start(self) -> Iterator[Request]:  # def on_start(self):
        """The first requests, once a day."""
        # self.crawl("@ORIGIN@/", callback=self.index_page, age=24 * 60 * 60)
        yield Request("@ORIGIN@/", self.index_page, age="1d")

    def index_page(self, response: Response) -> Iterator[Request]:
        """A page of links."""
        for link in response.css("a[href]"):  # for each in response.doc("a[href]").items():
            # self.crawl(each.attr.href, callback=self.detail_page, priority=2, save={"text": each.text()})
            yield response.follow(link, self.detail_page, priority=2, cb_kwargs={"text": link.css("::text").get()})

    def detail_page(self, response: Response, text: str | None) -> Iterator[dict[str, Any]]:
        """A page to keep."""
        # return {"url": response.url, "text": response.save["text"], "title": response.doc("title").text()}
        yield {"url": response.url, "text": text, "title": response.css("title::text").get()}
'''

# The file of a spider, by template.
SPIDERS = {
    "basic": _BASIC,
    "rules": _RULES,
    "sitemap": _SITEMAP,
    "login": _LOGIN,
    "api": _API,
    "pyspider": _PYSPIDER,
}

_HTML = '{"v":1,"url":"@ORIGIN@/","job":"test","http":200,"content_type":"text/html; charset=utf-8"}\n'

# The page of a test, by template: as `crawlog fetch --save` writes it.
PAGES = {
    "basic": (
        _HTML + "<h1>Items</h1><ul><li><a name=top></a>"
        '<a href="/item/1">one</a></ul><a class=next href="/?page=2">next</a>\n'
    ),
    "rules": _HTML + '<h1>Items</h1><a href="/item/1">one</a><a href="/more">more</a><a href="/login">log in</a>\n',
    "sitemap": (
        '{"v":2,"url":"@ORIGIN@/sitemap.xml","job":"test","http":200,"content_type":"application/xml",'
        '"request":{"callback":"parse_sitemap"}}\n'
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>@ORIGIN@/item/1</loc></url></urlset>\n'
    ),
    "login": (
        '{"v":2,"url":"@ORIGIN@/login","job":"test","http":200,"content_type":"text/html",'
        '"request":{"callback":"log_in"}}\n'
        '<form action="/login" method=post><input type=hidden name=csrf value=t><input name=username>'
        "<input type=password name=password></form>\n"
    ),
    "pyspider": (
        '{"v":2,"url":"@ORIGIN@/","job":"test","http":200,"content_type":"text/html",'
        '"request":{"callback":"index_page"}}\n'
        '<h1>Items</h1><a href="/item/1">one</a>\n'
    ),
    "api": (
        '{"v":2,"url":"@ORIGIN@/api/items?page=1","job":"test","http":200,"content_type":"application/json",'
        '"request":{"callback":"parse_page"}}\n'
        '{"items": [{"id": 1}], "page": 1, "has_next": true}\n'
    ),
}

# The file of a test.
TEST = '''"""@KIND@ on stored pages: `crawlog fetch URL --save tests/pages/NAME.page` adds one."""

from pathlib import Path

from crawlog import try_page

HERE = Path(__file__).parent
SPIDER = HERE.@SPIDER@ / "@NAME@.py"


def test_a_page_gives_items_or_requests() -> None:
    """Replace this by what the page must give."""
    tried = try_page(SPIDER, HERE / "pages" / "@NAME@.page")
    assert tried.items or tried.requests
    assert all(url.startswith("@ORIGIN@/") for url in tried.urls)
'''


_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_DOMAIN = re.compile(r"(?:https?://)?([A-Za-z0-9.-]+(?::\d+)?)(/\S*)?")


def new_project(folder: Path) -> list[Path]:
    """The files of a new folder for spiders. Raises: Misconfigured: it holds files already, or cannot be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Misconfigured(f"{folder} is there already; name a new folder")
    written = []
    for name, text in PROJECT.items():
        written.append(_write(folder / name, text))
    return written


def new_spider(folder: Path, name: str, domain: str, template: str) -> tuple[Path, Path]:
    """The file of a new spider, and its test.

    Args:
        folder: Its sub-folders `spiders` and `tests` are used, where they are.
        domain: A host, or a URL.

    Raises: Misconfigured: a name is wrong, or a file is there already.
    """
    if template not in SPIDERS:
        raise Misconfigured(f"-t {template}: there are {', '.join(SPIDERS)}")
    if not _NAME.fullmatch(name):
        raise Misconfigured(f"{name!r}: a spider's name is lower case letters, digits and _, such as `books`")
    found = _DOMAIN.fullmatch(domain)
    if found is None:
        raise Misconfigured(f"{domain!r}: name a host such as shop.example, or its URL")
    spiders = folder / "spiders" if (folder / "spiders").is_dir() else folder
    kind = "".join(part.title() for part in name.split("_"))
    scheme = "http" if domain.startswith("http://") else "https"
    host = found[1].lower()
    filled = {"NAME": name, "KIND": kind, "HOST": host.partition(":")[0], "ORIGIN": f"{scheme}://{host}"}
    spider, test = spiders / f"{name}.py", folder / "tests" / f"test_{name}.py"
    page = folder / "tests" / "pages" / f"{name}.page"
    for path in (spider, test, page):
        if path.exists():
            raise Misconfigured(f"{path} is there already; it is not overwritten")
    filled["SPIDER"] = "parent / 'spiders'" if spiders != folder else "parent"
    _write(page, _filled(PAGES[template], filled))
    return _write(spider, _filled(SPIDERS[template], filled)), _write(test, _filled(TEST, filled))


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from None
    return path
