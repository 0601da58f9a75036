"""A crawl by many exits: what each is asked, what becomes of the URLs that one does not serve."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.frontier.by_exit import barred
from tests.support.fetching import RealWeb, World, running
from tests.support.raw_http import served
from tests.support.sites import Site

PAGES = 200

CAPTCHA = b"<html><title>Are you a robot?</title>"


class Way(Site):
    """A proxy, and the shop behind it as it treats this one.

    Args:
        bans_after: So many requests are served, then none; by this status, or by a CAPTCHA with 200.
        forbidden: End of URLs that are for nobody.
    """

    def __init__(self, bans_after: int = 10**9, status: int = 200, forbidden: str = " ") -> None:
        super().__init__()
        self.bans_after, self.status, self.forbidden = bans_after, status, forbidden

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = (await from_client.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(head.split()[1])
                is_banned = len(self.requests) > self.bans_after or self.requests[-1].endswith(self.forbidden)
                body = CAPTCHA if is_banned else f"<title>{self.requests[-1]}</title>".encode()
                status = self.status if is_banned else 200
                length = f"Content-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
                to_client.write(f"HTTP/1.1 {status} Said\r\n{length}".encode() + body)
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()


class Stalling(Way):
    """A proxy that takes requests and never answers."""

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        self.requests.append((await from_client.readuntil(b"\r\n\r\n")).decode().split()[1])
        await from_client.read()
        to_client.close()


async def named(stack: AsyncExitStack, **ways: Site) -> tuple[str, ...]:
    """The setting for these proxies."""
    return tuple([f"{name}=http://127.0.0.1:{await stack.enter_async_context(served(w))}" for name, w in ways.items()])


async def test_no_url_is_given_up_where_exits_are_banned_dead_or_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten exits: two banned after 20 requests, one with CAPTCHA pages and 200, one dead, one that stalls."""
    good: dict[str, Way] = {f"good{number}": Way() for number in range(5)}
    bad: dict[str, Way] = {"b403": Way(20, 403), "b429": Way(20, 429), "captcha": Way(0, 200), "stalls": Stalling()}
    urls = [f"http://shop.test/{number}" for number in range(PAGES)]
    async with AsyncExitStack() as stack:
        proxies = (*await named(stack, **good, **bad), "dead=http://127.0.0.1:1")
        options: dict[str, Any] = {"exits__policy": "request", "fetch__first_byte_timeout_s": 2.0}
        world = await stack.enter_async_context(
            running(tmp_path, monkeypatch, RealWeb(), exits__proxies=proxies, **options)
        )
        world.find(*urls)
        await world.all_done(*urls)
        pages, dones = world.log.pages, world.log.dones
        figures = world.stage.frontier.schedule.exits.figures(0.0)
    assert [meta.url for meta, _ in sorted(pages, key=lambda page: urls.index(page[0].url))] == urls, "each once"
    assert all(body == f"<title>{meta.url}</title>".encode() for meta, body in pages), "the page, and no CAPTCHA"
    final = [done for done in dones if not done.next_at]
    assert {(done.status, done.http) for done in final} == {("fetched", 200)}
    assert Counter(done.reason for done in dones if done.next_at) == {"first_byte_timeout": 1}, "the one that stalls"
    assert max(done.attempt for done in dones) == 2
    assert {meta.worker for meta, _ in pages} == {"fetch-0"}
    served_by = Counter(meta.exit for meta, _ in pages)
    assert served_by.keys() == {*good, "b403", "b429"}
    assert served_by["b403"] == served_by["b429"] == 20
    assert max(served_by[name] for name in good) - min(served_by[name] for name in good) <= 3, "an even share"
    assert {name: (of.bans, of.failures) for name, of in figures.items() if of.bans or of.failures} == {
        "b403": (2, 0),  # the first one might have been the page's own
        "b429": (1, 0),
        "captcha": (2, 0),
        "stalls": (0, 1),
        "dead": (0, 1),
    }
    ways = good | bad
    assert {name: of.requests for name, of in figures.items() if name != "dead"} == {
        name: len(way.requests) for name, way in ways.items()
    }
    assert all(of.in_flight == 0 for of in figures.values())
    assert all(of.bytes > 0 < of.median_s for name, of in figures.items() if name in good)


