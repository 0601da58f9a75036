"""What pages say to robots, and to whom."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html.directives import directives_of, refresh_target
from crawlog.streams.html.links import Links
from crawlog.streams.spiders.default import parse_page
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places


@pytest.mark.parametrize(
    ("x_robots", "metas", "said"),
    [
        ((), (), ""),
        (("noindex",), (), "index"),
        (("NoFollow , noarchive",), (), "follow"),
        (("none",), (), "index follow"),
        (("crawlog: nofollow",), (), "follow"),
        (("otherbot: none",), (), ""),
        (("otherbot: none", "*: noindex"), (), "index"),
        (("bot2000: noarchive, noindex", "Other Bot/1.0 : noarchive, nofollow"), (), ""),
        (("Crawlog : noarchive, noindex",), (), "index"),
        (("noarchive unavailable_after: 25 Jun 2027 15:00:00 PST, nofollow",), (), "follow"),
        (("unavailable_after: 25 Jun 2027 15:00:00 PST, nofollow",), (), "follow"),
        (("max-snippet: 5",), (), ""),
        ((), (("robots", "noindex,follow"),), "index"),
        ((), (("robots", "noindex nofollow"),), "index follow"),
        (("max-image-preview: none",), (("robots", "max-image-preview:none, follow"),), ""),
        ((), (("ROBOTS", " none "),), "index follow"),
        ((), (("Crawlog", "nofollow"),), "follow"),
        ((), (("googlebot", "nofollow"), ("description", "noindex")), ""),
        (("noindex",), (("robots", "nofollow"),), "index follow"),
    ],
)
def test_the_strictest_of_what_concerns_us_holds(
    x_robots: tuple[str, ...], metas: tuple[tuple[str, str], ...], said: str
) -> None:
    """Headers and elements together, to all robots and to us, in any case."""
    obeyed = directives_of(x_robots, metas, "crawlog")
    assert obeyed == ("index" in said.split(), "follow" in said.split())


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("0;url=x", "x"),
        ("5; URL='x y' z", "x y"),
        ("5, x", "x"),
        ("1.5 url = x", "x"),
        ("5", None),
        ("url=x", None),
        ("", None),
        ("5;", None),
        ("5; ", None),
        ("0;url=", None),
        ("0;url", "url"),
        ("0;'x", "x"),
        ("0;url=\u00a0x", "\u00a0x"),
        ("5x", None),
    ],
)
def test_a_refresh_leads_somewhere_or_nowhere(content: str, target: str | None) -> None:
    """As browsers read it."""
    assert refresh_target(content) == target


@pytest.mark.parametrize("piece", ["0", " ", "0 ", ",", "(", '<a>"', "a,", ";"])
def test_a_hostile_value_is_read_in_linear_time(piece: str) -> None:
    """As long as a page may be."""
    value = piece * 200_000
    refresh_target("5" + value)
    directives_of([value], [("robots", value)], "crawlog")


@given(st.text(alphabet="<>;,\"'=( )rel:url05.x\n*", max_size=80))
def test_nothing_makes_them_raise(text: str) -> None:
    """Any value of any header or attribute."""
    refresh_target(text)
    directives_of([text], [("robots", text)], "crawlog")


PAGE = b"<meta name=robots content=noindex><a href=/a><a href=/b rel=nofollow>"


@pytest.mark.parametrize(
    ("spec", "x_robots", "has_row", "paths"),
    [
        (JobSpec(), ("none",), True, ["/a", "/b"]),
        (JobSpec(nofollow=False), (), True, ["/a"]),
        (JobSpec(meta_robots=True), (), False, ["/a", "/b"]),
        (JobSpec(meta_robots=True), ("crawlog: nofollow",), False, []),
        (JobSpec(meta_robots=True, token="other"), ("crawlog: nofollow",), False, ["/a", "/b"]),
        (JobSpec(links=("a", "refresh")), (), True, ["/a", "/b", "/e"]),
        (JobSpec(links=("a", "refresh"), meta_robots=True), ("nofollow",), False, []),
    ],
)
def test_a_job_says_which_wishes_are_obeyed(
    spec: JobSpec, x_robots: tuple[str, ...], has_row: bool, paths: list[str]
) -> None:
    """By default none is: a row for every page, and every link; the row counts links that are not sent."""
    meta = PageMeta("http://h.test/", "j", http=200, x_robots=x_robots, refresh="5; URL='/e'")
    parsed = parse_page(meta, PAGE, Links(Canonicaliser(spec.canonical), Places(1)), spec)
    assert [link.url.removeprefix("http://h.test") for link in parsed.outlinks] == paths
    assert len(parsed.items) == has_row
    if parsed.items:
        assert json.loads(bytes(parsed.items[0]))["links"] == 2 + ("refresh" in spec.links)
