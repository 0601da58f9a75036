"""Rules for links, the hosts that a spider allows, forms: what Scrapy has classes for."""

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from crawlog import Request, Response, Rule, Spider
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import SpiderRef, load_runner
from crawlog.streams.url import domains_pattern
from tests.support.spiders import result_of

LINKS = b"""<nav><a href="/list?p=2">next</a></nav><div class=main><a href="/item/1">one</a><a href="/item/2#t">two</a>
<a href="http://sub.other.test/item/3">three</a><a href="/item/x.PDF">file</a><a href="mailto:x">m</a></div>"""


def page(body: bytes = LINKS, **meta: Any) -> Response:
    """A page of HTML."""
    return Response(PageMeta("http://a.test/", "j", http=200, content_type="text/html", **meta), body)


@pytest.mark.parametrize(
    ("rule", "urls"),
    [
        (Rule(), ["/list?p=2", "/item/1", "/item/2", "http://sub.other.test/item/3"]),
        (Rule("/item/"), ["/item/1", "/item/2", "http://sub.other.test/item/3"]),
        (Rule([r"p=\d$", re.compile("1$")]), ["/list?p=2", "/item/1"]),
        (Rule(deny=("item",)), ["/list?p=2"]),
        (Rule(allow_domains="other.test"), ["http://sub.other.test/item/3"]),
        (Rule(deny_domains=["other.test"], restrict_css=".main"), ["/item/1", "/item/2"]),
        (Rule(restrict_css="nav a"), ["/list?p=2"]),
        (Rule(restrict_xpath="//nav"), ["/list?p=2"]),
        (Rule(r"\.PDF$", deny_extensions=()), ["/item/x.PDF"]),
    ],
)
def test_a_rule_takes_links(rule: Rule, urls: list[str]) -> None:
    """By their absolute URL, or by where they stand; no files, no mail."""
    assert rule.urls(page()) == [url if url.startswith("http") else f"http://a.test{url}" for url in urls]


@pytest.mark.parametrize("bad", ["http://[bad", "http://a℀b/", "http://[::1"])
def test_a_link_that_is_no_url_is_not_taken(bad: str) -> None:
    """The other links of its page are."""
    assert Rule().urls(page(f'<a href="{bad}">bad</a><a href="/good">good</a>'.encode())) == ["http://a.test/good"]


class Shop(Spider):
    """Two rules, and no `parse`."""

    rules = (
        Rule("/item/", callback="parse_item", cb_kwargs={"kind": "item"}),
        Rule(r"p=\d+", restrict_css="nav"),
        Rule("list", callback="parse_list", follow=True),
    )

    def parse_item(self, response: Response, kind: str) -> Any:
        """One."""
        return {"url": response.url, "kind": kind}

    def parse_list(self, response: Response) -> Any:
        """Another, whose page is searched too."""
        return {"list": response.url}


def asked(body: bytes, **meta: Any) -> dict[str, RequestRecord | None]:
    """The requests of a page, by URL."""
    result = result_of(Shop(), body, **meta)
    assert result.error == "", result.trace
    return {one.url: one.request for one in result.requests}


def test_rules_give_a_spider_its_requests() -> None:
    """A link belongs to the first rule that takes it; a rule without callback costs a plain GET."""
    found = asked(LINKS + b"<a href=/list>l</a>")
    item = RequestRecord(callback="parse_item", kwargs={"kind": "item"})
    assert found["http://a.test/item/1"] == item
    assert found["http://a.test/list?p=2"] is None
    listed = RequestRecord(callback="parse_list", meta={"rule": 2})
    assert found["http://a.test/list"] == listed
    assert asked(LINKS, request=item) == {}
    assert "http://a.test/item/1" in asked(LINKS, request=listed)


@pytest.mark.parametrize(
    ("url", "is_taken"),
    [
        ("http://a.test/", True),
        ("https://www.a.test:8443/x", True),
        ("http://b.test?x", True),
        ("http://xa.test/", False),
        ("http://a.test.evil/", False),
        ("http://evil/?a.test/", False),
        ("http://evil/a.test", False),
        ("http://axtest/", False),
    ],
)
def test_allowed_domains_are_hosts_and_their_sub_domains(url: str, *, is_taken: bool) -> None:
    """As in Scrapy."""
    assert bool(re.search(domains_pattern(["a.test", "B.test"]), url)) is is_taken


FILE = """
from crawlog import Rule, Spider
class Shop(Spider):
    start_urls = ["http://a.test/"]
    {body}
    def parse(self, response): ...
"""


def facts(tmp_path: Path, body: str) -> Any:
    """The facts of a spider with these lines."""
    path = tmp_path / "shop.py"
    path.write_text(FILE.format(body=body))
    return load_runner(SpiderRef(str(path))).facts


def test_allowed_domains_become_the_scope(tmp_path: Path) -> None:
    """Unless the spider names a scope itself."""
    pattern = domains_pattern(["a.test"])
    given = facts(tmp_path, "allowed_domains = ['a.test']")
    types = {"fetch.content_types": ["*/*"]}  # of each spider with callbacks of its own
    assert given.settings == {"scope.kind": "any", "scope.include": [pattern]} | types
    given = facts(tmp_path, "allowed_domains = ['a.test']; settings = {'scope': 'host'}")
    assert given.settings == {"scope": "host"} | types


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("allowed_domains = 'a.test'", "it is a list of host names"),
        ("allowed_domains = ['http://a.test/']", "it is a list of host names"),
        ("rules = [Rule(callback='nowhere')]", "names the callback 'nowhere'; there is no such method"),
        ("rules = [('a', 'b')]", "it is a list of crawlog.Rule"),
    ],
)
def test_what_would_never_match_is_refused(tmp_path: Path, body: str, says: str) -> None:
    """Before anything is asked for."""
    with pytest.raises(Misconfigured, match=re.escape(says)):
        facts(tmp_path, body)


