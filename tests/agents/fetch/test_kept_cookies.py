"""Cookies as a part of the state: what a site sets is in the next request, whichever worker sends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crawlog.agents.client.client import Client
from crawlog.schemas import urls as u
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.streams.settings.settings import Settings
from tests.support.fetching import URLS, Web, World, changed, running


class Shop:
    """A site with a login that ends, each answer in the order of the requests.

    Attributes:
        heard: Path and Cookie of each request.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.origin = ""

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = (await from_client.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                path = head[0].split()[1]
                cookies = [line.partition(": ")[2] for line in head if line.lower().startswith("cookie:")]
                self.heard.append((path, "".join(cookies)))
                length = [int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:")]
                body = (await from_client.readexactly(sum(length))).decode()
                to_client.write(self.answer(head[0].split()[0], path, "".join(cookies), body).encode())
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()

    def answer(self, _method: str, path: str, _cookies: str, _body: str) -> str:
        """The answer to a request."""
        said = {"/login": "Set-Cookie: sid=7; Path=/\r\n", "/out": "Set-Cookie: sid=; Path=/; Max-Age=0\r\n"}
        said["/basket"] = "Set-Cookie: basket=b; Path=/\r\n"
        return f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{said.get(path, '')}Content-Length: 3\r\n\r\n<p>"

    def got(self, path: str) -> list[str]:
        """The cookies of the requests for a path."""
        return [cookies for one, cookies in self.heard if one == path]


class Club(Shop):
    """A site for members. Its login is for guests: members are sent home, and a POST needs the form's token."""

    def answer(self, method: str, path: str, cookies: str, body: str) -> str:
        """The answer to a request."""
        is_in = "sid=7" in cookies
        status, more, page = "200 OK", "", "<p>"
        if method == "POST" and "token=t" not in body:
            status = "419 No Token"
        elif method == "POST":
            status, more = "302 Found", "Location: /home\r\nSet-Cookie: sid=7; Path=/\r\n"
        elif (path == "/login") == is_in:
            status, more = "302 Found", f"Location: {'/home' if is_in else '/login'}\r\n"
        elif path == "/login":
            page = "<form method=post><input type=hidden name=token value=t><input type=password name=p></form>"
        return f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{more}Content-Length: {len(page)}\r\n\r\n{page}"


class Real(Web):
    """A real client that may reach this machine."""

    client: Client

    def as_client(self, settings: Settings, *others: Any) -> Client:
        """The fetcher's own client."""
        self.client = Client(changed(settings, {"network.allow_private": True}), *others)
        return self.client


@asynccontextmanager
async def shop(kind: type[Shop] = Shop) -> AsyncIterator[Shop]:
    """The site, serving."""
    site = kind()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield site
    finally:
        server.close()


@asynccontextmanager
async def worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, log: list[bytes], **changes: Any
) -> AsyncIterator[World]:
    """A worker that has folded a log. The log of this worker goes into it when it ends."""
    web = Real()
    settings = {"fetch__cookies": True, "network__allow_private": True, **changes}
    async with running(folder, monkeypatch, web, **settings) as world:
        for value in log[1:]:
            world.log.send(URLS, value)
        await world.until(lambda: world.log.ends[URLS] == max(len(log), 1) and world.is_folded)
        yield world
        log[:] = [record.value or b"" for record in world.log.records if record.topic == URLS]
        await web.client.close()


def begin_again(world: World) -> None:
    """The job's next epoch."""
    world.log.send(URLS, u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind())))
    spec = u.JobSpec(rev=2, scope=u.ScopeSpec(kind="any"))
    world.log.send(URLS, u.encode(u.UrlsRecord(job="j", epoch=1, spec=spec)))


async def visit(world: World, *urls: str) -> None:
    """Fetch URLs, one after the other."""
    for url in urls:
        world.find(url)
        await world.all_done(url)


