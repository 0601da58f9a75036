"""Delays that count by exit: how often a host is asked, and by which exit."""

from itertools import pairwise

import pytest
from msgspec import structs

from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.exits.exits import Exits
from crawlog.streams.exits.ways import read_exit
from crawlog.streams.frontier.host import Task
from tests.support.dispatching import Rests, World, pages

DELAY_S, TOOK_S = 10.0, 1.0


def world_with(count: int, *policies: str, per_exit: bool = True) -> World:
    """A job for each policy, so many exits."""
    world = World(Rests(DELAY_S))
    world.frontier.schedule.exits = Exits(
        [read_exit(f"e{number}=http://proxy:{number + 1}") for number in range(count)]
    )
    for number, policy in enumerate(policies):
        rules = structs.replace(world.frontier.usual.rules, exit_policy=policy, per_exit=per_exit)
        world.job(f"j{number}", requests=rules)
    return world


def crawl(world: World, seconds: float) -> list[tuple[float, float, str, str]]:
    """Of each request: when it began and ended, its exit, its URL. Each takes `TOOK_S`."""
    asked: list[tuple[float, float, str, str]] = []
    flying: list[tuple[float, Task]] = []
    end = world.clock + seconds
    while world.clock < end:
        while (task := world.frontier.next()) is not None:
            assert isinstance(task, Task)
            flying.append((world.clock, task))
        for began, task in [one for one in flying if one[0] + TOOK_S <= world.clock]:
            flying.remove((began, task))
            assert task.exit is not None
            asked.append((began, world.clock, task.exit.name, task.row.url))
            world.frontier.finished(task.host, 0.0, task.job.number, task.exit)
            world.write(task, "fetched")
        world.fold_dones()
        world.pass_time(0.125)
    return asked


@pytest.mark.parametrize("policy", ["request", "every:3"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_exit_has_a_delay_of_its_own(count: int, policy: str) -> None:
    """With `request` a host gets a request by each exit in a delay; by one exit never two within it."""
    world = world_with(count, policy)
    world.find(*pages("shop.test", 200), job="j0")
    asked = crawl(world, 10 * (DELAY_S + TOOK_S))
    for name in {name for _, _, name, _ in asked}:
        times = sorted((began, ended) for began, ended, by, _ in asked if by == name)
        assert all(began >= ended_before + DELAY_S for (_, ended_before), (began, _) in pairwise(times))
    assert len({url for *_, url in asked}) == len(asked)
    most = 10 * count if policy == "request" else 16  # three delays by one exit, and the next one begins at once
    assert most * 9 // 10 - 6 * (policy != "request") <= len(asked) <= most


def test_without_the_setting_all_exits_share_one_delay() -> None:
    """As it is by default."""
    world = world_with(3, "request", per_exit=False)
    world.find(*pages("shop.test", 200), job="j0")
    asked = crawl(world, 10 * (DELAY_S + TOOK_S))
    assert all(later[0] >= before[1] + DELAY_S for before, later in pairwise(sorted(asked)))
    assert {name for _, _, name, _ in asked} == {"e0", "e1", "e2"}


def test_a_job_that_counts_for_the_whole_host_keeps_its_delay_on_a_shared_one() -> None:
    """Until it has nothing more there: then the other one counts by exit."""
    world = world_with(3, "request", "request")
    plain = structs.replace(world.frontier.usual.rules, exit_policy="request")
    world.job("j1", rev=2, requests=plain)
    world.find(*pages("shop.test", 100), job="j0")
    world.find(*pages("shop.test", 2, 900), job="j1")
    asked = sorted(crawl(world, 20 * (DELAY_S + TOOK_S)))
    last = max(number for number, one in enumerate(asked) if "/90" in one[3])
    assert all(later[0] >= before[1] + DELAY_S for before, later in pairwise(asked[: last + 2]))
    assert len(asked) > 30


def test_a_restart_begins_with_a_whole_delay() -> None:
    """Nobody knows which exits asked before."""
    world = world_with(3, "request")
    world.find(*pages("shop.test", 30), job="j0")
    crawl(world, 3.0)
    world.crash()
    began = world.clock
    asked = crawl(world, 2 * (DELAY_S + TOOK_S))
    assert min(asked)[0] >= began + DELAY_S
    assert len(asked) >= 3


def test_a_request_with_its_own_proxy_takes_no_exit() -> None:
    """It counts for the whole host, as one of an unknown exit."""
    world = world_with(2, "request")
    request = RequestRecord(proxy="http://own.test:1")
    found = [u.FoundUrl("http://shop.test/own", id=7, request=request), u.FoundUrl("http://shop.test/1")]
    world.take(u.encode(u.UrlsRecord(job="j0", urls=found)))
    world.pass_time(DELAY_S)
    first = world.next_page()
    assert (first.row.id, first.exit) == (7, None)
    assert world.frontier.next() is None


def test_a_host_waits_until_an_exit_wakes() -> None:
    """robots.txt is not asked for in vain meanwhile."""
    world = world_with(1, "request")
    exits = world.frontier.schedule.exits
    world.find(*pages("shop.test", 3), job="j0")
    (only,) = exits
    exits.failed("http://shop.test:80", only, world.clock, world.clock)
    wakes = world.clock + exits.wakes_in_s("http://shop.test:80", world.frontier.usual.rules, world.clock)
    began = min(crawl(world, 3 * (DELAY_S + TOOK_S)))[0]
    assert wakes <= began <= wakes + 0.125