async def test_a_page_that_every_exit_is_refused_is_the_sites_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `exits.refusals` times; exits that serve other pages meanwhile do not rest."""
    ways = {f"e{number}": Way(status=403, forbidden="admin") for number in range(3)}
    urls = ["http://shop.test/1", "http://shop.test/admin", *(f"http://shop.test/{number}" for number in range(2, 9))]
    async with AsyncExitStack() as stack:
        proxies = await named(stack, **ways)
        options = {"exits__policy": "request", "exits__refusals": 3, "exits__proxies": proxies}
        world = await stack.enter_async_context(running(tmp_path, monkeypatch, RealWeb(), **options))
        world.find(*urls)
        await world.all_done(*urls)
        pages = {meta.url: meta.http for meta, _ in world.log.pages}
        wakes_in_s = world.stage.frontier.schedule.exits.figures(0.0)
    assert pages == {url: 403 if url.endswith("admin") else 200 for url in urls}
    assert sum(url.endswith("admin") for way in ways.values() for url in way.requests) == 3
    assert {of.rests_at for of in wakes_in_s.values()} == {0}


async def test_with_one_exit_a_refusal_is_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other one to send it by."""
    async with AsyncExitStack() as stack:
        proxies = await named(stack, only=Way(0, 403))
        world = await stack.enter_async_context(running(tmp_path, monkeypatch, RealWeb(), exits__proxies=proxies))
        world.find("http://shop.test/1", "http://shop.test/2")
        await world.all_done("http://shop.test/1", "http://shop.test/2")
        assert [meta.http for meta, _ in world.log.pages] == [403, 403]


async def test_a_request_that_is_sent_once_keeps_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another exit would send it twice."""
    ways = {"one": Way(0, 403), "two": Way(0, 403)}
    async with AsyncExitStack() as stack:
        proxies = await named(stack, **ways)
        world = await stack.enter_async_context(running(tmp_path, monkeypatch, RealWeb(), exits__proxies=proxies))
        world.ask("http://shop.test/order", RequestRecord("POST", body=b"a=1", once=True), 7)
        await world.until(lambda: world.log.pages)
        assert world.log.pages[0][0].http == 403
    assert sum(len(way.requests) for way in ways.values()) == 1


async def test_a_host_waits_while_all_its_exits_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker reports so, and nothing is sent meanwhile. It goes on when one wakes, and no attempt was lost."""
    monkeypatch.setattr("crawlog.streams.frontier.by_exit.LOOK_S", 0.05)
    ways = {"one": Way(1, 429), "two": Way(1, 429)}
    urls = [f"http://shop.test/{number}" for number in range(3)]
    async with AsyncExitStack() as stack:
        proxies = await named(stack, **ways)
        options = {"exits__policy": "request", "exits__proxies": proxies, "exits__ban_rest_s": 600.0}
        world = await stack.enter_async_context(running(tmp_path, monkeypatch, RealWeb(), **options))
        frontier = world.stage.frontier
        world.find(*urls)
        # Both dones are folded by then, too.
        await world.until(lambda: [one[1] for one in barred(frontier.schedule, frontier.queued, 5).get(0, [])] == [1])
        (host, queued, wait_s) = barred(frontier.schedule, frontier.queued, 5)[0][0]
        assert (host, queued) == ("http://shop.test:80", 1)
        assert 500.0 < wait_s <= 600.0
        assert (len(world.log.pages), sum(len(way.requests) for way in ways.values())) == (2, 4)
        for way in ways.values():
            way.bans_after = 10**9
        for at in frontier.schedule.exits._hosts.values():
            at.rests.clear()  # as after their time
        await world.all_done(*urls)
        attempts = {done.attempt for done in world.log.dones}
        assert barred(frontier.schedule, frontier.queued, 5) == {}
    assert attempts == {1}
    assert sum(len(way.requests) for way in ways.values()) == 5


async def test_the_cookies_of_a_job_go_by_one_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its policy is: a site may end a session that comes from another address."""
    ways = {f"e{number}": Way() for number in range(4)}
    urls = [f"http://{host}.shop.test/{number}" for host in ("www", "img") for number in range(6)]
    async with AsyncExitStack() as stack:
        proxies = await named(stack, **ways)
        options = {"exits__policy": "request", "exits__proxies": proxies}
        world = await stack.enter_async_context(running(tmp_path, monkeypatch, RealWeb(), **options))
        for name, cookies in (("kept", True), ("none", False)):
            rules = structs.replace(world.stage.frontier.usual.rules, cookies=cookies)
            world.job(name, requests=rules)
            world.find(*urls, job=name)
        await world.until(lambda: len(world.log.pages) == 2 * len(urls))
        exits = {name: {meta.exit for meta, _ in world.log.pages if meta.job == name} for name in ("kept", "none")}
    assert (len(exits["kept"]), len(exits["none"])) == (1, 4)


async def test_a_direct_crawl_has_no_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 403 is a page, and its record names no exit."""
    site = Site()
    async with served(site) as port, running(tmp_path, monkeypatch, RealWeb(), network__allow_private=True) as world:
        world.find(f"http://127.0.0.1:{port}/x")
        await until_page(world)
        meta, _ = world.log.pages[0]
    assert (meta.exit, meta.worker) == ("", "fetch-0")


async def until_page(world: World) -> None:
    """A page is in the log."""
    await world.until(lambda: world.log.pages)
