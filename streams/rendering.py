"""Which pages a browser renders, and what a page in it may load. Nothing here knows a browser.

A page is *empty* when its HTML shows next to nothing and has scripts that may show more. The verdict is a word that is
kept with the page: `crawlog why` and the rows show it.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from selectolax.lexbor import LexborHTMLParser

from crawlog.schemas.urls import JobSpec, RenderRules
from crawlog.streams.html import parsed
from crawlog.streams.http import HTML, XHTML, essence
from crawlog.streams.requests import origin_of
from crawlog.streams.url import Place, any_of, scope_name

if TYPE_CHECKING:
    from crawlog.streams.http import Answer

LITTLE_TEXT = 200  # Characters of visible text below which a page may be empty

# Elements that frameworks fill, by their own starter kits.
_ROOTS = (
    "#root, #app, #__next, #__nuxt, #___gatsby, #svelte, #react-root, #ember-app, app-root, [ng-app], [data-reactroot]"
)

# Elements that other scripts fill.
_PLACES = "div[id]:empty, main:empty, section[id]:empty, article:empty, ul[id]:empty, table[id]:empty"

_SHOWN = "a[href], area[href], frameset, form, video, object"  # Elements that give a page without text a purpose

_UNSEEN = ["script", "style", "noscript", "template", "templat-", "svg", "head"]

# Words of a request to enable scripts, in `noscript` or in the text, in any language.
_ASKED_FOR = ("javascript", "java script")

_SCRIPT = re.compile(rb"<script", re.IGNORECASE)

_FORWARDED = frozenset({"accept", "accept-language", "x-requested-with"})
_OF_DRIVEN = frozenset({"authorization", "content-type", "origin", "referer"})  # Besides, of driven pages
_TOLD = frozenset({"content-range", "etag", "last-modified", "link"})

# Why a page may be rendered: its request says so, a rule, or `auto`: if it is empty. An empty text: it is not.
Verdict = Literal["request", "rule", "always", "auto", ""]


class Rendering:
    """The rules of one job.

    Raises: Misconfigured: an expression is not RE2 syntax.
    """

    def __init__(self, rules: RenderRules) -> None:
        self._mode = rules.mode
        self._include = any_of("render.include", rules.include)
        self._exclude = any_of("render.exclude", rules.exclude)

    def verdict(self, url: str) -> Verdict:
        """Whether a URL is rendered: by a rule, always, if its page is empty, or (an empty text) never."""
        if self._exclude is not None and self._exclude.search(url):
            return ""
        if self._include is not None and self._include.search(url):
            return "rule"
        return "" if self._mode == "off" else self._mode


def is_shown(answer: "Answer") -> bool:
    if answer.error or not answer.body or answer.http is None or not 200 <= answer.http < 300:
        return False
    return (answer.sniffed or essence(answer.content_type)) in ("", HTML, XHTML)


def emptiness(body: bytes, content_type: str) -> str:
    """Why a page needs its scripts to show anything; empty when it does not.

    Returns: `root`: a framework's element is there, and next to nothing in it; `noscript`: the page says so itself;
        `place`: neither text nor links, but an empty element for them; `no_text`: nothing at all.
    """
    page = _tree(body, content_type) if _SCRIPT.search(body) else None
    if page is None:
        return ""
    said = " ".join(node.text() for node in page.css("noscript"))
    page.strip_tags(_UNSEEN, recursive=True)
    text = " ".join(page.body.text(separator=" ").split()) if page.body is not None else ""
    if len(text) >= LITTLE_TEXT:
        return ""
    if page.css_first(_ROOTS) is not None:
        return "root"
    if any(word in f"{said} {text}".lower() for word in _ASKED_FOR):
        return "noscript"
    return "" if page.css_first(_SHOWN) is not None else _hole(page, text)


def _tree(body: bytes, content_type: str) -> LexborHTMLParser | None:
    try:
        return parsed(body, content_type)
    except ValueError:  # too large for the parser, so no empty page
        return None


def _hole(page: LexborHTMLParser, text: str) -> str:
    """The kind of emptiness of a page without links; empty if it has text."""
    if page.css_first(_PLACES) is not None:
        return "place"
    return "" if text else "no_text"


class Wish(NamedTuple):
    """A request of a page in the browser.

    Attributes:
        kind: The browser's word: `document`, `script`, `stylesheet`, `image`, `fetch`, `xhr` …
        origin: Origin of the requesting document, as `origin_of` writes it; empty if unknown.
        cors: The header Origin as the browser sends it; empty if no script may read the answer, or any may.
    """

    method: str
    url: str
    kind: str
    origin: str = ""
    cors: str = ""


class Cors:
    """Whether a page may read an answer, along redirects that the browser never sees (Fetch 4.4, 4.10).

    The browser knows the first URL only, so it would take another origin's answer for the first origin's own.
    """

    def __init__(self, wish: Wish) -> None:
        self._at = origin_of(wish.url)
        self._asker = (wish.cors if wish.cors == "null" else origin_of(wish.cors)) if wish.cors else self._at
        self._told = wish.cors or _shortened(self._at)
        self._is_asked = bool(wish.cors) or wish.kind in _READ
        self._is_document = wish.kind == "document"
        self._is_read = wish.method == "GET"
        self._is_tainted = False

    @property
    def origin(self) -> str:
        """The header Origin of the next request; empty where no permission is needed."""
        if not self._is_asked or (self._at == self._asker and not self._is_tainted):
            return ""
        return "null" if self._is_tainted else self._told

    def permits(self, allow_origin: str) -> bool:
        """Whether the answer's Access-Control-Allow-Origin lets the page read it."""
        return not self.origin or allow_origin in ("*", self.origin)

    def follows(self, url: str) -> bool:
        """Whether a redirect is followed; not for a frame to another origin: it would pass for the first one's.

        Nor for a POST: it is not sent a second time.
        """
        to = origin_of(url)
        if not self._is_read or (self._is_document and to != self._at):
            return False
        self._is_tainted |= to != self._at != self._asker
        self._at = to
        return True