FORM = """<form action="/login" method=post id=f>
<input type=hidden name=csrf value=t0k3n><input name=user value=me><input type=password name=pass>
<input type=checkbox name=keep checked><input type=checkbox name=spam value=1><input type=radio name=r value=a>
<input type=radio name=r value=b checked><input name=off value=x disabled><input type=file name=up>
<select name=one><option>first<option value=2 selected>second</select><select name=many multiple><option selected>x
<option selected>y<option>z</select><textarea name=t>
text</textarea><button name=go value=1>Go</button><input type=submit name=no value=0></form>
<input name=far value=1 form=f><form action=?q=old><input name=q value=é></form>"""


def test_a_form_is_submitted_as_a_browser_does() -> None:
    """Hidden fields, what is checked and selected, and the first button; the given values replace the page's."""
    sent = page(FORM.encode()).submit({"user": "you", "pass": "p", "more": [1, 2]}, headers={"X-A": "1"})
    assert (sent.url, sent.method) == ("http://a.test/login", "POST")
    assert sent.headers["content-type"] == "application/x-www-form-urlencoded"
    assert sent.body.decode().split("&") == [
        "csrf=t0k3n", "keep=on", "r=b", "one=2", "many=x", "many=y", "t=text", "go=1", "far=1", "user=you", "pass=p",
        "more=1", "more=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("charset", "query"),
    [
        ("windows-1252", "q=%E9%26%23321%3B+x"),
        ("x-user-defined", "q=%26%23233%3B%26%23321%3B+x"),
        ("iso-8859-8-i", "q=%26%23233%3B%26%23321%3B+x"),
        ("x-mac-cyrillic", "q=%26%23233%3B%26%23321%3B+x"),
        ("windows-874", "q=%26%23233%3B%26%23321%3B+x"),
        ("iso-8859-2", "q=%E9%A3+x"),
        ("utf-16", "q=%C3%A9%C5%81+x"),
        ("utf-8", "q=%C3%A9%C5%81+x"),
    ],
)
def test_a_form_is_sent_in_the_encoding_of_its_page(charset: str, query: str) -> None:
    """As browsers do: what the encoding lacks as a reference, and UTF-16 as UTF-8."""
    meta = PageMeta("http://a.test/", "j", http=200, content_type=f"text/html; charset={charset}")
    body = "<form><input name=q></form>".encode("utf-16" if charset == "utf-16" else "ascii")
    assert Response(meta, body).submit({"q": "éŁ x"}).url == f"http://a.test/?{query}"


def test_a_form_says_itself_in_which_encoding_it_is_sent() -> None:
    """`accept-charset` counts before the page."""
    meta = PageMeta("http://a.test/", "j", http=200, content_type="text/html; charset=utf-8")
    response = Response(meta, b"<form accept-charset=windows-1251><input name=q></form>")
    assert response.submit({"q": "я"}).url == "http://a.test/?q=%FF"


def test_a_form_may_have_an_encoding_that_only_python_names() -> None:
    """Such as latin_1."""
    sent = Request("http://a.test/", form={"q": ["é", "Ł"], "n": 1}, encoding="latin_1")
    assert sent.body == b"q=%E9&q=%26%23321%3B&n=1"


def test_a_form_may_be_chosen_and_its_button_too() -> None:
    """By selectors; a form that is not posted is a query."""
    response = page(FORM.encode())
    assert b"no=0" in response.submit(click="[name=no]").body
    assert response.submit({"q": "x y"}, css="form:not([method])").url == "http://a.test/?q=x+y"
    for wrong in ({"css": "form.none"}, {"click": ".none"}):
        with pytest.raises(ValueError, match="has no"):
            response.submit(**wrong)  # type: ignore[arg-type]  # one of the two


class Counting(Spider):
    """Counts on one process."""

    seen: set[str]
    asked: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.count = 0
        self.seen = set()

    def parse(self, response: Response) -> Any:
        """Shares a list, and changes attributes."""
        self.count += 1
        self.seen.add(response.url)
        self.asked.append(response.url)
        shared: list[int] = []
        for url in ("/1", "/2"):
            yield response.follow(url, "parse", meta={"all": shared, "url": [url]})


def test_what_counts_on_one_process_is_warned_of() -> None:
    """By name, once."""
    warnings = result_of(Counting()).warnings
    assert [warning.partition(":")[2].strip().partition(":")[0] for warning in warnings] == [
        "the list meta['all'] is in several requests",
        "a callback changes self.asked",
        "a callback changes self.count",
        "a callback changes self.seen",
    ]


@pytest.mark.parametrize("domains", [{"b.test", "a.test", "c.test"}, frozenset({"c.test", "b.test", "a.test"})])
def test_equal_sets_of_domains_give_one_scope(domains: set[str] | frozenset[str]) -> None:
    """Each process has another order of a set, and a job is there already only under the same settings."""
    assert domains_pattern(domains) == domains_pattern(["a.test", "b.test", "c.test"])
