"""What a request carries and by which way it leaves: a secret reaches the one place it was given for."""

import asyncio
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp.resolver import AsyncResolver
from pydantic import ValidationError

from crawlog.agents.client import connections
from crawlog.agents.client.connections import Connector
from crawlog.agents.client.per_address import Busy
from crawlog.agents.client.protocol import LeaseLost
from crawlog.agents.client.transport import Asker, HttpRequest
from crawlog.schemas.urls import RequestRules
from crawlog.streams.exits.exits import FAILED_S, FAILURES
from crawlog.streams.requests.request import basic, origin_of, read_header, read_login
from crawlog.streams.session.cookies import MOST_COOKIES
from crawlog.streams.session.login import read_form
from crawlog.streams.settings.exit_section import Exits
from crawlog.streams.settings.sections import Fetch
from crawlog.streams.settings.sources import Sources, origins, resolve
from tests.support.proxies import Socks, Tunnel, certify, pump, server_tls
from tests.support.sites import Site, posting, sites


async def test_a_login_is_sent_to_its_origin_and_to_no_other_port_or_robots_txt_elsewhere() -> None:
    """GHSA-jwqp-28gf-p498, GHSA-cw9j-q3vf-hrrv, GHSA-4qqq-9vqf-3h3f."""
    mine, other = Site(), Site()
    async with sites(mine, other, logins=lambda each: (each[0].origin.replace("//", "//ann:p%40ss@"),)) as client:
        for site in (mine, other):
            await client.get(HttpRequest(site.origin + "/robots.txt", any_type=True))
            await client.get(HttpRequest(site.origin + "/"))
    assert mine.got("Authorization") == [basic("ann", "p@ss")] * 2
    assert other.got("Authorization") == []


async def test_a_cookie_goes_back_to_its_domain_within_its_job_only() -> None:
    """GHSA-cjvr-mfj7-j4j8: another host sees none; robots.txt, which is no job's, goes without."""
    site, other = Site("Set-Cookie: id=7; Path=/\r\n"), Site(address="127.0.0.2")
    async with sites(site, other, cookies=True) as client:
        for job in ("a", "a", "b", ""):
            await client.get(HttpRequest(site.origin + "/", job=job))
        await client.get(HttpRequest(other.origin + "/", job="a"))
    assert site.got("Cookie") == ["id=7"]
    assert (len(other.requests), other.got("Cookie")) == (1, [])


@pytest.mark.parametrize(
    ("location", "cookie", "is_check"),
    [
        ("/x", "id=7", [True, False]),
        ("//ORIGIN/y/../x#top", "id=7", [True, False]),
        ("/x?", "id=7", [False, False]),
        ("/", "id=7", [False, False]),
        ("", "id=7", [False, False]),
        ("http://[", "id=7", [False, False]),
        ("/x", "id=7; Path=/other", [False, False]),
        ("/x", "id=7; Max-Age=0", [False, False]),
        ("/x", "id=7; Domain=b.com", [False, False]),
    ],
)
async def test_a_redirect_to_itself_that_sets_a_new_cookie_is_told(
    location: str, cookie: str, is_check: list[bool]
) -> None:
    """The same cookie again, or one that is not for this URL, changes nothing."""
    site = Site()
    async with sites(site, cookies=True) as client:
        to = location.replace("ORIGIN", site.origin.partition("//")[2])
        site.answer = Site(f"Location: {to}\r\nSet-Cookie: {cookie}\r\n", status="302 Found").answer
        answers = [await client.get(HttpRequest(site.origin + "/x", job="a")) for _ in range(2)]
        assert [answer.is_cookie_check for answer in answers] == is_check
        assert not (await client.get(HttpRequest(site.origin + "/x"))).is_cookie_check


