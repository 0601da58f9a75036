"""In which order hosts are asked that are ready: jobs and domains in turns, the longest queues first."""

import gc
import random
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from math import inf

import pytest

from crawlog.schemas.control import Command
from crawlog.streams.frontier.host import Task
from crawlog.streams.frontier.order import Resting
from crawlog.streams.jobs.commands import Commands
from tests.support.dispatching import World, pages


def test_jobs_take_turns() -> None:
    """One with a hundred hosts, one with ten: while both have some, they alternate."""
    world = World()
    for name, hosts in (("many", 100), ("few", 10)):
        world.job(name)
        for n in range(hosts):
            world.find(f"http://{name}{n}.com/", job=name)
    first = [world.next() for _ in range(20)]
    assert Counter(task.job.name for task in first if isinstance(task, Task)) == {"many": 10, "few": 10}


def test_jobs_take_turns_on_a_host_whatever_else_they_have() -> None:
    """The one with other hosts has had a turn there whenever this one has rested, and gets its pages all the same."""
    world = World()
    for first, job in ((0, "slow"), (10, "busy")):
        world.job(job)
        world.find(*pages("both.com", 10, first), job=job)
    for number in range(6):
        world.find(*pages(f"h{number}.com", 10), job="busy")
    asked = Counter[str]()
    while asked.total() < 6:
        task = world.next()
        if task is not None:
            world.fetched(task)
            if isinstance(task, Task) and task.host.domain == "both.com":
                asked[task.job.name] += 1
        else:
            world.pass_time(0.1)
        world.fold_dones()
    assert asked == {"slow": 3, "busy": 3}


def test_domains_take_turns() -> None:
    """A hundred hosts of one domain do not crowd out the only host of another."""
    world = World()
    world.job()
    world.find(*(f"http://h{n}.a.com/" for n in range(100)), "http://b.com/")
    first = [world.next() for _ in range(2)]
    assert {task.domain for task in first if isinstance(task, Task)} == {"a.com", "b.com"}


def served(world: World, places: int, seconds: int) -> list[str]:
    """Domains in the order in which they are asked, by so few places a second that most of them wait for one."""
    asked: list[str] = []
    for _ in range(seconds):
        tasks = [task for _ in range(places) if isinstance(task := world.next(), Task)]
        asked += [task.domain for task in tasks]
        for task in tasks:
            world.fetched(task)
        world.fold_dones()
        world.pass_time(world.rests.delay_s)
    return asked


def test_where_places_run_out_the_longest_queue_is_not_kept_waiting() -> None:
    """It is asked once a delay nearly, from first to last window: the crawl cannot end before it does."""
    world = World()
    world.job()
    world.find(*pages("long.com", 90))
    for n in range(100):
        world.find(*pages(f"h{n}.com", 10))
    asked = served(world, 10, 62)
    assert asked.count("long.com") >= 60
    assert len(asked) == 620


def test_long_queues_leave_others_every_second_place() -> None:
    """However many there are, of however many domains."""
    world = World()
    world.job()
    for n in range(50):
        world.find(*pages(f"long{n}.com", 60))
    for n in range(5):
        world.find(*pages(f"h{n}.com", 1))
    asked = served(world, 4, 28)
    assert len([domain for domain in asked if "long" not in domain]) == 5


def test_of_queues_within_their_windows_the_longest_is_kept_waiting_least() -> None:
    """Hosts that are asked for the first time have little in their queues yet, and a hundred others nearly as much."""
    world = World()
    world.job()
    world.find(*pages("longer.com", 29))
    for n in range(100):
        world.find(*pages(f"h{n}.com", 13))
    asked = served(world, 10, 20)
    assert asked.count("longer.com") >= 13  # until it has no more than they


def test_the_longest_queues_leave_shorter_ones_their_share() -> None:
    """However many there are, those that have more than others are not all that is asked."""
    world = World()
    world.job()
    for n in range(50):
        world.find(*pages(f"long{n}.com", 60))
    world.find(*pages("longer.com", 20))
    for n in range(50):
        world.find(*pages(f"h{n}.com", 2))
    asked = served(world, 4, 28)
    assert asked.count("longer.com") >= 8


def test_two_jobs_share_a_hosts_delay() -> None:
    """And both get their turn."""
    world = World()
    for name in ("j", "k"):
        world.job(name)
        world.find(*(f"http://a.com/{name}{n}" for n in range(3)), job=name)
    assert [url[-2] for url in world.drain()] in (list("jjkjkk"), list("jkjkjk"))


@pytest.mark.parametrize("held", ["other", "limit"])
def test_a_job_that_may_not_go_on_keeps_no_host_from_another(held: str) -> None:
    """The host was ready for it when the other job found something there."""
    world = World()
    world.job("held", max_pages=0 if held == "limit" else None)
    world.frontier.schedule.only = "j" if held == "other" else ""
    world.find("http://a.com/held", job="held")
    assert world.next() is None
    world.job()
    world.find("http://a.com/1", "http://a.com/2")
    assert [url[-1] for url in world.drain()] == ["1", "2"]


def all_done(world: World, _names: list[str]) -> None:
    """All that the jobs have is fetched."""
    world.drain()


def all_cancelled(world: World, names: list[str]) -> None:
    """The jobs end with what they have queued."""
    for name in names:
        world.job(name, rev=2, state="cancelled")


