"""One client, several jobs: each request is sent as the record of its job says, whatever the worker's settings are."""

import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp.resolver import AsyncResolver
from msgspec import structs
from structlog.testing import capture_logs

from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import own_policy
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.session.cookies import NO_ROOM
from crawlog.streams.settings.sources import NO_FILE, load
from tests.support.proxies import server_tls
from tests.support.raw_http import Pages, chunked, client_by, served, sized


def policy(**rules: Any) -> RequestPolicy:
    """Of a job on a worker that lets everything be asked; the defaults but for these."""
    usual = own_policy(load({"network.allow_private": True, "network.verify_tls": False}, NO_FILE, {}))
    return usual._replace(rules=structs.replace(usual.rules, **rules))


async def asked(client: Client, port: int, name: str = "one", **rules: Any) -> Answer:
    """The answer to a request of a job with these rules."""
    return await client.get(HttpRequest(f"http://127.0.0.1:{port}/{name}", policy=policy(**rules)))


@pytest.mark.parametrize("form", [sized, chunked])
async def test_a_body_may_be_as_large_as_its_job_says(form: Any) -> None:
    """One byte more is too large for that job alone."""
    async with served(Pages(lambda _: form(b"x" * 3000))) as port, client_by() as client:
        assert (await asked(client, port, max_body_bytes=2999)).error == "too_large"
    async with served(Pages(lambda _: form(b"x" * 3000))) as port, client_by() as client:
        assert len((await asked(client, port, max_body_bytes=3000)).body) == 3000


async def test_types_are_kept_by_the_job_that_wants_them() -> None:
    """The same page, for one job with its body and for another without it."""
    async with served(Pages()) as port, client_by() as client:
        kept = [
            (await asked(client, port, content_types=types)).kept
            for types in (("text/html",), ("application/pdf",), ("*/*",))
        ]
    assert kept == [True, False, True]


@pytest.mark.parametrize("form", [sized, chunked])
@pytest.mark.parametrize("body", [b"%PDF-1.7", b"\x00\x01" * 600, b'{"a": 1}', b""])
async def test_a_job_may_keep_bodies_of_any_type(form: Any, body: bytes) -> None:
    """Whatever the header and the first bytes say; these still tell what it is."""
    async with served(Pages(lambda _: form(body))) as port, client_by() as client:
        answer = await asked(client, port, content_types=("*/*",))
    assert (answer.kept, answer.body, answer.error) == (True, body, "")
    assert answer.sniffed == ("application/pdf" if body.startswith(b"%PDF") else answer.sniffed)


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ({"timeout_s": 0.1}, "timeout"),
        ({"first_byte_timeout_s": 0.1}, "first_byte_timeout"),
        ({"timeout_s": 0.1, "first_byte_timeout_s": 60.0}, "timeout"),
    ],
)
async def test_a_server_is_waited_for_as_long_as_the_job_says(rules: dict[str, Any], error: str) -> None:
    """The worker's own settings, 30 and 20 s, are those of other jobs."""
    async with served(Pages(lambda _: b"")) as port, client_by() as client:
        assert (await asked(client, port, **rules)).error == error


@pytest.mark.long
async def test_a_body_that_stops_is_waited_for_as_long_as_the_job_says() -> None:
    """Between two of its parts."""
    async with served(Pages(lambda _: chunked(b"x")[:-5])) as port, client_by() as client:
        assert (await asked(client, port, chunk_timeout_s=0.1)).error == "chunk_timeout"