async def test_a_redirect_back_to_where_it_began_with_a_new_cookie_is_told() -> None:
    """A check for cookies by way of another URL: within a job, and only as long as the cookie is new."""
    site = Site()
    async with sites(site, cookies=True) as client:

        async def moved(path: str, to: str, job: str = "a", cookie: str = "") -> bool:
            headers = f"Location: {to}\r\n" + (f"Set-Cookie: {cookie}; Path=/\r\n" if cookie else "")
            site.answer = Site(headers, status="302 Found").answer
            return (await client.get(HttpRequest(site.origin + path, job=job))).leads_back

        assert not await moved("/x", "/check")
        assert not await moved("/check", "/x", job="b", cookie="id=7")
        assert not await moved("/check", "/x#top")
        assert await moved("/check", f"{site.origin}/x#top", cookie="id=7")
        await moved("/x", "/check")  # with the cookie now
        assert not await moved("/check", "/x", cookie="id=7")
        assert not await moved("/check", "http://[", cookie="id=8")


async def test_a_host_that_sets_cookies_without_end_keeps_its_session() -> None:
    """The first hundred are kept, and what they become."""
    site = Site()

    def sets(*cookies: str) -> bytes:
        return Site("".join(f"Set-Cookie: {cookie}; Path=/\r\n" for cookie in cookies)).answer

    first = [f"c{n}={n}" for n in range(MOST_COOKIES)]
    more = [f"d{n}={n}" for n in range(40)]
    async with sites(site, cookies=True) as client:
        for cookies in (first[:40], first[40:80], first[80:] + more[:20], [*more[20:], "c7=new"], []):
            site.answer = sets(*cookies)
            await client.get(HttpRequest(site.origin + "/", job="a"))
    assert [len(sent.split("; ")) for sent in site.got("Cookie")] == [40, 80, MOST_COOKIES, MOST_COOKIES]
    assert set(site.got("Cookie")[-1].split("; ")) == {"c7=new", *first} - {"c7=7"}


async def test_an_anonymous_request_has_neither_login_nor_cookies() -> None:
    """And keeps none: a page in the browser asks so at other origins than its own."""
    site = Site("Set-Cookie: id=7; Path=/\r\n")
    logins: Any = lambda each: (each[0].origin.replace("//", "//ann:pass@"),)  # noqa: E731  # a setting as others
    async with sites(site, cookies=True, logins=logins) as client:
        for anonymous in (True, False, True):
            await client.get(HttpRequest(site.origin + "/", job="a", asker=Asker(anonymous)))
        assert (site.got("Cookie"), site.got("Authorization")) == ([], [basic("ann", "pass")])
        await client.get(HttpRequest(site.origin + "/", job="a"))
    assert site.got("Cookie") == ["id=7"]


async def test_without_the_setting_no_cookie_is_kept() -> None:
    """A crawl has no memory of a host but its state."""
    site = Site("Set-Cookie: id=7; Path=/\r\n")
    async with sites(site) as client:
        for _ in range(2):
            await client.get(HttpRequest(site.origin + "/", job="a"))
    assert site.got("Cookie") == []


@pytest.mark.parametrize(
    ("domain", "is_kept"), [("co.uk", False), ("other.co.uk", False), ("shop.co.uk", True), ("", True)]
)
async def test_a_cookie_for_a_public_suffix_or_another_domain_is_dropped(domain: str, is_kept: bool) -> None:
    """GHSA-mfjm-vh54-3f96. The site's name is resolved by the proxy, which is the server here."""
    server = Site(f"Set-Cookie: id=7; Path=/{'; Domain=' + domain if domain else ''}\r\n")
    async with sites(server, cookies=True, proxies=lambda each: (each[0].origin,)) as client:
        for _ in range(2):
            answer = await client.get(HttpRequest("http://www.shop.co.uk/", job="a"))
            assert answer.http == 200
    assert server.got("Cookie") == (["id=7"] if is_kept else [])


