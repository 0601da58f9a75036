"""Turns at an address: at once or not at all, or in the order of coming, and no more of them than its rate."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import pytest

from crawlog.agents.client.per_address import LONGEST_S, Addresses, Busy
from crawlog.schemas.urls import RequestRules
from crawlog.streams.settings.sections import Politeness

A = TypeVar("A")

ONE_AT_A_TIME = Politeness(per_ip=1, delay_s=0.0)


class Turns(Addresses):
    """One job asks all requests, by the worker's own settings."""

    def __init__(
        self,
        politeness: Politeness,
        addresses_of: Callable[[str], Awaitable[Sequence[str]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(politeness, addresses_of, now)
        self._rules = RequestRules(politeness.delay_s, politeness.per_host)

    async def once(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """What `ask` answers, at once."""
        return await self.at_once(url, ask, self._rules)

    async def turn(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """What `ask` answers, in its turn."""
        return await self.in_turn(url, ask, self._rules)


async def the_same(_url: str) -> tuple[str, ...]:
    """One address for all."""
    return ("192.0.2.1",)


async def answer() -> str:
    """Given at once."""
    return "answered"


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


async def taken(addresses: Turns, most: int, url: str = "http://a.com/") -> int:
    """How many of so many requests, one after the other, get a turn."""
    turns = 0
    for _ in range(most):
        try:
            await addresses.once(url, answer)
        except Busy:
            continue
        turns += 1
    return turns


async def test_nobody_who_comes_later_passes_by_those_that_wait() -> None:
    """The dispatcher has always somebody to ask; a page in the browser would wait for ever."""
    addresses = Turns(ONE_AT_A_TIME, the_same)
    first_ends, second_ends = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(addresses.turn("http://a.com/", first_ends.wait))
    await asyncio.sleep(0)
    second = asyncio.create_task(addresses.turn("http://b.com/", second_ends.wait))
    await asyncio.sleep(0)
    first_ends.set()
    await first
    with pytest.raises(Busy):
        await addresses.once("http://c.com/", answer)
    second_ends.set()
    await second
    assert await addresses.once("http://c.com/", answer) == "answered"


@pytest.mark.parametrize("politeness", [ONE_AT_A_TIME, Politeness(delay_s=0.001, ip_rate=1, per_ip=1)])
async def test_one_that_is_aborted_gives_its_turn_back(politeness: Politeness) -> None:
    """Under way or waiting; and an address that nobody asks is forgotten."""
    clock = Clock()
    addresses = Turns(politeness, the_same, clock)
    aborted = [asyncio.create_task(addresses.turn("http://a.com/", asyncio.Event().wait)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in aborted:
        task.cancel()
    await asyncio.wait(aborted)
    clock.now += 1.0
    assert await addresses.once("http://a.com/", answer) == "answered"
    clock.now += 1.0
    addresses._sweep()
    assert not addresses._places


async def test_an_address_gives_no_more_turns_than_its_rate_in_any_delay() -> None:
    """However many names lead there. A request counts while it is under way and for one delay after its end."""
    clock, ends = Clock(), asyncio.Event()
    addresses = Turns(Politeness(delay_s=2.0), the_same, clock)
    under_way = [asyncio.create_task(addresses.once(f"http://n{n}.com/", ends.wait)) for n in range(4)]
    await asyncio.sleep(0)
    assert await taken(addresses, 20) == 6
    clock.now += 2.0
    assert await taken(addresses, 20) == 6, "four are still under way"
    ends.set()
    await asyncio.gather(*under_way)
    clock.now += 1.9
    assert await taken(addresses, 20) == 0
    clock.now += 0.1
    assert await taken(addresses, 20) == 10


@pytest.mark.parametrize("politeness", [Politeness(delay_s=0.0), Politeness(ip_rate=0)])
async def test_without_a_delay_or_a_rate_nothing_is_limited(politeness: Politeness) -> None:
    """Nor is the address looked up."""

    async def unknown(_url: str) -> tuple[str, ...]:
        raise AssertionError

    assert await taken(Turns(politeness, unknown), 50) == 50


async def test_a_name_counts_at_each_of_its_addresses() -> None:
    """Nothing tells beforehand which one is connected to: a first one that is dead would hide the second."""
    known = {f"http://n{n}.com/": (f"198.51.100.{n}", "192.0.2.1") for n in range(20)} | {
        "http://a.com/": ("192.0.2.9",)
    }

    async def addresses_of(url: str) -> tuple[str, ...]:
        return known[url]

    addresses = Turns(Politeness(), addresses_of, Clock())
    assert sum([await taken(addresses, 1, url) for url in known if "n" in url]) == 10
    assert await taken(addresses, 1, "http://a.com/") == 1, "another address is not concerned"


@pytest.mark.parametrize(("hosts", "per_host"), [(1, 1), (10, 1), (1, 16)])
async def test_hosts_up_to_the_rate_are_never_refused(hosts: int, per_host: int) -> None:
    """Each asks as soon as the dispatcher lets it: a delay after its last request began, and after each answer."""
    clock, dice = Clock(), random.Random(7)
    addresses = Turns(Politeness(delay_s=1.0, per_host=per_host), the_same, clock)
    due = dict.fromkeys(range(hosts), clock.now)
    under_way: list[tuple[float, int, asyncio.Event, asyncio.Task[bool]]] = []
    asked = 0
    while asked < 300:
        free = [(at, host) for host, at in due.items() if [one[1] for one in under_way].count(host) < per_host]
        if not free or (under_way and min(under_way)[0] <= min(free)[0]):
            clock.now, host, ends, task = under_way.pop(under_way.index(min(under_way)))
            ends.set()
            assert await task
            due[host] = max(due[host], clock.now + 1.0)
            continue
        clock.now, host = min(free)
        ends = asyncio.Event()
        task = asyncio.create_task(addresses.once(f"http://h{host}.com/", ends.wait))
        await asyncio.sleep(0)
        under_way.append((clock.now + dice.choice((0.01, 0.3, 5.0, 30.0)) + dice.random(), host, ends, task))
        due[host] = clock.now + 1.0
        asked += 1
    for *_, ends, task in under_way:
        ends.set()
        assert await task


async def test_refused_requests_are_told_to_come_one_after_the_other() -> None:
    """All at the first free turn would be refused again, each time at the cost of a dispatch."""
    clock = Clock()
    addresses = Turns(Politeness(delay_s=1.0), the_same, clock)
    assert await taken(addresses, 10) == 10
    told: list[float] = []
    for _ in range(500):
        with pytest.raises(Busy) as refused:
            await addresses.once("http://a.com/", answer)
        told.append(refused.value.wait_s)
    assert told[0] == 1.0
    assert [round(later - earlier, 6) for earlier, later in pairwise(told)][:200] == [0.1] * 200
    assert max(told) == LONGEST_S, "those before it may not come at all"


async def test_a_request_that_waits_in_turn_keeps_the_rate_too() -> None:
    """It wakes by itself when a turn is free; before it was asked it counted nowhere."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    addresses = Turns(Politeness(delay_s=0.1, ip_rate=2), the_same)

    async def ask() -> bool:
        times.append(loop.time())
        return True

    async with asyncio.timeout(60):
        await asyncio.gather(*(addresses.turn(f"http://n{n}.com/", ask) for n in range(7)))
    assert min(later - earlier for earlier, later in zip(times, times[2:], strict=False)) >= 0.099
    assert len(times) == 7


async def test_addresses_that_have_rested_are_forgotten() -> None:
    """A broad crawl asks a million of them."""
    clock = Clock()

    async def its_own(url: str) -> tuple[str, ...]:
        return (url,)

    addresses = Turns(Politeness(delay_s=1.0), its_own, clock)
    ends: list[Callable[[], None]] = []
    slow = asyncio.create_task(addresses.once("http://slow/", _until(ends)))
    await asyncio.sleep(0)
    for number in range(3000):
        clock.now += 0.01
        await addresses.once(f"http://{number}/", answer)
        assert len(addresses._places) <= 120
    assert "http://slow/" in addresses._places
    ends[0]()
    await slow


async def test_a_request_that_was_not_sent_takes_no_turn() -> None:
    """A host that was asked by others meanwhile is not asked; its address has nothing to rest from."""
    addresses = Turns(Politeness(), the_same, Clock())

    async def nothing() -> None:
        return None

    for _ in range(20):
        await addresses.turn("http://a.com/", nothing)
    assert await taken(addresses, 20) == 10


def _until(ends: list[Callable[[], None]]) -> Callable[[], asyncio.Future[bool]]:
    """A request that ends when it is told to."""

    def ask() -> asyncio.Future[bool]:
        event = asyncio.Event()
        ends.append(event.set)
        return asyncio.ensure_future(event.wait())

    return ask


async def test_each_request_counts_for_the_delay_of_its_own_job() -> None:
    """A slow job's requests keep a fast one's from the address for longer; a job without a delay is not limited."""
    clock = Clock()
    addresses = Addresses(Politeness(ip_rate=2), the_same, clock)
    slow, fast, free = RequestRules(10.0, 1), RequestRules(1.0, 1), RequestRules(0.0, 1)
    for rules in (slow, fast):
        await addresses.at_once("http://a.com/", answer, rules)
    for after_s, is_busy in ((0.0, 1), (1.0, 0), (0.0, 1), (1.0, 0), (7.5, 0), (0.0, 1), (0.5, 0)):
        clock.now += after_s
        if is_busy:
            with pytest.raises(Busy):
                await addresses.at_once("http://b.com/", answer, fast)
            assert await addresses.at_once("http://c.com/", answer, free) == "answered"
        else:
            assert await addresses.at_once("http://b.com/", answer, fast) == "answered"