async def test_cookies_are_kept_for_the_jobs_that_want_them() -> None:
    """Though another job of the same worker wants none."""
    cookie = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
    site = Pages(lambda _: cookie)
    async with served(site) as port, client_by() as client:
        for job, cookies in (("keeps", True), ("keeps", True), ("none", False), ("keeps", False)):
            await client.get(HttpRequest(f"http://127.0.0.1:{port}/one", job=job, policy=policy(cookies=cookies)))
    assert ["Cookie: a=1" in request for request in site.requests] == [False, True, False, False]


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_job_is_told_once_that_there_is_no_room_for_its_cookies(*, keeps: bool) -> None:
    """Its requests went out without them, and nobody knew why; the value may be a secret."""
    cookies = tuple(CookieGiven(f"n{n}", "x" * 4000, path=path) for path in ("/", "/one") for n in range(3))
    record = RequestRecord(cookies=cookies)
    async with served(Pages()) as port, client_by() as client:
        with capture_logs() as logs:
            for job in ("j", "j", "k"):
                url = f"http://127.0.0.1:{port}/one"
                await client.get(HttpRequest(url, job=job, policy=policy(cookies=keeps), record=record))
    told = [line for line in logs if line["event"] == "cookie_left_out"]
    assert [(line["job"], line["cookie"], line["reason"]) for line in told] == [(job, "n1", NO_ROOM) for job in "jk"]
    assert "xxx" not in str(told)


async def test_validators_are_noted_for_the_jobs_that_ask_by_them() -> None:
    """Others have no use for them."""
    tagged = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: x\r\nContent-Length: 1\r\n\r\nx"
    for conditional in (True, False):
        async with served(Pages(lambda _: tagged)) as port, client_by() as client:
            assert ((await asked(client, port, conditional=conditional)).validators is not None) == conditional


async def test_a_job_without_a_user_agent_has_not_that_of_another_run(tmp_path: Path) -> None:
    """The worker's `fetch.user_agent` is for its own jobs, whose records have it."""
    site = Pages()
    settings = load({"network.allow_private": True, "fetch.user_agent": "other/1", "run.data": tmp_path}, NO_FILE, {})
    client = Client(settings, "crawlog/0", lambda: True)
    try:
        async with served(site) as port:
            await asked(client, port)
            await client.get(HttpRequest(f"http://127.0.0.1:{port}/two"))
    finally:
        await client.close()
    sent = [next(line for line in request.splitlines() if line.startswith("User-Agent")) for request in site.requests]
    assert sent == ["User-Agent: crawlog/0", "User-Agent: other/1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "inside.test"])
async def test_a_worker_that_may_ask_private_addresses_does_not_for_jobs_that_may_not(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an address or by a name; not even on a connection that a job that may has left open."""

    async def resolve(_self: object, name: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        same = {"port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
        return [{"hostname": name, "host": "127.0.0.1", **same}]

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    site = Pages()
    async with served(site) as port, client_by() as client:
        url = f"http://{host}:{port}/one"
        closed = [await client.get(HttpRequest(url, policy=policy(allow_private=False)))]
        assert site.connections == 0
        opened = await client.get(HttpRequest(url, policy=policy()))
        closed.append(await client.get(HttpRequest(url, policy=policy(allow_private=False))))
    assert opened.http == 200
    assert [(answer.http, answer.private) for answer in closed] == [(None, True)] * 2
    assert all("private address 127.0.0.1" in answer.error for answer in closed)
    assert all(answer.is_closed for answer in closed), "a setting would open it"
    assert len(site.requests) == 1


async def test_a_certificate_is_checked_for_each_job_that_wants_it_checked(tmp_path: Path) -> None:
    """Though another job of the same worker takes any, and its connection is open."""
    site = Pages()
    async with served(site, server_tls(tmp_path)) as port, client_by() as client:
        url = f"https://127.0.0.1:{port}/one"
        answers = [
            await client.get(HttpRequest(url, policy=policy(verify_tls=strict)))
            for strict in (True, False, True, False)
        ]
    assert [answer.error or answer.http for answer in answers] == ["tls_certificate", 200, "tls_certificate", 200]
    assert len(site.requests) == 2


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal", "127.0.0.1:25"])
async def test_no_setting_opens_what_is_never_asked(host: str) -> None:
    """Addresses of the cloud's metadata, and other protocols' ports: nothing stays queued for them."""
    async with client_by() as client:
        for private in (True, False):
            answer = await client.get(HttpRequest(f"http://{host}/", policy=policy(allow_private=private)))
            assert (answer.private, answer.is_closed) == (True, False)
