"""Turns at an address: at once or not at all, or in the order of coming."""

import asyncio

from crawlog.agents.addresses import Addresses


async def the_same(_url: str) -> str:
    """One address for all."""
    return "192.0.2.1"


async def answer() -> str:
    """Given at once."""
    return "answered"


async def test_nobody_who_comes_later_passes_by_those_that_wait() -> None:
    """The dispatcher has always somebody to ask; a page in the browser would wait for ever."""
    addresses = Addresses(1, the_same)
    first_ends, second_ends = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(addresses.in_turn("http://a.com/", first_ends.wait))
    await asyncio.sleep(0)
    second = asyncio.create_task(addresses.in_turn("http://b.com/", second_ends.wait))
    await asyncio.sleep(0)
    first_ends.set()
    await first
    assert await addresses.at_once("http://c.com/", answer) is None
    second_ends.set()
    await second
    assert await addresses.at_once("http://c.com/", answer) == "answered"


async def test_one_that_is_aborted_gives_its_turn_back() -> None:
    """Under way or waiting; and an address that nobody asks is forgotten."""
    addresses = Addresses(1, the_same)
    aborted = [asyncio.create_task(addresses.in_turn("http://a.com/", asyncio.Event().wait)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in aborted:
        task.cancel()
    await asyncio.wait(aborted)
    del aborted, task
    assert await addresses.at_once("http://a.com/", answer) == "answered"
    assert not addresses._places
