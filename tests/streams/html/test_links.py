"""Links of pages: against an oracle for real pages, against Scrapy's cases, and by rule."""

import base64
import gzip
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.urls import CanonicalRules
from crawlog.streams.html import tree
from crawlog.streams.html.extract import extracted
from crawlog.streams.html.links import MEMORABLE_CHARS, Links
from crawlog.streams.html.tree import readings, thinned
from crawlog.streams.settings import Settings
from crawlog.streams.url.canonical import Canonicaliser, InvalidUrl, plain, serialise
from crawlog.streams.url.place import Places

URL = "http://site.test/dir/page.html?q=1"


def links(cached: int = 1000) -> Links:
    """A resolver that drops no parameter."""
    return Links(Canonicaliser(CanonicalRules(drop_params=())), Places(8), cached)


def found(
    html: str | bytes, url: str = URL, sources: tuple[str, ...] = ("a", "area"), content_type: str = ""
) -> list[str]:
    """The links of a page."""
    page = extracted(html if isinstance(html, bytes) else html.encode(), content_type, url, sources)
    return [link.url for link in links().resolve(page.base, page.hrefs)]


def test_real_pages_have_the_oracles_links(testdata: Path) -> None:
    """The exact set, on every page."""
    folder = testdata / "pages"
    oracle = json.loads((folder / "links_oracle.json").read_text(encoding="utf-8"))
    wrong = []
    for case in oracle:
        body = gzip.decompress((folder / case["file"]).read_bytes())
        if sorted(found(body, case["page_url"])) != sorted(case["links"]):
            wrong.append(case["file"])
    assert len(oracle) > 150
    assert wrong == []


def test_scrapys_plain_cases_have_scrapys_links(testdata: Path) -> None:
    """Extractors without arguments: the same URLs, as WHATWG spells them, in the same order."""
    cases = json.loads((testdata / "links-scrapy" / "linkextractor_cases.json").read_text(encoding="utf-8"))
    asked, wrong = 0, []
    for case in cases:
        if (
            case["extractor_args"]
            or case["extractor_kwargs"]
            or case["error"]
            or case["response_type"] != "HtmlResponse"
        ):
            continue
        wanted = list(dict.fromkeys(filter(None, (spelled(link["url"]) for link in case["links"]))))
        asked += 1
        got = found(
            base64.b64decode(case["body_base64"]), case["url"], content_type=f"text/html; charset={case['encoding']}"
        )
        if [url for url in got if url in wanted] != wanted:
            wrong.append((case["test"], wanted, got))
    assert asked > 5
    assert len(wrong) <= 0.02 * asked, wrong


def spelled(url: str) -> str | None:
    """As WHATWG spells it."""
    try:
        return serialise(url)
    except InvalidUrl:
        return None


