"""Many jobs share the dispatcher: small ones beside a very large one end soon, on its hosts and on others."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.control import Command
from crawlog.streams.frontier import schedule
from crawlog.streams.frontier.host import Task
from crawlog.streams.jobs.commands import Commands
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
    assert world.frontier.schedule.turns.pop() is None
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


REQUESTS = 200


def shares(world: World, requests: int = REQUESTS) -> Counter[str]:
    """How many of the next requests each job has."""
    asked = Counter[str]()
    for _ in range(requests):
        task = world.next_page()
        asked[task.job.name] += 1
        world.fetched(task)
        world.fold_dones()
    return asked


def give(world: World, priority: int, *hosts: str, urls: int = REQUESTS) -> None:
    """A job of this priority, with more URLs on these hosts than are asked for."""
    name = f"p{priority}"
    world.job(name, priority=priority)
    for host in hosts:
        world.find(*(f"{url}-{name}" for url in pages(host, urls // len(hosts) + 1)), job=name)


@given(st.sets(st.integers(0, 9), min_size=2, max_size=4), st.booleans())
def test_each_step_of_priority_doubles_the_share_of_a_job(priorities: set[int], is_shared: bool) -> None:
    """Within two per cent of all requests, of jobs with hosts of their own and of jobs on one host."""
    world = World(Rests(delay_s=0.0))
    for priority in priorities:
        give(world, priority, *(["shared.com"] if is_shared else [f"p{priority}-{n}.com" for n in range(5)]))
    asked, weights = shares(world), {f"p{one}": 2**one for one in priorities}
    for name, weight in weights.items():
        assert abs(asked[name] - REQUESTS * weight / sum(weights.values())) <= 0.02 * REQUESTS


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_lowest_job_has_its_share_beside_the_highest(is_shared: bool) -> None:
    """One request of 513, the first one at once; so has a job that comes later, without those that it missed."""
    world = World(Rests(delay_s=0.0))
    give(world, 9, "shared.com" if is_shared else "a.com", urls=800)
    assert shares(world, 100) == {"p9": 100}
    give(world, 0, "shared.com" if is_shared else "b.com")
    asked = shares(world, 600)
    assert 1 <= asked["p0"] <= 2


def test_another_priority_counts_from_the_next_request_on() -> None:
    """As `jobs update` gives it to a job that runs."""
    world = World(Rests(delay_s=0.0))
    for priority in (4, 5):
        give(world, priority, f"p{priority}.com")
    assert shares(world, 90) == {"p4": 30, "p5": 60}
    world.job("p4", rev=2, priority=6)
    assert shares(world, 90) == {"p4": 60, "p5": 30}


def test_a_job_that_was_paused_has_nothing_to_catch_up_on() -> None:
    """Else it would have all requests until it has had as many as the others."""
    world = World(Rests(delay_s=0.0))
    for priority in (4, 5):
        give(world, priority, f"p{priority}.com")
    world.frontier.obey(Commands([Command("pause", job="p4")]))
    assert shares(world, 100) == {"p5": 100}
    world.frontier.obey(Commands())
    assert abs(shares(world, 90)["p4"] - 30) <= 1


def test_jobs_have_their_shares_of_hosts_that_sleep_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host forgets the turns of its jobs when it sleeps: then the worker's turns count."""
    monkeypatch.setattr(schedule, "HOSTS_AWAKE", 4)
    monkeypatch.setattr(schedule, "OWN_HOSTS", 0)
    world, asked = World(Rests(delay_s=100.0)), Counter[str]()
    hosts = [f"h{number}.com" for number in range(60)]
    for priority in (4, 5):
        give(world, priority, *hosts, urls=len(hosts) * 20)
    while asked.total() < 600:
        task = world.next()
        if task is None:
            world.pass_time(max((world.frontier.next_at() or 0.0) - world.clock, 0.001))
            continue
        world.fetched(task)
        world.fold_dones()
        assert isinstance(task, Task)
        asked[task.job.name] += 1
    assert abs(asked["p4"] - 200) <= 12
