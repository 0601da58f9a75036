"""Which pages are rendered, and what a page in the browser may ask for: decided without a browser."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from crawlog.schemas.urls import JobSpec, RenderRules, ScopeSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import resolve_spec
from crawlog.streams.rendering import Cors, Reach, Rendering, Wish, emptiness, forwarded, is_shown, refusal
from crawlog.streams.settings.sources import load
from crawlog.streams.url.place import Places

SCRIPT = "<script src=/app.js></script>"
WORDS = "word " * 50


@pytest.mark.parametrize(
    ("http", "error", "body", "content_type", "sniffed", "shown"),
    [
        (200, "", b"<p>", "text/html; charset=utf-8", "", True),
        (203, "", b"<p>", "application/xhtml+xml", "", True),
        (200, "", b"<p>", "", "", True),
        (200, "", b"<p>", "text/plain", "text/html", True),
        (200, "", b"{}", "application/json", "", False),
        (200, "", b"%PDF", "text/html", "application/pdf", False),
        (200, "", b"", "text/html", "", False),
        (200, "chunk_timeout", b"<p>", "text/html", "", False),
        (404, "", b"<p>", "text/html", "", False),
        (None, "dns", b"", "", "", False),
    ],
)
def test_a_browser_shows_pages_only(
    http: int | None, error: str, body: bytes, content_type: str, sniffed: str, shown: bool
) -> None:
    """Whole ones, of HTML by what they are."""
    answer = Answer(http, error)
    answer.body, answer.content_type, answer.sniffed = body, content_type, sniffed
    assert is_shown(answer) is shown


@pytest.mark.parametrize(
    ("html", "why"),
    [
        (f"<title>Shop</title><div id=root></div>{SCRIPT}", "root"),
        (f"<body><div id='__next'><p>Loading…</p></div>{SCRIPT}", "root"),
        (f"<body><app-root></app-root>{SCRIPT}", "root"),
        ("<body><app-root></app-root><ScRiPt src=/app.js></ScRiPt>", "root"),
        ("<BODY><DIV ID=root></DIV><Script src=/app.js></Script>", "root"),
        (f"<body><noscript>You need to enable JavaScript to run this app.</noscript>{SCRIPT}", "noscript"),
        (f"<body>Bitte JavaScript einschalten.{SCRIPT}", "noscript"),
        (f"<body><p>Loading<div id=content></div>{SCRIPT}", "place"),
        (f"<title>Shop</title>{SCRIPT}", "no_text"),
        (f"<body><svg><text>{WORDS}</text></svg><style>{WORDS}</style>{SCRIPT}", "no_text"),
        (f"<body><script>const state = '{WORDS}'</script>", "no_text"),
        (f"<body><template>{WORDS}</template>{SCRIPT}", "no_text"),
        ("<body><SCRIPT src=/app.js></SCRIPT>", "no_text"),
    ],
)
def test_a_page_that_shows_nothing_without_its_scripts_is_empty(html: str, why: str) -> None:
    """The reason stands with the page."""
    assert emptiness(html.encode(), "text/html") == why


@pytest.mark.parametrize(
    "html",
    [
        f"<div id=root>{WORDS}</div>{SCRIPT}",
        "<div id=root></div>",
        f"<p>Hello</p>{SCRIPT}",
        f"<body><noscript>{WORDS}</noscript><p>Hello</p>{SCRIPT}",
        f"<noscript>Please enable JavaScript</noscript><p>{WORDS}</p>{SCRIPT}",
        f"<body><a href=/next>on</a><div id=ad></div>{SCRIPT}",
        f"<frameset><frame src=/a></frameset>{SCRIPT}",
        f"<form action=/login></form>{SCRIPT}",
        "",
    ],
)
def test_a_page_that_shows_something_is_not(html: str) -> None:
    """Nor one that has no scripts, whatever it lacks."""
    assert emptiness(html.encode(), "text/html") == ""


def test_no_article_of_a_real_site_is_taken_for_empty(testdata: Path) -> None:
    """All of them have scripts, or had, and all have their text in the HTML."""
    pages = sorted((testdata / "pages").rglob("*.html.gz"))
    assert len(pages) > 100
    assert [page.name for page in pages if emptiness(gzip.decompress(page.read_bytes()), "text/html")] == []


@pytest.mark.parametrize(
    ("rules", "verdicts"),
    [
        (RenderRules(), ("", "", "")),
        (RenderRules("auto"), ("auto", "auto", "auto")),
        (RenderRules("always"), ("always", "always", "always")),
        (RenderRules("off", include=("/app/",)), ("", "rule", "rule")),
        (RenderRules("auto", include=("/app/",)), ("auto", "rule", "rule")),
        (RenderRules("always", exclude=("^http://a.com/$",)), ("", "always", "always")),
        (RenderRules("off", include=("/app/",), exclude=(r"\?print$",)), ("", "rule", "")),
    ],
)
def test_rules_are_stronger_than_the_mode(rules: RenderRules, verdicts: tuple[str, ...]) -> None:
    """And what is excluded is never rendered."""
    urls = ("http://a.com/", "http://a.com/app/x", "http://a.com/app/x?print")
    assert tuple(map(Rendering(rules).verdict, urls)) == verdicts


def test_a_wrong_expression_is_named() -> None:
    """With the setting it came from."""
    with pytest.raises(Misconfigured, match=r"render.include: '\(\?<=a\)'"):
        Rendering(RenderRules(include=("(?<=a)",)))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (Wish("GET", "http://a.com/app.js", "script"), ""),
        (Wish("GET", "http://a.com/data", "xhr"), ""),
        (Wish("GET", "http://a.com/data", "fetch"), ""),
        (Wish("GET", "http://a.com/style.css", "stylesheet"), ""),
        (Wish("GET", "http://a.com/ad", "document"), "kind"),
        (Wish("GET", "http://a.com/x.png", "image"), "kind"),
        (Wish("GET", "http://a.com/x.vtt", "texttrack"), "kind"),
        (Wish("GET", "http://a.com/live", "eventsource"), "kind"),
        (Wish("GET", "http://a.com/manifest", "manifest"), "kind"),
        (Wish("GET", "http://a.com/prefetch", "other"), "kind"),
        (Wish("GET", "wss://a.com/", "websocket"), "scheme"),
        (Wish("GET", "file:///etc/passwd", "fetch"), "scheme"),
        (Wish("POST", "http://a.com/buy", "fetch"), "method"),
        (Wish("POST", "http://a.com/beacon", "ping"), "method"),
        (Wish("OPTIONS", "http://a.com/data", "fetch"), "method"),
    ],
)
def test_a_page_is_given_what_it_shows_and_can_change_nothing(wish: Wish, why: str) -> None:
    """What is blocked by default: images, media, fonts and the documents of frames."""
    assert refusal(wish, ("image", "media", "font", "frame")) == why


def test_what_is_not_blocked_is_given() -> None:
    """All that has a setting."""
    assert not any(refusal(Wish("GET", "http://a.com/", kind), ()) for kind in ("document", "image", "media", "font"))


def test_a_page_says_how_it_wants_its_data_and_nothing_else() -> None:
    """Neither who we are nor where we come from."""
    said = {"Accept": "application/json", "referer": "http://a.com/", "cookie": "a=b", "authorization": "x", "x-y": "z"}
    assert forwarded(said) == {"Accept": "application/json"}


A, B, C = "http://a.com", "https://b.com", "http://c.com:8080"


@pytest.mark.parametrize(
    ("kind", "cors", "urls", "told"),
    [
        ("fetch", "", [A], [""]),
        ("fetch", "", [A, B, A], ["", A, "null"]),
        ("xhr", B, [A], [B]),
        ("xhr", B, [A, B], [B, "null"]),
        ("xhr", B, [A, C], [B, "null"]),
        ("fetch", "null", [A, A], ["null", "null"]),
        ("script", "", [A, B], ["", ""]),
        ("script", C, [A, A], [C, C]),
    ],
)
def test_an_origin_is_told_as_browsers_tell_it(kind: str, cors: str, urls: list[str], told: list[str]) -> None:
    """To others only, on the way back too; `null` once a redirect went from one of them elsewhere (Fetch 4.4)."""
    one = Cors(Wish("GET", urls[0] + "/", kind, cors=cors))
    assert [one.origin for url in urls if one.follows(url + "/")] == told


def test_only_the_named_origin_or_all_may_read() -> None:
    """Nobody is asked for leave by what no script reads."""
    one = Cors(Wish("GET", B, "fetch", cors=A))
    assert [one.permits(value) for value in ("*", A, "", "null", B, f"{A}, {A}", A + ":80")] == [True, True] + [
        False
    ] * 5
    assert Cors(Wish("GET", B, "script")).permits("")


def test_a_frame_stays_at_the_origin_that_it_was_asked_from() -> None:
    """The browser would take another one's document for that one's own."""
    one = Cors(Wish("GET", A + "/x", "document"))
    assert one.follows(A + "/y")
    assert not one.follows(B + "/y")


@pytest.mark.parametrize(
    ("scope", "names", "inside", "outside"),
    [
        ("domain", ("shop.com",), "https://cdn.shop.com/x", "http://other.com/x"),
        ("host", ("shop.com",), "https://shop.com/x", "http://cdn.shop.com/x"),
        ("seeds", ("shop.com", "two.com:8080"), "http://two.com:8080/x", "http://two.com/x"),
        ("domain", ("elsewhere.com",), "http://shop.com/x", "http://other.com/x"),
    ],
)
def test_a_page_asks_outside_the_scope_for_no_more_than_its_job_lets_it(
    scope: Any, names: tuple[str, ...], inside: str, outside: str
) -> None:
    """Its own host is in scope, also where that joined the job while it ran."""
    places = Places(8)
    for rule, kinds in (("any", {"script", "fetch"}), ("static", {"script"}), ("none", set())):
        spec = JobSpec(scope=ScopeSpec(scope, names), render=RenderRules("always", scope=rule))  # type: ignore[arg-type]  # a parameter
        reach = Reach(spec, places.of("http://shop.com/"))
        for kind in ("script", "fetch"):
            assert reach.holds(kind, places.of(inside))
            assert reach.holds(kind, places.of(outside)) == (kind in kinds)


def test_a_job_of_any_scope_has_nothing_outside() -> None:
    """Whatever its pages may ask for outside."""
    spec = JobSpec(scope=ScopeSpec("any"), render=RenderRules("always", scope="none"))
    assert Reach(spec, Places(8).of("http://shop.com/")).holds("fetch", Places(8).of("http://other.com/"))


def test_render_scope_goes_with_the_job() -> None:
    """As the other rules of rendering: workers of a fleet serve jobs of many scopes."""
    assert resolve_spec(load({"render.scope": "static"}, environ={}), names=["a.com"]).render.scope == "static"