@pytest.mark.parametrize(
    ("html", "urls"),
    [
        ("<a href=x>", ["http://site.test/dir/x"]),
        ("<a href=' x\n'>", ["http://site.test/dir/x"]),
        ("<a href='a\nb'>", ["http://site.test/dir/ab"]),
        (
            "<a href=/x><a href=//other.test/y><a href=../z>",
            ["http://site.test/x", "http://other.test/y", "http://site.test/z"],
        ),
        ("<a href=?a=1><a href='#top'><a href=''>", ["http://site.test/dir/page.html?a=1", URL]),
        ("<a href=x#a><a href=x#b><a href=x>", ["http://site.test/dir/x"]),
        ("<a href=mailto:a@b><a href=javascript:x><a href=ftp://a/><a href='http://[/'><a>", []),
        ("<a href=x rel=nofollow>", ["http://site.test/dir/x"]),
        ("<area href=b><a href=a>", ["http://site.test/dir/b", "http://site.test/dir/a"]),
        ("<base href=/other/><a href=x>", ["http://site.test/other/x"]),
        ("<a href=x><base><base href=http://b.test/1/><base href=/2/>", ["http://b.test/1/x"]),
        ("<base href='javascript:1'><a href=x>", ["http://site.test/dir/x"]),
        ("<svg><base href=/other/></svg><a href=x>", ["http://site.test/dir/x"]),
        ("<svg><g><base href=/other/></g></svg><base href=/1/><a href=x>", ["http://site.test/1/x"]),
        ("<math><base href=/other/></math><a href=x>", ["http://site.test/dir/x"]),
        ("<svg><foreignObject><base href=/1/></foreignObject></svg><a href=x>", ["http://site.test/1/x"]),
        ("<math><mi><base href=/1/></mi></math><a href=x>", ["http://site.test/1/x"]),
        ("<template><base href=/other/></template><a href=x>", ["http://site.test/dir/x"]),
        ("<base href=/other/>" * 3 + "<a href=x>", ["http://site.test/other/x"]),
        ("<base href><base href=/other/><a href=x>", ["http://site.test/dir/x"]),
        ("<base href='data:text/html,y'><a href=x>", ["http://site.test/dir/x"]),
        (
            "<base href=mailto:a@b><a href=x><a href=//b.test/><a href=http://b.test/#f><a href=http:c>",
            ["http://b.test/", "http://c/"],
        ),
        ("<base href=file:///c:/saved/><a href=x><a href=https://b.test/>", ["https://b.test/"]),
        ("<area href=b><svg><a xlink:href=c></svg>", [f"http://site.test/dir/{n}" for n in "bc"]),
        ("<noscript><base href=/other/></noscript><a href=x>", ["http://site.test/dir/x"]),
        ("<head><noscript><base href=/other/></noscript><base href=/1/></head><a href=x>", ["http://site.test/1/x"]),
        ("<template><a href=x><p>", ["http://site.test/dir/x"]),
        ("<TEMPLATE><a href=x></Template><a href=y>", [f"http://site.test/dir/{n}" for n in "xy"]),
        ("<!-- <a href=x> --><script>'<a href=y>'</script><textarea><a href=z></textarea>", []),
        ("<a href=http:x><a href=https:x>", ["http://site.test/dir/x", "https://x/"]),
        ("<noscript><a href=x></noscript><template><a href=y></template>", [f"http://site.test/dir/{n}" for n in "xy"]),
        ("<a href='a&amp;b&copy=1'>", ["http://site.test/dir/a&b&copy=1"]),
    ],
)
def test_links_are_those_a_browser_would_follow(html: str, urls: list[str]) -> None:
    """Absolute, http(s), without fragments, each once, in document order."""
    assert found(html) == urls


def test_absolute_links_are_remembered_for_all_origins_as_they_are_spelled() -> None:
    """White space before a fragment counts, at the end it does not: these are two links, also when both are known."""
    resolver = links()
    hrefs = ["http://b.test/x #f", "http://b.test/x ", "http://B.test/x#g", "#top", ""]
    for _ in range(2):
        for page in ("http://a.test/dir/p#f", "http://c.test/q?r"):
            urls = [link.url for link in resolver.resolve(page, hrefs)]
            assert urls == ["http://b.test/x%20", "http://b.test/x", page.removesuffix("#f")]


def test_a_byte_order_mark_does_not_end_the_head() -> None:
    """To the parser it is text: behind text a frameset is none."""
    page = b"\xef\xbb\xbf<title>t</title><frameset><frame src=f></frameset>"
    assert found(page, sources=("frame",)) == ["http://site.test/dir/f"]
    assert found(page[3:], sources=("frame",)) == ["http://site.test/dir/f"]


def test_other_elements_count_only_when_asked_for() -> None:
    """Frames by `src`."""
    html = "<link href=l><iframe src=i></iframe><a href=a>"
    assert found(html) == ["http://site.test/dir/a"]
    assert found(html, sources=("a", "frame")) == [f"http://site.test/dir/{name}" for name in "ai"]


@pytest.mark.parametrize(
    "html",
    [
        "<meta http-equiv='Refresh' content='0; url=r'>",
        "<META CONTENT='0;r' HTTP-EQUIV=refresh>",
        "<frameset><frame src=r></frameset>",
        "<iframe title='a' src=r></iframe>",
        "<p><a href=r></a><iframe srcdoc=x></iframe>",
    ],
)
def test_frames_and_refreshes_are_followed_by_default(html: str) -> None:
    """A front page of frames, or one that only refreshes, leads on; nearly every page is settled by one search."""
    assert found(html, sources=Settings().links.sources) == ["http://site.test/dir/r"]


