"""The proxy that a request names: judged by the egress guard, used for that request alone."""

import socket
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.resolver import AsyncResolver

from crawlog.agents.client.client import Client
from crawlog.agents.client.request import OutgoingRequest, ProxyFailed
from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.exits.exits import Exits
from crawlog.streams.exits.ways import Exit, read_exit
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import own_policy, request_rules
from crawlog.streams.requests.request import basic, read_proxy
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import NO_FILE, load
from tests.support.proxies import Socks
from tests.support.sites import Site, sites

URL = "http://name.test/x"


async def by(client: Client, proxy: str, url: str = URL, **more: Any) -> Answer:
    """The answer to a request that goes by a proxy."""
    return await client.get(HttpRequest(url, record=RequestRecord(proxy=proxy), **more))


def names(monkeypatch: pytest.MonkeyPatch, **hosts: str) -> None:
    """Let DNS know these names under `.test`, and no others."""

    async def resolve(_self: object, name: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        address = hosts.get(name.removesuffix(".test"))
        if address is None:
            raise OSError("no such name")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [{"hostname": name, "host": address, "port": port, "family": family, "proto": 0, "flags": 0}]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)


async def test_a_request_goes_by_its_own_proxy() -> None:
    """Its user is sent there, and not in another request."""
    proxy, site = Site(), Site()
    async with sites(proxy, site) as client:
        answer = await by(client, proxy.origin.replace("http://", "http://ann:p%40ss@"))
        plain = await client.get(HttpRequest(f"{site.origin}/y", record=RequestRecord()))
    assert (answer.http, plain.http) == (200, 200)
    assert proxy.requests[0].startswith(f"GET {URL} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic YW5uOnBAc3M=" in proxy.requests[0]
    assert "Proxy-Authorization" not in site.requests[0]


@pytest.mark.parametrize("scheme", ["socks5h", "socks5", "socks4a"])
async def test_a_request_goes_by_its_own_socks_proxy(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the proxy is resolved by the guard, then its address is connected to."""
    names(monkeypatch, proxy="127.0.0.1", name="127.0.0.1")
    site = Site()
    socks = Socks(site)
    async with sites(socks) as client:
        port = socks.origin.rpartition(":")[2]
        answers = [await by(client, f"{scheme}://{host}:{port}") for host in ("127.0.0.1", "proxy.test")]
    assert [answer.http for answer in answers] == [200, 200]
    assert socks.wanted == [("127.0.0.1" if scheme == "socks5" else "name.test", 80)] * 2


async def test_a_request_for_https_goes_through_a_tunnel_of_its_own_proxy() -> None:
    """The site is asked for by name; what the request says is for the site alone."""
    proxy = Site()
    async with sites(proxy) as client:
        record = RequestRecord(proxy=proxy.origin, headers=(("X-Secret", "1"),))
        answer = await client.get(HttpRequest("https://name.test/x", record=record, within_s=0.3))
    assert answer.http is None
    assert proxy.requests[0].startswith("CONNECT name.test:443 HTTP/1.1\r\n")
    assert "X-Secret" not in proxy.requests[0]


INSIDE = [
    ("http://169.254.169.254", "metadata address"),
    ("http://169.254.169.254:8080", "metadata address"),
    ("http://[fd00:ec2::254]", "metadata address"),
    ("http://[::ffff:169.254.169.254]:80", "metadata address"),
    ("http://2852039166", "metadata address"),
    ("socks5h://169.254.169.254", "metadata address"),
    ("socks5://169.254.169.254:1080", "metadata address"),
    ("socks4a://169.254.169.254:1080", "metadata address"),
    ("https://user:pass@169.254.169.254", "metadata address"),
    ("http://metadata.google.internal", "metadata name"),
    ("http://meta.test:3128", "metadata address"),
    ("socks5h://meta.test:1080", "metadata address"),
    ("http://127.0.0.1:25", "port 25"),
    ("socks5://127.0.0.1:6379/x", "a proxy is"),
    ("gopher://127.0.0.1", "a proxy is"),
    ("127.0.0.1:3128", "a proxy is"),
    ("http://127.0.0.1:99999", "a proxy is"),
    ("socks5h://ann:passé@93.184.216.34:1080", "ASCII"),
]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(("proxy", "reason"), INSIDE)
async def test_no_setting_lets_a_request_name_a_proxy_at_a_metadata_address(
    proxy: str, reason: str, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one at another protocol's port, nor what is none; it is never tried again, and nothing stays queued."""
    names(monkeypatch, meta="169.254.169.254")
    async with sites(private=private) as client:
        answer = await by(client, proxy)
    assert answer.http is None
    assert (answer.private, answer.is_closed) == (True, False)
    assert answer.error.startswith("bad_proxy: ")
    assert reason in answer.error
    assert "pass" not in answer.error


@pytest.mark.parametrize("scheme", ["http", "socks5h", "socks5", "socks4"])
@pytest.mark.parametrize("host", ["127.0.0.1", "inside.test", "localhost"])
async def test_a_request_names_no_private_proxy(scheme: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its address or by a name; neither where the worker forbids it, nor where the job does."""
    names(monkeypatch, inside="127.0.0.1", localhost="127.0.0.1", name="93.184.216.34")
    proxy = Socks(Site()) if scheme.startswith("socks") else Site()
    closed = own_policy(load({"network.allow_private": False}, NO_FILE, {}))
    of_job: dict[str, Any] = {"policy": closed}
    for private, more in ((False, {}), (True, of_job)):
        async with sites(proxy, private=private) as client:
            answer = await by(client, f"{scheme}://{host}:{proxy.origin.rpartition(':')[2]}", **more)
        assert (answer.http, answer.private, answer.error.partition(":")[0]) == (None, True, "bad_proxy")
    assert proxy.requests == []


@pytest.mark.parametrize("login", ["", "ann:p@ss", "jörg:пароль"])
async def test_a_request_may_name_a_proxy_of_the_operator(login: str) -> None:
    """Though it is private; a request that gives no login has the operator's. It is sent in UTF-8."""
    proxy = Site()
    pool: dict[str, Any] = {"proxies": lambda each: (each[0].origin.replace("http://", "http://op:word@"),)}
    async with sites(proxy, private=False, **pool) as client:
        named = proxy.origin.replace("http://", f"http://{login.replace('@', '%40')}@" if login else "http://")
        answer = await by(client, named)
    assert answer.http == 200
    user, _, password = (login or "op:word").partition(":")
    assert f"Proxy-Authorization: {basic(user, password)}" in proxy.requests[0]


async def test_another_port_of_the_operators_proxy_is_not_the_operators_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its name is exempt from the guard for its own port alone."""
    names(monkeypatch, proxy="127.0.0.1")
    proxy, other = Site(), Site()
    pool: dict[str, Any] = {"proxies": lambda each: (each[0].origin.replace("127.0.0.1", "proxy.test"),)}
    async with sites(proxy, other, private=False, **pool) as client:
        answers = [await by(client, one.origin.replace("127.0.0.1", "proxy.test")) for one in (proxy, other)]
    assert [answer.http for answer in answers] == [200, None]
    assert answers[1].error == "bad_proxy: proxy.test resolves to private address 127.0.0.1"
    assert other.requests == []


async def test_a_request_does_not_go_without_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by another one: it fails for the proxy, and may be tried again."""
    names(monkeypatch)
    site = Site()
    async with sites(site) as client:
        gone = [
            await by(client, proxy, f"{site.origin}/x")
            for proxy in ("http://127.0.0.1:2", "socks5h://127.0.0.1:2", "http://gone.test:3128", "socks5://gone.test")
        ]
    assert [(answer.error, answer.by_proxy, answer.private) for answer in gone] == [("proxy", True, False)] * 4
    assert site.requests == []


async def test_a_proxy_that_wants_a_login_is_named() -> None:
    """407 is the proxy's word, not the site's."""

    class Closed(Site):
        async def serve(self, from_client: Any, to_client: Any) -> None:
            await from_client.readuntil(b"\r\n\r\n")
            to_client.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
            to_client.close()

    proxy = Closed()
    async with sites(proxy) as client:
        answer = await by(client, proxy.origin)
    assert (answer.http, answer.error, answer.by_proxy) == (None, "proxy_login", True)


@pytest.mark.parametrize(
    ("url", "proxy", "is_proxys"),
    [
        ("http://a.test/", "http://127.0.0.1:1", True),
        ("https://a.test/", "http://127.0.0.1:1", False),
        ("http://a.test/", "socks5://127.0.0.1:1", False),
    ],
)
def test_in_a_tunnel_407_is_the_sites(url: str, proxy: str, *, is_proxys: bool) -> None:
    """Else a site could let all proxies rest."""
    outgoing = OutgoingRequest(url)
    outgoing.go_by(read_proxy(proxy), "")
    response: Any = SimpleNamespace(status=407, headers={})
    with pytest.raises(ProxyFailed) if is_proxys else nullcontext():
        outgoing.answered(response)


async def test_a_request_that_names_no_proxy_goes_by_those_of_the_worker() -> None:
    """Any method does."""
    proxy = Site()
    async with sites(proxy, proxies=lambda each: (each[0].origin,)) as client:
        answer = await client.get(HttpRequest(URL, record=RequestRecord("POST", body=b"a=1")))
    assert answer.http == 200
    assert proxy.requests[0].startswith(f"POST {URL} HTTP/1.1\r\n")


@pytest.mark.parametrize("url", ["http://a.test/", "https://a.test/"])
@pytest.mark.parametrize("way", ["http://p:1", "socks5h://p:1", ""])
@pytest.mark.parametrize(("error", "counts"), [(aiohttp.SocketTimeoutError(), 1), (aiohttp.ClientPayloadError(), 0)])
def test_silence_behind_an_exit_counts_for_it_too(url: str, way: str, error: Exception, counts: int) -> None:
    """It is the site's failure all the same: the site may have been asked. A bad body is the site's alone."""
    one = read_exit(way) if way else Exit("10.0.0.5", "address", address="10.0.0.5")
    exits = Exits([one])
    outgoing = OutgoingRequest(url)
    outgoing.go_out(exits, request_rules(Settings()), "", one)
    assert outgoing.blame(error) == ("silence" if counts else "site")
    assert exits.figures(0.0)[one.name].failures == counts
