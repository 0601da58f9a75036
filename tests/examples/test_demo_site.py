"""The demo site: what it says it expects is what its links, redirects and robots.txt give."""

import contextlib
import importlib.util
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from crawlog.schemas.urls import CanonicalRules
from crawlog.streams.html.extract import extracted
from crawlog.streams.robots.robots import RobotsRules
from crawlog.streams.url.canonical import Canonicaliser, InvalidUrl

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def demo_site() -> ModuleType:
    """The example as a module; examples are no package."""
    spec = importlib.util.spec_from_file_location("demo_site", EXAMPLES / "demo_site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo_site"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(demo_site: ModuleType) -> Iterator[Any]:
    """The site on free ports."""
    served = demo_site.Site(0).start()
    yield served
    served.stop()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_open = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({})).open


def _get(url: str) -> tuple[int, Any, bytes]:
    try:
        with _open(url, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def _rules(origin: str) -> RobotsRules:
    status, _, body = _get(f"{origin}/robots.txt")
    return RobotsRules.parse(body) if status == 200 else RobotsRules.parse(b"")


def _links(url: str, headers: Any, body: bytes) -> Iterator[str]:
    """Canonical URLs that an answer leads to."""
    canonical = Canonicaliser(CanonicalRules()).canonical
    hrefs, base = [headers["Location"]], url
    if not hrefs[0]:
        is_html = headers["Content-Type"].startswith("text/html")
        page = extracted(body if is_html else b"", headers["Content-Type"], url, ("a", "area"))
        hrefs, base = page.hrefs, page.base
    for href in hrefs:
        with contextlib.suppress(InvalidUrl):
            yield canonical(href, base)


def _crawl(site: Any) -> dict[str, int]:
    """The plainest crawl: a list, a set, one request at a time."""
    rules = {origin: _rules(origin) for origin in site.origins}
    todo, seen, rows = list(site.seeds), set(site.seeds), dict[str, int]()
    led: dict[str, set[str]] = {}  # redirects that led to a URL
    while todo:
        url = todo.pop()
        origin = "/".join(url.split("/")[:3])
        if origin not in rules or not rules[origin].allowed(url, "crawlog")[0]:
            continue
        status, headers, body = _get(url)
        if status == 503:
            status, headers, body = _get(url)
        links, is_redirect = set(_links(url, headers, body)), bool(headers["Location"])
        new = links - seen
        if is_redirect:
            led |= {target: {url} | led.get(url, set()) for target in new}
        if not is_redirect or links & led.get(url, set()):
            rows[url] = status
        seen |= new
        todo += new
    return rows


def test_the_site_expects_what_it_serves(site: Any) -> None:
    """A plain crawl of the seeds finds every expected row and no other."""
    assert _crawl(site) == site.expected
    assert site.forbidden() == []
    assert site.repeated() == {}


def test_the_site_is_no_toy(site: Any) -> None:
    """Several hosts, and each of the things that make real sites hard."""
    statuses = list(site.expected.values())
    assert len(site.origins) == 4
    assert len(statuses) >= 60
    assert {200, 404, 410, 500} <= set(statuses)
    redirects = [reply for reply in site.replies.values() if reply.location]
    assert {reply.status for reply in redirects} == {301, 302, 307, 308}


def test_the_site_answers_gzip_to_whoever_takes_it(site: Any) -> None:
    """As most of the web does."""
    request = urllib.request.Request(f"{site.origins[0]}/books/1", headers={"Accept-Encoding": "gzip"})
    with _open(request, timeout=60) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"


def test_a_busy_page_asks_for_patience_once(site: Any) -> None:
    """503 with Retry-After, then the page."""
    url = f"{site.origins[3]}/status/busy"
    first, headers, _ = _get(url)
    assert (first, headers["Retry-After"], _get(url)[0]) == (503, "1", 200)