def _shortened(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    return f"{scheme}://{rest.removesuffix({'http': ':80', 'https': ':443'}.get(scheme, ''))}"


_READ = frozenset({"fetch", "xhr"})
_BLOCKED_AS = {"document": "frame", "xhr": "fetch", "texttrack": "media"}
_SERVED = frozenset({"frame", "script", "stylesheet", "image", "media", "font", "fetch"})
NAVIGATION = "navigation"  # Kind of a document that a driven page goes to: in scope, as a link is
# Kinds that are the same for every page that asks for them.
CACHED = frozenset({"script", "stylesheet", "font", "image"})


class Reach:
    """What a page in the browser may load by the scope of its job.

    Args:
        page: Place of the page, which is in scope even if its host joined the job while it ran.
    """

    def __init__(self, spec: JobSpec, page: Place) -> None:
        self._outside = spec.render.scope
        self._kind = spec.scope.kind
        self._names = frozenset((*spec.scope.names, scope_name(self._kind, page)))

    def holds(self, kind: str, place: Place) -> bool:
        """Whether a resource of this kind (see `Wish`) may be loaded from a place."""
        if self._kind == "any" or (kind != NAVIGATION and self._outside == "any"):
            return True
        if self._outside == "static" and kind in CACHED:
            return True
        return scope_name(self._kind, place) in self._names


def refusal(wish: Wish, blocked: Collection[str], *, is_driven: bool = False) -> str:
    """Why a page's request is not made; empty if it is.

    A crawler only reads: a request that could change something on a server is not sent, unless the user's actions drive
    the page; then its scripts may send to its own origin. Nor are endless streams, and beacons, reports and manifests,
    which no page shows.
    """
    if wish.method != "GET" and not (is_driven and origin_of(wish.url) == wish.origin):
        return "method"
    if not wish.url.startswith(("http://", "https://")):
        return "scheme"
    kind = _BLOCKED_AS.get(wish.kind, wish.kind)
    return "kind" if kind not in _SERVED or kind in blocked else ""


def forwarded(headers: Mapping[str, str], *, is_driven: bool = False) -> dict[str, str]:
    """The request headers of a page that may change the answer and reveal nothing about this crawler.

    Args:
        is_driven: Whether it is a request of a driven page to its own origin, whose scripts may have tokens to send.
    """
    kept = {name: value for name, value in headers.items() if name.lower() in _FORWARDED}
    if is_driven:
        kept |= {name: one for name, one in headers.items() if name.lower() in _OF_DRIVEN or name.lower()[:2] == "x-"}
    return kept


def told(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The response headers that a page's script reads for data, such as the number of pages (`X-WP-TotalPages`)."""
    read: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        if (key in _TOLD or key.startswith("x-")) and value.isascii() and value.isprintable():
            read[key] = f"{read[key]}, {value}" if key in read else value
    return read