def all_paused(world: World, names: list[str]) -> None:
    """A command keeps the jobs from going on."""
    world.frontier.obey(Commands([Command("pause", job=name) for name in names]))


def jobs_ended(count: int, end: Callable[[World, list[str]], None]) -> tuple[World, list[str]]:
    """A world of jobs that have one URL each, and then have ended so; and their names."""
    world, names = World(), [f"j{n}" for n in range(count)]
    for name in names:
        world.job(name)
        world.find(f"http://{name}.com/", job=name)
    end(world, names)
    assert world.next() is None
    return world, names


def calls_of_a_look(world: World) -> int:
    """Functions called by a look that finds nothing to do."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        task = world.frontier.next()
    finally:
        sys.setprofile(before)
    assert task is None
    return calls


ENDS = pytest.mark.parametrize("end", [all_done, all_cancelled, all_paused])


@ENDS
def test_jobs_that_have_nothing_to_fetch_cost_a_look_nothing(end: Callable[[World, list[str]], None]) -> None:
    """A worker looks with each record and each answer, for weeks and thousands of jobs."""
    many, few = jobs_ended(300, end)[0], jobs_ended(1, end)[0]
    assert calls_of_a_look(many) == calls_of_a_look(few)
    assert not many.frontier.schedule.lines, "nor any memory"


@ENDS
def test_a_job_that_goes_on_has_its_turns_again(end: Callable[[World, list[str]], None]) -> None:
    """By new URLs, by a new revision, by a command; and takes turns with the others."""
    world, names = jobs_ended(3, end)
    world.pass_time(10.0)
    world.frontier.obey(Commands())
    for name in names:
        world.job(name, rev=3)
        world.find(*pages(f"{name}.com", 2), job=name)
    order = [url.split("/")[2] for url in world.drain()]
    least = 2 if end is all_done else 3
    assert Counter(order) == {f"{name}.com": least for name in names}
    assert [len(set(order[at : at + 3])) for at in (0, 3)] == [3, 3]


def test_a_host_that_two_jobs_have_waits_for_the_one_that_goes_on() -> None:
    """1 it is ready for both → 2 one is paused, and lets go of it → 3 that goes on before the host had its turn."""
    world = World()
    for name in ("limited", "paused"):
        world.job(name, max_pages=0 if name == "limited" else None)
        world.find(f"http://a.com/{name}", job=name)
    world.frontier.obey(Commands([Command("pause", job="paused")]))
    assert world.next() is None
    world.frontier.obey(Commands())
    assert world.drain() == ["http://a.com/paused"]


def test_the_first_page_of_a_host_does_not_wait_for_the_robots_txt_of_all_others() -> None:
    """Ten requests a second and a hundred hosts: each has its page a second after its rules."""
    world = World(robots=True)
    world.job()
    for n in range(100):
        world.find(f"http://h{n}.com/")
    asked: list[tuple[str, bool]] = []
    while len(asked) < 200:
        tasks = [task for _ in range(10) if (task := world.next()) is not None]
        asked += [(task.host.key, isinstance(task, Task)) for task in tasks]
        for task in tasks:
            world.fetched(task)
        world.fold_dones()
        world.pass_time(world.rests.delay_s)
    hosts = [host for host, is_page in asked if not is_page]
    assert all(asked.index((host, True)) - asked.index((host, False)) <= 20 for host in hosts)
    assert len(set(hosts)) == 100


def test_hosts_come_back_in_the_order_of_their_times_and_those_of_one_time_as_they_went() -> None:
    """Whichever rest for the usual delay, and whichever for less or for much longer."""
    dice = random.Random(7)
    world, resting, expected = World(), Resting(), list[tuple[float, int]]()
    world.job()
    world.find(*(f"http://h{n}.com/" for n in range(300)))
    hosts = list(world.frontier.owned[0].hosts.values())
    now, back = 0.0, list[tuple[float, int]]()
    for n, host in enumerate(hosts):
        rest = dice.choice((0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 60.0))
        resting.add(now + rest, host, is_usual=rest <= 1.0)
        expected.append((now + rest, n))
        now += dice.choice((0.0, 0.25))
        while (first := resting.pop(now)) is not None:
            back.append(next(entry for entry in expected if hosts[entry[1]] is first))
            assert back[-1] == min(set(expected).difference(back[:-1]))
        left = set(expected).difference(back)
        assert resting.next_at == min(left, default=(inf, 0))[0] > now
        assert {entry[0] for entry in resting} == {entry[0] for entry in left}
    while (first := resting.pop(inf)) is not None:
        back.append(next(entry for entry in expected if hosts[entry[1]] is first))
    assert back[-20:] == sorted(back[-20:])
    assert sorted(back) == sorted(expected)


@pytest.mark.parametrize("where", ["rests", "stands in line"])
def test_a_host_keeps_nothing_of_a_partition_that_was_given_up(where: str) -> None:
    """Its fold holds its pages of the seen table; with each rebalance there would be one more."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2), *pages("x.a.com", 2))
    if where == "rests":
        world.next_page().host.rest(world.clock + 3600.0)
    else:
        world.job(rev=2, state="paused")
    given_up = weakref.ref(world.fold)
    world.rebalance()
    gc.collect()
    assert given_up() is None
    world.job(rev=3)
    world.pass_time(3600.0)
    assert sorted(world.drain()) == sorted([*pages("a.com", 2), *pages("x.a.com", 2)])
