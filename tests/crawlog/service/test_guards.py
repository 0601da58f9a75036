"""What a stranger's page makes a browser send is refused; answers say what browsers may do with them."""

import asyncio
from io import BytesIO

import pytest
from aiohttp import web

from crawlog.service.guards import HEADERS, PREFIX, host_name
from crawlog.service.routing import BODY_BYTES, prefix_of
from tests.support.serving import OWN_TOKEN, reached, served, service_settings

TOKEN = {"Authorization": f"Bearer {OWN_TOKEN}"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:6800", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:6800", 200),
        ("crawl.example", 200),
        ("rebound.example", 421),
        ("localhost.rebound.example", 421),
        ("192.0.2.1:6800", 421),
        ("localhost@rebound.example", 421),
        ("rebound.example/localhost", 421),
        ("localhost:port", 421),
        ("", 421),
    ],
)
async def test_a_host_name_that_is_not_ours_is_refused(host: str, status: int) -> None:
    """DNS rebinding: a page of a stranger's name, whose address has become ours. On open routes, too."""
    async with served(service_settings(hosts=["crawl.example"])) as client:
        assert (await client.get("/healthz", headers={"Host": host})).status == status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost:6800/healthz", 200),
        ("HTTP://LOCALHOST/healthz?x=http://a", 200),
        ("http://rebound.example/healthz", 421),
        ("http://rebound.example/healthz?x=://localhost/", 421),
        ("http://localhost@rebound.example/healthz", 421),
        ("http://rebound.example?/../healthz", 421),
    ],
)
async def test_a_target_in_absolute_form_has_a_name_of_ours(target: str, status: int) -> None:
    """It counts before the Host header (RFC 9112 3.2.2), so it is judged as this one is."""
    async with served(service_settings()) as client:
        reading, writing = await asyncio.open_connection(client.host, client.port)
        writing.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert int((await reading.readline()).split()[1]) == status
        writing.close()


async def test_where_others_reach_us_an_address_is_a_name_of_ours() -> None:
    """Of machines and containers we do not know it; no DNS answer can lead to a page of an address."""
    async with served(service_settings(address="0.0.0.0", users={"ann": "hers"})) as client:
        assert (await client.get("/healthz", headers={"Host": "192.0.2.1:6800"})).status == 200
        assert (await client.get("/healthz", headers={"Host": "rebound.example"})).status == 421


NAVIGATION = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Origin": "http://localhost:6800"}, 401),
        ("POST", {"Origin": "https://localhost:6800", "Sec-Fetch-Site": "same-origin"}, 401),
        ("POST", {"Origin": "http://localhost:6801"}, 403),
        ("POST", {"Origin": "http://evil.example"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Origin": ""}, 403),
        ("POST", {"Origin": "http://["}, 403),
        ("POST", {"Origin": "http://localhost:6800@evil.example"}, 403),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("GET", {"Sec-Fetch-Site": "none"}, 200),
        ("GET", NAVIGATION, 200),
        ("GET", NAVIGATION | {"Sec-Fetch-Dest": "iframe"}, 403),
        ("POST", NAVIGATION, 403),
        ("DELETE", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("OPTIONS", {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}, 403),
    ],
)
async def test_a_page_of_another_site_makes_a_browser_do_nothing(
    method: str, headers: dict[str, str], status: int
) -> None:
    """CSRF: by Origin and Sec-Fetch-Site. A link to one of our pages may be followed; nothing is allowed by CORS."""
    async with served(service_settings()) as client:
        got = await client.request(method, "/healthz", headers={"Host": "localhost:6800"} | headers)
        assert got.status == status
        assert not [name for name in got.headers if name.lower().startswith("access-control-")]


async def test_with_credentials_too() -> None:
    """A browser adds the Basic password that it knows."""
    async with served(service_settings(), reached) as client:
        headers = TOKEN | {"Origin": "http://evil.example"}
        assert (await client.post("/api/v1/jobs", headers=headers)).status == 403


@pytest.mark.parametrize("prefix", ["", "/crawl", "/a/b.c/d_e-f~g"])
async def test_a_prefix_of_a_proxy_is_noted(prefix: str) -> None:
    """For links."""

    async def told(request: web.Request) -> web.StreamResponse:
        return web.Response(text=prefix_of(request))

    async with served(service_settings(), told) as client:
        got = await client.get("/readyz", headers={"X-Forwarded-Prefix": prefix})
        assert (got.status, await got.text()) == (200, prefix)


@pytest.mark.parametrize("prefix", ["/", "crawl", "//evil.example", "/a/", '/a"><script>', "/a b", "/é", "https://e"])
async def test_a_prefix_that_is_no_path_is_refused(prefix: str) -> None:
    """It would stand in links."""
    assert not PREFIX.fullmatch(prefix)
    async with served(service_settings()) as client:
        assert (await client.get("/healthz", headers={"X-Forwarded-Prefix": prefix})).status == 400


async def test_every_answer_says_what_a_browser_may_do_with_it() -> None:
    """Errors too; and not which library answers."""
    async with served(service_settings()) as client:
        for path, headers in (("/healthz", {}), ("/x", {}), ("/x", TOKEN), ("/healthz", {"Host": "evil.example"})):
            got = await client.get(path, headers=headers)
            assert {name: got.headers.get(name) for name in HEADERS} == HEADERS
            assert got.headers["Server"] == "crawlog"
            assert "unsafe-inline" not in got.headers["Content-Security-Policy"]


async def test_a_body_is_bounded() -> None:
    """By its length, and while it is read."""

    async def reads(request: web.Request) -> web.StreamResponse:
        return web.Response(text=str(len(await request.read())))

    async def chunks() -> object:
        for _ in range(BODY_BYTES // 65_536 + 2):
            yield b"x" * 65_536

    async with served(service_settings(), reads) as client:
        assert (await client.get("/readyz", data=BytesIO(b"x" * (BODY_BYTES + 1)))).status == 413
        assert (await client.get("/readyz", data=chunks())).status == 413
        assert (await client.get("/readyz", data=b"x" * 1000)).status == 200


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("identity, br", 415), ("identity", 200), ("", 200)])
async def test_a_packed_body_is_refused(coding: str, status: int) -> None:
    """Unpacking it would cost more than it costs to send."""
    async with served(service_settings()) as client:
        answer = await client.get("/healthz", data=b"{}", headers={"Content-Encoding": coding})
        assert answer.status == status


async def test_requests_of_one_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """429, as JSON."""
    monkeypatch.setattr("crawlog.service.process.AT_ONCE", 2.0)
    monkeypatch.setattr("crawlog.service.process.PER_S", 0.0)
    async with served(service_settings()) as client:
        assert [(await client.get("/healthz")).status for _ in range(3)] == [200, 200, 429]
        assert "error" in await (await client.get("/healthz")).json()


@pytest.mark.parametrize(("host", "name"), [("a:1", "a"), ("A.", "a"), ("[::1]", "::1"), ("a b", None), ("", None)])
def test_a_host_header_is_read_as_browsers_write_it(host: str, name: str | None) -> None:
    """All else is no host of ours."""
    assert host_name(host) == name or (name is None and host_name(host) == host)