async def test_a_proxy_gets_the_whole_url_and_its_own_password_only() -> None:
    """GHSA-9x8m-2xpf-crp3: the second proxy never sees the first one's."""
    one, two = Site(), Site()

    def pool(each: tuple[Site, ...]) -> tuple[str, ...]:
        return each[0].origin.replace("//", "//ann:one@"), each[1].origin.replace("//", "//bob:two@")

    async with sites(one, two, proxies=pool) as client:
        answers = [await client.get(HttpRequest(f"http://host-{number}.test/page")) for number in range(20)]
    assert {answer.http for answer in answers} == {200}
    assert len(one.requests) + len(two.requests) == 20
    assert set(one.got("Proxy-Authorization")) == {basic("ann", "one")}
    assert set(two.got("Proxy-Authorization")) == {basic("bob", "two")}
    assert all(request.startswith("GET http://host-") for request in one.requests + two.requests)


async def test_a_dead_proxys_hosts_go_by_the_others_at_once() -> None:
    """It let nothing through, so no host was asked twice; no request leaves without a proxy."""
    alive = Site()

    def pool(each: tuple[Site, ...]) -> tuple[str, ...]:
        return each[0].origin, "http://127.0.0.1:1", "socks5h://127.0.0.1:1"

    async with sites(alive, proxies=pool) as client:
        errors = [(await client.get(HttpRequest(f"http://host-{number}.test/"))).error for number in range(40)]
    assert set(errors) == {""}
    assert len(alive.requests) == 40


class Mute(Site):
    """A proxy that accepts connections and answers nothing."""

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        self.requests.append((await from_client.readuntil(b"\r\n\r\n")).decode())
        await from_client.read()
        to_client.close()


async def test_a_proxy_behind_which_all_is_silent_rests() -> None:
    """A silent site cannot be told from a silent proxy, and may have been asked: its request fails as without one."""
    alive, mute = Site(), Mute()
    pool: dict[str, Any] = {"proxies": lambda each: tuple(one.origin for one in each), "first_byte_timeout_s": 0.2}
    async with sites(alive, mute, **pool) as client:
        answers = [await client.get(HttpRequest(f"http://host-{number}.test/")) for number in range(40)]
    failed = [(answer.error, answer.by_proxy) for answer in answers if answer.http is None]
    assert failed == [("first_byte_timeout", False)] * FAILURES
    assert (len(mute.requests), len(alive.requests)) == (FAILURES, 40 - FAILURES)


async def test_a_proxy_that_makes_no_tunnel_in_time_is_passed_by_and_rests(tmp_path: Path) -> None:
    """The site behind it was not asked, so another proxy is, at once."""
    site, mute = Site(), Mute()
    secure = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=server_tls(tmp_path))
    alive = Tunnel(secure.sockets[0].getsockname()[1])
    pool: dict[str, Any] = {"proxies": lambda each: tuple(one.origin for one in each), "connect_timeout_s": 0.2}
    async with sites(alive, mute, ca_file=tmp_path / "cert.pem", **pool) as client:
        answers = [await client.get(HttpRequest(f"https://name.test:{port}/")) for port in range(8000, 8040)]
    secure.close()
    assert {(answer.http, answer.error) for answer in answers} == {(200, "")}
    assert len(mute.requests) == FAILURES


async def test_where_no_proxy_serves_the_answer_says_so_and_when_to_come_again() -> None:
    """At the first failure it rests for that host; after `FAILURES` the only one rests for all, for longer."""
    async with sites(proxies=("http://127.0.0.1:1",)) as client:
        answers = [await client.get(HttpRequest(f"http://host-{number}.test/")) for number in range(FAILURES)]
    assert {(answer.error, answer.by_proxy, answer.exit) for answer in answers} == {("proxy", True, "127.0.0.1:1")}
    assert [answer.again_s > FAILED_S for answer in answers] == [False] * (FAILURES - 1) + [True]