@pytest.mark.parametrize(
    ("source", "names"), [("a", ["a"]), ("area", ["m"]), ("frame", ["f", "i"]), ("refresh", ["r"])]
)
def test_each_source_is_taken_by_itself(source: str, names: list[str]) -> None:
    """A `meta` that only reloads leads nowhere."""
    html = (
        "<meta http-equiv=Refresh content='5; URL=\"r\"'><meta http-equiv=refresh content=5><a href=a></a>"
        "<map><area href=m></map><iframe src=f></iframe><iframe src=i></iframe><img src=p><link href=l>"
    )
    assert found(html, sources=(source,)) == [f"http://site.test/dir/{name}" for name in names]


def test_a_link_marked_once_and_plain_once_is_followed() -> None:
    """Only what is marked everywhere is told."""
    html = b"<a href=x rel='UGC x'><a href=x><a href=y rel=nofollow><a href=z>"
    assert extracted(html, "", URL, ("a",), nofollow=True).nofollowed == {"y"}
    assert extracted(html, "", URL, ("a",)).nofollowed == frozenset()


def test_links_are_looked_at_up_to_a_limit() -> None:
    """In document order."""
    assert extracted(b"<a href=x><a href=y><a href=z>", "", URL, ("a",), most=2).hrefs == ["x", "y"]


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title> a\n &amp;  b </title>", "a & b"),
        ("<title></title>", None),
        ("<p>x", None),
        ("<svg><title>no</title></svg><title>yes</title>", "yes"),
        ("<title>a</title><title>b</title>", "a"),
    ],
)
def test_a_title_is_the_first_one_of_the_document(html: str, title: str | None) -> None:
    """White space collapsed; nothing is None."""
    assert extracted(html.encode(), "", URL, ("a",)).title == title


def test_bytes_that_are_no_utf8_become_the_replacement_character() -> None:
    """The parser is given the bytes as they are; the answer is as if they had been decoded first."""
    assert found(b'<a href="\xff\xe3\x81x">', content_type="text/html; charset=utf-8") == [
        "http://site.test/dir/%EF%BF%BD%EF%BF%BDx"
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["http://a.test/", "http://a.test/x/y?z", "http://b.test/x/"]),
            st.text(alphabet="ax/.?#:h\\ t", max_size=6),
        )
    )
)
def test_a_remembered_link_is_the_same_link(asked: list[tuple[str, str]]) -> None:
    """Whatever was resolved before, from whichever page, and however little is remembered."""
    long, short = links(), links(cached=2)
    for base, href in asked:
        wanted = links().resolve(base, [href])
        assert long.resolve(base, [href]) == long.resolve(base, [href]) == short.resolve(base, [href]) == wanted


PART = st.sampled_from(["/", "..", "a", "?q", "#f", "//a.test", "//b.test:8", "http://a.test/", "http://B.test/"])
OF_SCOPE = st.sampled_from(["http://a.test/", "http://b.test:8/x/", "data:x"])


@given(st.lists(st.tuples(st.lists(PART, max_size=4), OF_SCOPE), max_size=20))
def test_links_are_apart_by_their_origin_and_otherwise_the_same(asked: list[tuple[list[str], str]]) -> None:
    """Whatever was resolved before, and when the scope grows midway; without a fingerprint or a place they are URLs."""
    scope = {"http://a.test"}
    long = Links(Canonicaliser(CanonicalRules()), Places(8), is_foreign=lambda origin: origin not in scope)
    for number, (pieces, base) in enumerate(asked):
        if number == 10:
            scope.add("http://b.test:8")
            long.scope_grew()
        hrefs = ["".join(pieces), "http://c.test/", "/x"]
        wanted = links().resolve(base, hrefs)
        inside = [link for link in wanted if link.url[: link.url.index("/", 8)] in scope]
        assert long.split(base, hrefs) == (inside, [link.url for link in wanted if link not in inside])
        assert long.resolve(base, hrefs) == wanted


def test_long_links_are_resolved_and_not_remembered() -> None:
    """A page of links of a megabyte each would be kept for the next one."""
    resolver = links()
    hrefs = ["/" + "x" * MEMORABLE_CHARS, "http://a.com/" + "y" * MEMORABLE_CHARS, "/short"]
    outlinks = resolver.resolve("http://a.com/", hrefs)
    assert [link.url for link in outlinks] == ["http://a.com" + hrefs[0], hrefs[1], "http://a.com/short"]
    assert {href for known in resolver._new.values() for href in known} == {"/short"}
    assert {*resolver._known.values()} == {outlinks[2]}


