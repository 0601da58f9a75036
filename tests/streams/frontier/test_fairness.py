"""Many jobs share the dispatcher: small ones beside a very large one end soon, on its hosts and on others."""

from typing import Any

import pytest

from crawlog.streams.frontier import schedule
from crawlog.streams.frontier.host import Task
from tests.support.dispatching import Rests, World, pages

SMALL, PAGES = 200, 5


def world_of(big: list[str], delay_s: float = 0.0) -> World:
    """A world with one large job."""
    world = World(Rests(delay_s=delay_s))
    world.job("big")
    for start in range(0, len(big), 500):
        world.find(*big[start : start + 500], job="big")
    return world


def give_small(world: World, host: str = "", count: int = SMALL) -> None:
    """Many small jobs, each on a host of its own, or all on one."""
    for number in range(count):
        world.job(f"small{number}")
        urls = [f"{url}-{number}" for url in pages(host or f"small{number}.com", PAGES)]
        world.find(*urls, job=f"small{number}")


def until_small_ended(world: World, most: int, count: int = SMALL) -> int:
    """How many pages were handed out until all small jobs had theirs, of all jobs."""
    left, handed_out = count * PAGES, 0
    while left:
        task = world.next()
        if task is None:
            at = world.frontier.next_at()
            assert at is not None, "small jobs are forgotten"
            world.pass_time(max(at - world.clock, 0.001))
            continue
        world.fetched(task)
        world.fold_dones()
        assert isinstance(task, Task)
        handed_out += 1
        left -= task.job.name != "big"
        assert handed_out <= most, f"{left} pages of small jobs still wait"
    return handed_out


def test_small_jobs_on_a_host_of_a_large_one_take_turns_with_it() -> None:
    """The host's queue of the large job is long; it has one turn in 41."""
    world, count = world_of(pages("shared.com", 2_000), delay_s=1.0), 40
    world.drain_until(5.0)
    give_small(world, "shared.com", count)
    assert until_small_ended(world, 2 * count * PAGES, count) <= 1.1 * (count + 1) * PAGES


def test_a_job_whose_hosts_rest_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each page of one job would cost a look at all others."""
    world = world_of(pages("shared.com", 10), delay_s=1.0)
    give_small(world)
    while world.frontier.next() is not None:
        pass
    looked, looks = world.frontier._next_of, list[str]()

    def next_of(name: str, *others: Any) -> Any:
        looks.append(name)
        return looked(name, *others)

    with monkeypatch.context() as patched:
        patched.setattr(world.frontier, "_next_of", next_of)
        assert world.frontier.next() is None
    assert not looks


def test_jobs_that_have_ended_lose_their_turns() -> None:
    """A worker that has fetched ten thousand jobs looks at none of them."""
    world = world_of(pages("shared.com", 3))
    give_small(world)
    world.drain()
    world.frontier.size_windows()
    assert not world.frontier.schedule.turns
    assert not world.frontier.schedule.lines
    assert not world.frontier.schedule.awake_of


def test_small_jobs_on_other_hosts_are_not_behind_a_large_one() -> None:
    """Its hosts are ready before theirs."""
    world = world_of([url for host in range(1_000) for url in pages(f"big{host}.com", 10)])
    give_small(world)
    assert until_small_ended(world, 2 * SMALL * PAGES) <= 1.1 * (SMALL + 1) * PAGES


@pytest.mark.parametrize("urls", [1, 10])
def test_small_jobs_are_not_behind_a_large_one_whose_hosts_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, urls: int
) -> None:
    """Their hosts sleep with those of the large job, which were there before."""
    monkeypatch.setattr(schedule, "HOSTS_AWAKE", 100)
    world = world_of([url for host in range(5_000) for url in pages(f"big{host}.com", urls)], delay_s=1.0)
    world.drain_until(0.5)
    give_small(world)
    assert until_small_ended(world, 2 * SMALL * PAGES)
    assert world.frontier.schedule.awake <= 100 + SMALL


def next_of(world: World, job: str, within_s: float) -> str:
    """The page of a job that is handed out next; none if it is not handed out within some seconds."""
    end = world.clock + within_s
    while world.clock < end:
        task = world.next()
        if task is None:
            at = world.frontier.next_at()
            world.pass_time(max((at or end) - world.clock, 0.001))
            continue
        world.fetched(task)
        world.fold_dones()
        assert isinstance(task, Task)
        if task.job.name == job:
            return task.row.url
    return ""


@pytest.mark.parametrize("crowd", ["stays", "ends", "leaves a place"])
def test_a_small_job_whose_host_sleeps_goes_on_with_its_next_page(monkeypatch: pytest.MonkeyPatch, crowd: str) -> None:
    """1 its queue is empty, so its host sleeps → 2 a link is found there: others that sleep are not before it."""
    monkeypatch.setattr(schedule, "HOSTS_AWAKE", 100)
    world = world_of([url for host in range(5_000) for url in pages(f"big{host}.com", 3)], delay_s=1.0)
    world.drain_until(0.5)
    world.job("small")
    world.find("http://small.com/0", job="small")
    assert next_of(world, "small", 2.0) == "http://small.com/0"
    assert "http://small.com:80" not in world.frontier.owned[0].hosts
    if crowd == "leaves a place":
        monkeypatch.setattr(schedule, "HOSTS_AWAKE", world.frontier.schedule.awake + 1)
    world.find("http://small.com/1", job="small")
    if crowd == "ends":
        monkeypatch.setattr(schedule, "HOSTS_AWAKE", 1_000_000)
    assert next_of(world, "small", 2.0) == "http://small.com/1"