async def test_a_proxy_that_dies_while_it_serves_is_not_the_hosts_failure() -> None:
    """And is not asked again at once, for the site may have been asked."""
    cut = Site()
    cut.answer = b""

    async def hang_up(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        cut.requests.append((await from_client.readuntil(b"\r\n\r\n")).decode())
        to_client.close()

    cut.serve = hang_up  # type: ignore[method-assign]  # another server
    async with sites(cut, proxies=lambda each: (each[0].origin, "http://127.0.0.1:1")) as client:
        while not cut.requests:
            answer = await client.get(HttpRequest("http://host.test/"))
    assert (answer.error, answer.by_proxy, len(cut.requests)) == ("proxy", True, 1)


@pytest.mark.parametrize(
    ("scheme", "url", "wanted"),
    [
        ("socks5h", "http://name.test/page", ("name.test", 80)),
        ("socks5", "http://127.0.0.1:8081/page", ("127.0.0.1", 8081)),
        ("socks5", "http://[::1]:8081/page", ("::1", 8081)),
        ("socks4a", "http://name.test/page", ("name.test", 80)),
        ("socks4", "http://localhost:8081/page", ("127.0.0.1", 8081)),
    ],
)
async def test_a_socks_proxy_is_told_a_name_or_an_address_as_its_scheme_says(
    scheme: str, url: str, wanted: tuple[str, int]
) -> None:
    """The h and the a let the proxy resolve. The site sees a request as if there were no proxy."""
    site = Site()
    proxy = Socks(site)
    async with sites(proxy, proxies=lambda each: (each[0].origin.replace("http", scheme),)) as client:
        answers = [await client.get(HttpRequest(url)) for _ in range(2)]
    assert [(answer.http, answer.error) for answer in answers] == [(200, "")] * 2
    assert proxy.wanted == [wanted], "the connection is kept"
    assert [request.partition("\r\n")[0] for request in site.requests] == ["GET /page HTTP/1.1"] * 2


async def test_tls_goes_through_a_socks_proxy_to_the_site(tmp_path: Path) -> None:
    """The proxy sees a name and ciphertext; the name is what the certificate must be for."""
    certify(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    site = Site()
    secure = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=context)
    port = secure.sockets[0].getsockname()[1]

    class Tunnel(Socks):
        async def _five(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
            if await super()._five(from_client, to_client):
                from_site, to_site = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pump(from_client, to_site), pump(from_site, to_client))
            return False

    proxy = Tunnel(site)
    pool: dict[str, Any] = {"proxies": lambda each: (each[0].origin.replace("http", "socks5h"),)}
    async with sites(proxy, ca_file=tmp_path / "cert.pem", **pool) as client:
        answers = [await client.get(HttpRequest(f"https://{name}/")) for name in ("name.test", "other.test")]
    secure.close()
    assert [(answer.http, answer.error) for answer in answers] == [(200, ""), (None, "tls_certificate")]
    assert proxy.wanted == [("name.test", 443), ("other.test", 443)]


@pytest.mark.parametrize("is_tls", [False, True])
def test_what_is_written_is_with_the_kernel_before_the_event_loop_turns(tmp_path: Path, is_tls: bool) -> None:
    """On the workers' event loop: what a stopped process still had would be sent when it goes on."""
    certify(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    def answer(server: socket.socket) -> socket.socket:
        peer, _ = server.accept()
        peer.settimeout(10)
        peer = context.wrap_socket(peer, server_side=True) if is_tls else peer
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        return peer

    async def written() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as server:
            answering = asyncio.ensure_future(asyncio.to_thread(answer, server))
            connector = Connector(lambda: True, allow_private=True, ssl=False)
            url = f"{'https' if is_tls else 'http'}://127.0.0.1:{server.getsockname()[1]}/"
            async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
                assert response.connection is not None
                assert response.connection.transport is not None
                with await answering as peer:
                    response.connection.transport.write(b"once more")
                    return peer.recv(100)  # the loop stands still until it came

    assert uvloop.run(written()) == b"once more"


@pytest.mark.parametrize(
    ("scheme", "url"), [("http", "http://host.test/"), ("http", "https://host.test/"), ("socks5h", "http://host.test/")]
)
async def test_a_lease_lost_while_it_was_connected_sends_nothing_by_way_of_a_proxy(scheme: str, url: str) -> None:
    """Neither a request, nor a form, nor a request for a tunnel."""
    site = Site()
    proxy = Socks(site) if scheme == "socks5h" else site
    ways: dict[str, Any] = {"proxies": lambda each: (each[0].origin.replace("http", scheme),)}
    async with sites(proxy, may_ask=lambda: False, **ways) as client:
        with pytest.raises(LeaseLost):
            await client.get(HttpRequest(url))
        with pytest.raises(LeaseLost):
            await client.get(posting(read_form(f"{url}#user=ann"), "j"))
    assert site.requests == []


@pytest.mark.parametrize(("said", "error"), [("ann:p@ss", ""), ("ann:wrong", "proxy"), ("", "proxy")])
async def test_a_socks_proxys_user_is_sent_to_it_alone(said: str, error: str) -> None:
    """RFC 1929; without its user the proxy does not serve, and that is no failure of the host."""
    site = Site()
    proxy = Socks(site, user="ann:p@ss")
    user = said.replace("p@ss", "p%40ss") + "@" if said else ""
    async with sites(proxy, proxies=lambda each: (each[0].origin.replace("http://", f"socks5h://{user}"),)) as client:
        answer = await client.get(HttpRequest("http://host.test/"))
    assert (answer.error, answer.by_proxy) == (error, bool(error))
    assert "ann" not in str(site.requests)


@pytest.mark.parametrize(
    ("scheme", "reply", "error", "by_proxy"),
    [
        ("socks5h", 1, "proxy", True),
        ("socks5h", 2, "proxy", True),
        ("socks5h", 4, "connect", False),
        ("socks5h", 5, "connect", False),
        ("socks4a", 91, "connect", False),
        ("socks4a", 93, "proxy", True),
    ],
)
async def test_what_a_socks_proxy_cannot_reach_is_the_sites_failure(
    scheme: str, reply: int, error: str, by_proxy: bool
) -> None:
    """RFC 1928 6: host unreachable, connection refused; all else is the proxy's own."""
    proxy = Socks(Site(), reply=reply)
    async with sites(proxy, proxies=lambda each: (each[0].origin.replace("http", scheme),)) as client:
        answer = await client.get(HttpRequest("http://host.test/"))
    assert (answer.error, answer.by_proxy) == (error, by_proxy)


@pytest.mark.parametrize(
    ("scheme", "url", "reason"),
    [
        ("socks5h", "http://10.0.0.7/", "private address 10.0.0.7"),
        ("socks5h", "http://0x7f.1/", "private address 127.0.0.1"),
        ("socks5", "http://169.254.169.254/", "metadata address 169.254.169.254"),
        ("socks5", "http://private.test/", "private address 10.1.2.3"),
        ("socks4", "http://private.test/", "private address 10.1.2.3"),
    ],
)
async def test_a_socks_proxy_is_no_way_round_the_guard(
    scheme: str, url: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Literal addresses always; what names resolve to, wherever it is resolved here."""

    async def resolve(_self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        return [{"hostname": host, "host": "10.1.2.3", "port": port, "family": family, "proto": 0, "flags": 0}]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    proxy = Socks(Site())
    async with sites(proxy, proxies=lambda each: (each[0].origin.replace("http", scheme),), private=False) as client:
        answer = await client.get(HttpRequest(url))
    assert answer.private
    assert reason in answer.error
    assert proxy.wanted == []


async def test_what_a_public_page_asks_for_reaches_no_private_address_by_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address that it would be sent to is judged, over a connection that the crawl itself may keep too."""

    async def resolve(_self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": family, "proto": 0, "flags": 0}]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    site = Site()
    async with sites(site) as client:
        url = site.origin.replace("127.0.0.1", "name.test") + "/"
        own = await client.get(HttpRequest(url, asker=Asker(wants_place=True)))
        refused = await client.get(HttpRequest(url, asker=Asker(is_public=True)))
        again = await client.get(HttpRequest(url))
    assert (own.http, own.is_inside, again.http) == (200, True, 200)
    assert (refused.http, refused.private, refused.error) == (None, True, "private_address: private address 127.0.0.1")
    assert len(site.requests) == 2


async def test_a_proxys_own_name_is_no_way_round_the_guard_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be private, for the operator named it; a page of that name may not."""

    async def resolve(_self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        return [{"hostname": host, "host": "10.1.2.3", "port": port, "family": family, "proto": 0, "flags": 0}]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    async with sites(proxies=("socks5://proxy.test:1",), private=False) as client:
        answer = await client.get(HttpRequest("http://proxy.test:8080/admin"))
    assert "private address 10.1.2.3" in answer.error


async def test_a_name_that_a_proxy_resolves_is_not_asked_for_here() -> None:
    """Also not for `politeness.per_ip`: who crawls through Tor does not want his resolver to know."""
    async with sites(proxies=("socks5h://127.0.0.1:1",)) as client:
        assert await client.addresses_of("http://localhost:80/") == ("localhost",)


async def test_a_proxy_that_wants_a_login_is_no_answer_of_the_site() -> None:
    """407 is the proxy's, so it is no result with that status."""
    proxy = Site(status="407 Proxy Authentication Required")
    async with sites(proxy, proxies=lambda each: (each[0].origin,)) as client:
        answer = await client.get(HttpRequest("http://host.test/"))
    assert (answer.http, answer.error) == (None, "proxy_login")


async def test_headers_are_sent_to_every_host() -> None:
    """A contact, for those who read their logs."""
    site = Site()
    async with sites(site, headers=("From: me@example.org",)) as client:
        await client.get(HttpRequest(site.origin + "/"))
    assert site.got("From") == ["me@example.org"]


async def test_a_header_of_the_operators_is_sent_instead_of_a_pages() -> None:
    """However either is spelt; a browser writes them in lower case."""
    site = Site()
    async with sites(site, headers=("Accept-Language: de",)) as client:
        await client.get(
            HttpRequest(site.origin + "/", headers={"accept-language": "en", "accept": "application/json"})
        )
    assert (site.got("Accept-Language"), site.got("Accept")) == (["de"], ["application/json"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("From: a@b", ("From", "a@b")),
        ("  X-A:b ", ("X-A", "b")),
        ("X-Empty:", ("X-Empty", "")),
        ("no colon", None),
        ("X-A: b\r\nEvil: 1", None),
        ("Authorization: Basic x", None),
        ("cookie: a=b", None),
        ("Host: other", None),
    ],
)
def test_a_header_is_one_line_and_none_that_has_a_setting(text: str, expected: tuple[str, str] | None) -> None:
    """A header that could end another one's host or login is refused.

    CVE-2026-47265, GHSA-hg6j-4rv6-33pg: no header set here can be a cookie or a login that would outlive a redirect.
    """
    if expected is None:
        with pytest.raises(ValueError, match=r"header|cannot be set here"):
            read_header(text)
    else:
        assert read_header(text) == expected


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("socks5h://p.test", "socks5h://p.test:1080"),
        ("https://Example.COM", "https://example.com:443"),
        ("http://a.test/path", "http://a.test:80"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    """RFC 6454."""
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://ann:word@Bücher.test", "https://xn--bcher-kva.test:443"),
        ("https://ann:word@bücher.test.:8443/", "https://xn--bcher-kva.test:8443"),
        ("http://ann:word@192.168.257", "http://192.168.1.1:80"),
    ],
)
def test_a_login_is_for_the_host_however_it_is_written(given: str, origin: str) -> None:
    """Requests have the host as WHATWG's parser serialises it."""
    assert read_login(given).origin == origin


@pytest.mark.parametrize(
    "wrong", ["https://host.test", "ftp://a:hush@h", "https://a:hush@h/path", "http://a:hush@h:99999"]
)
def test_a_wrong_login_or_proxy_is_refused_without_repeating_it(wrong: str) -> None:
    """A password has no place in an error."""
    with pytest.raises(ValueError, match="https://USER:PASSWORD@HOST") as refused:
        read_login(wrong)
    assert "hush" not in str(refused.value)
    for key in ("logins", "proxies"):
        if key == "logins" or "ftp" in wrong or "path" in wrong or "99999" in wrong:
            with pytest.raises(ValidationError):
                (Fetch if key == "logins" else Exits).model_validate({key: (wrong,)})


def test_secrets_are_not_shown_among_the_settings() -> None:
    """Neither by `crawlog settings` nor in an error about them."""
    pairs = ["fetch.logins=https://ann:hush@h.test", "exits.proxies=http://ann:hush@p.test"]
    shown = [
        one.value for one in origins(Sources(pairs=pairs, environ={})) if one.key in ("fetch.logins", "exits.proxies")
    ]
    assert len(shown) == 2
    assert "hush" not in str(shown)
    with pytest.raises(Exception, match=r"fetch\.logins") as refused:
        resolve(Sources(pairs=["fetch.logins=ann:hush@h.test"], environ={}))
    assert "hush" not in str(refused.value)


async def test_names_that_lead_to_one_address_share_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each name has another address beside it, listed first; a literal address counts with them."""

    async def resolve(_self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        each = (f"127.0.1.{host[1:].partition('.')[0]}", "127.0.0.1")
        return [
            {"hostname": host, "host": one, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
            for one in each
        ]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    site = Site()
    async with sites(site) as client:
        urls = [site.origin.replace("127.0.0.1", f"n{n}.test") + "/" for n in range(1, 10)] + [site.origin + "/"]
        for url in urls:
            assert (
                await client.addresses.at_once(url, partial(client.get, HttpRequest(url)), RequestRules(1.0, 1))
            ).http == 200
        with pytest.raises(Busy):
            await client.addresses.at_once(
                urls[0].replace("n1", "n77"), partial(client.get, HttpRequest(urls[0])), RequestRules(1.0, 1)
            )
    assert len(site.requests) == 10


@pytest.mark.parametrize(("age_s", "looks", "http"), [(0.0, 2, 200), (30.0, 1, None)])
async def test_a_name_whose_addresses_do_not_answer_is_asked_for_again_once_it_is_some_age(
    monkeypatch: pytest.MonkeyPatch, age_s: float, looks: int, http: int | None
) -> None:
    """A host that moved is found; a host that is away costs no look-up for each attempt."""
    asked: list[str] = []

    async def resolve(_self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        asked.append(host)
        address = "127.0.0.9" if len(asked) == 1 else "127.0.0.1"
        return [{"hostname": host, "host": address, "port": port, "family": family, "proto": 0, "flags": 0}]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    monkeypatch.setattr(connections, "FAILED_S", age_s)
    site = Site()
    async with sites(site) as client:
        url = site.origin.replace("127.0.0.1", "moved.test") + "/"
        answers = [await client.get(HttpRequest(url)) for _ in range(2)]
        assert (await client.get(HttpRequest(url))).http == http
    assert answers[0].error == "connection_refused"
    assert (answers[1].http, len(asked)) == (http, looks)


async def test_a_name_without_addresses_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its turn and for the connection, and again when it is tried again."""
    asked: list[str] = []

    async def resolve(_self: object, host: str, *_: Any) -> list[dict[str, object]]:
        asked.append(host)
        raise OSError(4, "Domain name not found")

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    monkeypatch.setattr(connections, "FAILED_S", 60.0)
    async with sites() as client:
        url = "http://nowhere.test/"
        assert (
            await client.addresses.at_once(url, partial(client.get, HttpRequest(url)), RequestRules(1.0, 1))
        ).error == "dns"
        assert asked == ["nowhere.test"]
        monkeypatch.setattr(connections, "FAILED_S", 0.0)
        client._resolver._known.clear()
        for _ in range(2):
            await client.get(HttpRequest(url))
    assert len(asked) == 3