def test_a_relative_link_is_remembered_as_one_from_the_root() -> None:
    """So pages in whatever folder share it; a path that begins with an empty segment is not taken for a host."""
    resolver = links()
    for base, href in [("http://h.test/a/b", "//x/y"), ("http://h.test/a/b", "/x/y"), ("http://h.test//b", "z")]:
        resolver.resolve(base, [href])
    known = {href for written in resolver._new.values() for href in written}
    for base, href, url in [
        ("http://h.test/a/b", "../x/y#z", "http://h.test/x/y"),
        ("http://h.test/x/", "y", "http://h.test/x/y"),
        ("http://h.test/a/b", "..//x/y", "http://h.test//x/y"),
        ("http://h.test//x/", "y", "http://h.test//x/y"),
    ]:
        assert [link.url for link in resolver.resolve(base, [href])] == [url]
    assert {href for written in resolver._new.values() for href in written} == known == {"//x/y", "/x/y"}


def test_a_tag_of_half_a_million_attributes_is_no_stall() -> None:
    """The parser would take minutes; what stands before and behind counts, quoted ends of tags do not."""
    flood = " ".join(f'a{number}=">"' for number in range(500_000))
    began = time.process_time()
    assert found(f"<a href=/1>x</a><p {flood}><a href=/2>y</a>") == ["http://site.test/1", "http://site.test/2"]
    assert time.process_time() - began < 5.0


def test_a_long_attribute_stays_whole() -> None:
    """Only what is beyond the number of attributes goes."""
    page = "<img src='data:" + "x" * 200_000 + "' alt='a = b > c'><a class='" + "c " * 99 + "' href=/1>x</a>"
    assert found(page) == ["http://site.test/1"]
    assert thinned(page.encode()) == page.encode()


@given(st.lists(st.sampled_from([b"<a", b">", b"=", b'"', b"'", b" ", b"x" * 9, b'="', b"='>", b"<"]), max_size=60))
def test_no_tag_is_long_where_a_few_looks_say_so(pieces: list[bytes]) -> None:
    """By quotes and ends of tags alone, however they stand; the limit is small here."""
    html = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_LONG_TAG", 24)
        patch.setattr(tree, "_MOST_SPACE", 4)
        may_have_one = tree._may_have_long_tag(html)
    assert may_have_one or all(found.end() - found.start() <= 24 for found in tree._ANY_TAG.finditer(html))


def test_few_real_pages_need_more_than_a_few_looks(testdata: Path) -> None:
    """Of those that have room for a long tag."""
    bodies = [gzip.decompress(file.read_bytes()) for file in (testdata / "pages").rglob("*.html.gz")]
    large = [body for body in bodies if len(body) > tree._NOT_LARGE]
    assert sum(map(tree._may_have_long_tag, large)) < 0.2 * len(large)


def test_links_of_elements_nested_too_deeply_are_found() -> None:
    """The elements go, the links stay, and time with the depth does not grow."""
    html = "<div>" * 400_000 + "<a href=x>" + "<b><div></div>" * 100_000 + "</div>" * 400_000 + "<a href=y>"
    assert found(html) == ["http://site.test/dir/x", "http://site.test/dir/y"]


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 50_000,
        "<b>" * 50_000 + "<div>" * 50_000,
        "<" * 1_000_000,
        "<a<" * 300_000,
        "<a href=x>" * 20_000,
        "<a " + "x=1 " * 20_000 + "href=y>",
        "<a href='" + "x" * 1_000_000,
        "\0" * 10_000,
    ],
)
def test_a_hostile_page_is_only_a_page(html: str) -> None:
    """Depth, numbers and lengths without limit neither raise nor stall."""
    assert len(found(html)) <= 1


HREF = st.text(st.sampled_from("ab/.?#:\\%2e&= \t\n@[]^é"), max_size=14)


@given(
    HREF, st.sampled_from(["http://h.test/", "http://h.test/a/b/c?q=/x", "https://h.test:8/a/./", "http://h.test/a//b"])
)
def test_a_plain_href_behind_its_base_is_the_join(href: str, base: str) -> None:
    """For any href that is taken for plain, one parse gives what the standard's join gives."""
    base = serialise(base)
    resolved = [link.url for link in links().resolve(base, [href])]
    try:
        joined = [plain(serialise(href, base))]
    except InvalidUrl:
        joined = []
    assert resolved == joined


