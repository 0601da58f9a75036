"""Advisories of other crawlers and of what this one is built on, tried here; the list is docs/security.md."""

import re
import sys
from pathlib import Path

import pytest

from crawlog.agents.client.cookie_jars import CookieJars
from crawlog.agents.client.request import RequestBuilder
from crawlog.agents.client.transport import HttpRequest
from crawlog.streams.exits.exits import Exits
from crawlog.streams.exits.ways import read_exit
from crawlog.streams.job_spec import request_rules
from crawlog.streams.requests.request import basic
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.canonical import InvalidUrl, serialise
from tests.support.sites import Site, sites

TESTS = Path(__file__).parent
ADVISORY = re.compile(r"GHSA(?:-[0-9a-z]{4}){3}|CVE-\d{4}-\d+")
LOGIN = basic("ann", "hush")


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Again", "308 Moved"])
async def test_a_redirect_takes_no_login_and_no_cookie_along(status: str) -> None:
    """GHSA-cw9j-q3vf-hrrv, GHSA-4qqq-9vqf-3h3f, GHSA-cjvr-mfj7-j4j8, CVE-2026-34518, CVE-2026-47265.

    Each hop is a request of its own, dressed anew; the first site's log shows that there was something to leak.
    """
    other = Site(address="127.0.0.2")
    first = Site("Set-Cookie: id=7; Path=/\r\nSet-Cookie: two=8; Path=/\r\n", status)
    logins = lambda each: (each[0].origin.replace("//", "//ann:hush@"),)  # noqa: E731  # the port is known only then
    async with sites(first, other, cookies=True, logins=logins) as client:
        first.answer = first.answer.replace(b"Content-Type", f"Location: {other.origin}/\r\nContent-Type".encode(), 1)
        for _ in range(2):
            answer = await client.get(HttpRequest(first.origin + "/", job="j"))
        assert other.requests == []
        assert (await client.get(HttpRequest(answer.location, job="j"))).http == 200
    assert first.got("Authorization") == [LOGIN, LOGIN]
    assert first.got("Cookie") == ["id=7; two=8"]
    assert [other.got(name) for name in ("Authorization", "Cookie", "Proxy-Authorization")] == [[], [], []]


@pytest.mark.parametrize(
    "url", ["https://a.test:80/", "http://a.test:8080/", "http://b.test/", "http://sub.a.test/", "http://a.test.evil/"]
)
def test_a_login_is_for_one_scheme_host_and_port(url: str) -> None:
    """GHSA-4qqq-9vqf-3h3f: the same host by another scheme or port is another origin."""
    fetch = Settings().fetch.model_copy(update={"logins": ("http://ann:hush@a.test",)})
    outfit, rules = RequestBuilder(fetch, CookieJars(), Exits()), request_rules(Settings())
    assert outfit.of("http://a.test/x", rules, "j").headers == {"Authorization": LOGIN}
    assert outfit.of(url, rules, "j").headers == {}


async def test_a_redirect_to_https_does_not_keep_the_proxy_of_its_http_hop() -> None:
    """GHSA-jm3v-qxmh-hxwv: the proxy is chosen for each hop, by its own origin."""
    proxies = [Site("Location: https://a.test/\r\n", "302 Found") for _ in range(2)]

    def pool(each: tuple[Site, ...]) -> tuple[str, ...]:
        return tuple(site.origin for site in each)

    async with sites(*proxies, proxies=pool) as client:
        answer = await client.get(HttpRequest("http://a.test/"))
        requests = [request for proxy in proxies for request in proxy.requests]
    assert answer.location == "https://a.test/"
    assert [request.split("\r\n")[0] for request in requests] == ["GET http://a.test/ HTTP/1.1"]
    exits, rules = Exits(map(read_exit, ("http://one:1", "http://two:2"))), request_rules(Settings())
    outfit = RequestBuilder(Settings().fetch, CookieJars(), exits)
    hops = [f"{scheme}://h{number}.test/" for number in range(20) for scheme in ("http", "https")]
    chosen, again = ([str(outfit.of(url, rules).options["proxy"]) for url in hops] for _ in range(2))
    assert chosen == again
    assert any(plain != secure for plain, secure in zip(chosen[::2], chosen[1::2], strict=True))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/key",
        "file:///etc/passwd",
        "ftp://a.test/",
        "data:text/html,x",
        "javascript:alert(1)",
        "gopher://a/",
    ],
)
async def test_nothing_but_http_and_https_is_ever_asked_for(url: str) -> None:
    """GHSA-76g3-c3x4-crvx, GHSA-23j4-mw76-5v7h: neither as a URL of the crawl nor by the client, had it got so far."""
    with pytest.raises(InvalidUrl):
        serialise(url)
    async with sites() as client:
        answer = await client.get(HttpRequest(url))
    assert (answer.http, answer.body, answer.kept) == (None, b"", False)


async def test_no_header_of_a_response_is_ever_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GHSA-cwxj-rr6w-m6w7: a module that a header names stays where it is."""
    (tmp_path / "named_by_a_header.py").write_text("class Policy: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("Referrer-Policy", "Link", "X-Robots-Tag", "Retry-After", "Content-Language", "X-Class")
    site = Site("".join(f"{name}: named_by_a_header.Policy\r\n" for name in names))
    async with sites(site, cookies=True) as client:
        answer = await client.get(HttpRequest(site.origin + "/", job="j"))
    assert (answer.http, answer.kept) == (200, True)
    assert "named_by_a_header" not in sys.modules


async def test_a_body_in_parts_is_not_read_as_parts() -> None:
    """CVE-2026-34516: headers of parts, without end in the advisory, are bytes that nobody wants."""
    part = b"--x\r\n" + b"X: y\r\n" * 100_000
    site = Site(body=part)
    site.answer = site.answer.replace(b"text/html", b"multipart/form-data; boundary=x", 1)
    async with sites(site) as client:
        answer = await client.get(HttpRequest(site.origin + "/"))
    assert (answer.http, answer.kept, answer.body, answer.error) == (200, False, b"", "")


def _rows() -> list[tuple[list[str], list[tuple[str, str]]]]:
    """(advisories, tests) of each row of the list."""
    text = (TESTS.parent / "docs" / "security.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ") and ADVISORY.search(line)]
    return [(ADVISORY.findall(line), re.findall(r"`([\w/]+\.py)::(test_\w+)`", line)) for line in lines]


def test_each_advisory_of_the_list_is_named_where_it_is_tried() -> None:
    """And a test that names one is in the list."""
    rows = _rows()
    assert len(rows) >= 20
    for advisories, tests in rows:
        assert tests, advisories
        for file, name in tests:
            text = (TESTS / file).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), name
            assert any(advisory in text for advisory in advisories), (advisories, file)
    listed = {advisory for advisories, _ in rows for advisory in advisories}
    named = {advisory for path in TESTS.rglob("test_*.py") for advisory in ADVISORY.findall(path.read_text())}
    assert named <= listed