async def test_a_login_outlives_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second worker has nothing but the log. So has the third, which learns that the session was ended."""
    log: list[bytes] = []
    async with shop() as site:
        for number, paths in enumerate((("/login", "/one"), ("/two", "/out", "/three"), ("/four",))):
            async with worker(tmp_path / str(number), monkeypatch, log) as world:
                await visit(world, *(site.origin + path for path in paths))
        assert site.heard == [
            ("/login", ""), ("/one", "sid=7"), ("/two", "sid=7"), ("/out", "sid=7"), ("/three", ""), ("/four", ""),
        ]  # fmt: skip
    changes = [result.cookies for value in log for result in u.decode(value).results or ()]
    assert [[(one.name, one.value, one.gone) for one in change] for change in changes] == [
        [("sid", "7", False)], [], [], [("sid", "", True)], [], [],
    ]  # fmt: skip


async def test_an_answer_in_flight_counts_for_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its done is folded: here the log takes nothing until both were answered."""
    async with shop() as site, worker(tmp_path, monkeypatch, []) as world:
        world.find(site.origin + "/login", site.origin + "/one")
        await world.until(lambda: world.is_folded)
        world.log.is_silent = True
        await world.until(lambda: len(site.heard) == 2)
        assert site.heard == [("/login", ""), ("/one", "sid=7")]


async def test_a_request_brings_cookies_along_and_names_its_jar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They join the jar, also for the next worker; a request that keeps no cookies neither sends nor keeps any."""
    log: list[bytes] = []
    async with shop() as site:
        async with worker(tmp_path / "1", monkeypatch, log) as world:
            given = (CookieGiven("lang", "en"),)
            world.ask(site.origin + "/anna", RequestRecord(jar="anna", cookies=given), 0)
            await world.all_done(site.origin + "/anna")
            world.ask(site.origin + "/login", RequestRecord(jar="bob"), 0)
            await world.all_done(site.origin + "/login")
            world.ask(site.origin + "/basket", RequestRecord(jar="bob", keeps_cookies=False, cookies=given), 0)
            await world.all_done(site.origin + "/basket")
        async with worker(tmp_path / "2", monkeypatch, log) as world:
            for path, jar in (("/a", "anna"), ("/b", "bob"), ("/c", "")):
                world.ask(site.origin + path, RequestRecord(jar=jar), 0)
                await world.all_done(site.origin + path)
        assert site.heard == [
            ("/anna", "lang=en"), ("/login", ""), ("/basket", ""), ("/a", "lang=en"), ("/b", "sid=7"), ("/c", ""),
        ]  # fmt: skip


async def test_a_job_without_cookies_has_no_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request brings along is sent with that request alone."""
    log: list[bytes] = []
    async with shop() as site, worker(tmp_path, monkeypatch, log, fetch__cookies=False) as world:
        await visit(world, site.origin + "/login")
        world.ask(site.origin + "/one", RequestRecord(cookies=(CookieGiven("lang", "en"),)), 0)
        await world.all_done(site.origin + "/one")
        await visit(world, site.origin + "/two")
        assert site.heard == [("/login", ""), ("/one", "lang=en"), ("/two", "")]
        assert not any(done.cookies for done in world.log.dones)
        assert list(world.stage.live[0].rows.scan(b"k")) == []


async def test_a_new_epoch_begins_without_cookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory too."""
    async with shop() as site, worker(tmp_path, monkeypatch, []) as world:
        await visit(world, site.origin + "/login")
        begin_again(world)
        world.find(site.origin + "/one", epoch=1)
        await world.all_done(site.origin + "/one")
        assert site.heard == [("/login", ""), ("/one", "")]


async def test_a_login_whose_session_another_worker_began_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cookie is in the jar, so the form's page leads away, and a POST without the page's token is refused."""
    log: list[bytes] = []
    async with shop(Club) as site:
        for number, path in enumerate(("/one", "/two")):
            forms = (f"{site.origin}/login#p=x",)
            async with worker(tmp_path / str(number), monkeypatch, log, fetch__forms=forms) as world:
                await visit(world, site.origin + path)
                assert world.became()[site.origin + path][:2] == ("fetched", "")
    assert [path for path, _ in site.heard] == ["/login", "/login", "/one", "/login", "/login", "/two"]


async def test_a_new_epoch_logs_in_without_the_cookies_of_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the job keeps no others, so that they are in memory alone."""
    async with shop(Club) as site:
        changes = {"fetch__cookies": False, "fetch__forms": (f"{site.origin}/login#p=x",)}
        async with worker(tmp_path, monkeypatch, [], **changes) as world:
            await visit(world, site.origin + "/one")
            begin_again(world)
            world.find(site.origin + "/two", epoch=1)
            await world.all_done(site.origin + "/two")
            assert {what[0] for what in world.became().values()} == {"fetched"}
    assert site.heard == [
        ("/login", ""), ("/login", ""), ("/one", "sid=7"), ("/login", ""), ("/login", ""), ("/two", "sid=7"),
    ]  # fmt: skip