# fmt: off
PIECE = st.sampled_from([
    "/", "//", "\\", "..", "../", "./", ".%2e/", "a", "?", "&", "utm_source=x", "fbclid=1", "q=1", "#", "#f", " ", "\t",
    "%2e", "é", "@", "http:", "https://h.test", "//h.test", "HTTP://H.test/", "/a?utm_source=1", "/a",
    "javascript:", "mailto:x",
])
# fmt: on
BASE = st.sampled_from(
    ["http://h.test/", "http://h.test/a/b.html", "http://h.test/a/b/c?x=/y/#", "https://h.test:8080/"]
)


@given(st.lists(st.tuples(st.lists(PIECE, max_size=4), BASE), max_size=20))
def test_any_spelling_of_a_known_url_is_that_url(asked: list[tuple[list[str], str]]) -> None:
    """With fragments, tracking parameters, the host alone or no link at all: as if each were parsed by itself."""
    canonicaliser = Canonicaliser(CanonicalRules())
    long, short = Links(canonicaliser, Places(8)), Links(canonicaliser, Places(8), cached=2)
    for pieces, base in asked:
        href = "".join(pieces)
        try:
            wanted = [canonicaliser.canonical(href, serialise(base))]
        except InvalidUrl:
            wanted = []
        for memory in (long, short):
            assert [link.url for link in memory.resolve(serialise(base), [href])] == wanted


@pytest.mark.parametrize(
    ("href", "base", "url"),
    [
        ("../x", "http://h.test/a/b/c", "http://h.test/a/x"),
        ("../../../x", "http://h.test/a/b/c", "http://h.test/x"),
        ("./../", "http://h.test/a/b/c", "http://h.test/a/"),
        ("../x/../y", "http://h.test/a/b/c", "http://h.test/a/y"),
        ("..//x", "http://h.test/a/b", "http://h.test//x"),
        ("../?q", "http://h.test/a//b", "http://h.test/a/?q"),
        ("..", "http://h.test/a/b/c", "http://h.test/a/"),
        ("../..", "http://h.test/a/b/c", "http://h.test/"),
        ("../..%2e", "http://h.test/a/b/c", "http://h.test/a/..%2e"),
        ("../.%2e/x", "http://h.test/a/b/c/d", "http://h.test/a/x"),
        ("%2e%2E/../x", "http://h.test/a/b/c/d", "http://h.test/a/x"),
        ("../x?y=../z#../f", "http://h.test/a/b/c?q=/../d", "http://h.test/a/x?y=../z"),
        ("../.git/x", "http://h.test/a/b/c", "http://h.test/a/.git/x"),
    ],
)
def test_dots_climb_from_the_directory(href: str, base: str, url: str) -> None:
    """As far as the root, each over one segment, an empty one too."""
    assert [link.url for link in links().resolve(base, [href])] == [url]


@pytest.mark.parametrize("behind", ["", "<area>"])
@pytest.mark.parametrize(
    ("html", "names"),
    [
        ("<svg><a xlink:href=x>t</a></svg>", ["x"]),
        ("<svg><g><a XLINK:HREF=x></a></g><a xlink:href=y href=z></a></svg>", ["x", "z"]),
        ("<svg><a xlink:href=y href></a></svg>", ["page.html?q=1"]),
        ("<a xlink:href=x>t</a>", []),
        ("<svg><foreignObject><a xlink:href=x>t</a></foreignObject></svg>", []),
        ("<a href>t</a>", ["page.html?q=1"]),
    ],
)
def test_a_link_in_a_drawing_may_be_an_xlink(html: str, names: list[str], behind: str) -> None:
    """SVG 2, 16.1.5: only where it has no href. An empty `href` is the page itself; a rare element changes nothing."""
    assert found(html + behind) == [f"http://site.test/dir/{name}" for name in names]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_a_trial_made_of_a_large_page_is_not_made_again(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Once: it is held for no longer, and is no other page's."""
    made: list[int] = []

    def noted(html: bytes) -> bytes:
        made.append(len(html))
        return html

    monkeypatch.setattr(tree, "flattened", noted)
    page, other = ("".join(f"<p><a href=/{n}/{name}>x</a>" for n in range(9000)).encode(encoding) for name in "ab")
    content_type = f"text/html; charset={encoding}"
    assert [len(html) for html in readings(page, content_type)] == made
    for body, count in ((other, 2), (page, 2), (page, 3)):
        hrefs = found(body, content_type=content_type)
        assert hrefs[0].endswith("/a" if body is page else "/b")
        assert len(made) == count
