"""Of very many hosts few are in memory, and those that sleep are neither forgotten nor in the way."""

from math import inf
from typing import Any

import pytest

from crawlog.schemas import urls as u
from crawlog.schemas.control import Command
from crawlog.streams.fold.fold import Fold
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.frontier import schedule, waits
from crawlog.streams.frontier.host import RobotsTask, Task
from crawlog.streams.jobs.commands import Commands
from crawlog.streams.robots.robots import RobotsRules
from crawlog.streams.url.place import Places
from tests.support.dispatching import PLACES, WALL, NoCache, World, pages


@pytest.fixture
def two_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two hosts are in memory."""
    monkeypatch.setattr(schedule, "HOSTS_AWAKE", 2)
    monkeypatch.setattr(schedule, "WINDOW", 3)


def held_back(world: World) -> tuple[int, int]:
    """How much of the job commands keep waiting: paused, and blocked."""
    owned = world.frontier.owned[0]
    return owned.held.counts(owned.fold.jobs["j"])


@pytest.mark.usefixtures("two_awake")
@pytest.mark.parametrize("restarted", [False, True])
def test_of_very_many_hosts_few_are_in_memory(restarted: bool) -> None:
    """However they came there, by a found or at a restore; all are fetched all the same."""
    world = World()
    world.job()
    for n in range(50):
        world.find(*pages(f"h{n}.com", 2))
    if restarted:
        world.crash()
    owned = world.frontier.owned[0]
    assert len(owned.hosts) == 2
    assert len(owned.sleepers.times) == 48
    assert len(world.drain()) == 100
    world.pass_time(1)
    world.frontier.size_windows()
    assert (len(owned.hosts), len(owned.sleepers.times), world.frontier.schedule.awake) == (0, 0, 0)


@pytest.mark.usefixtures("two_awake")
def test_long_queues_keep_no_place_for_themselves() -> None:
    """A host whose window is spent goes to the end of the line: each has its turn before one has a third window."""
    world = World()
    world.job()
    for n in range(6):
        world.find(*pages(f"h{n}.com", 100))
    hosts = [url.split("/")[2] for url in world.drain()]
    assert {hosts[:36].count(f"h{n}.com") for n in range(6)} == {6}


@pytest.mark.usefixtures("two_awake")
def test_a_host_that_rests_for_long_gives_its_place() -> None:
    """So hosts that are down keep none from being asked; what a host asked for holds while it sleeps."""
    world = World()
    world.job()
    for n in range(4):
        world.find(*pages(f"h{n}.com", 3))
    for _ in range(2):
        task = world.next()
        assert isinstance(task, Task)
        world.ended(task, wait_s=500.0)
        world.write(task, "fetched")
    resting = set(world.hosts)
    world.fold_dones()
    others = {task.host.key for task in (world.next(), world.next()) if isinstance(task, Task)}
    assert len(others) == 2
    assert not others & resting
    for task in list(world.in_flight):
        world.fetched(task)
    assert len(world.drain()) == 8  # none of them too early: `next` would say


@pytest.mark.usefixtures("two_awake")
@pytest.mark.parametrize("held", ["stopped", "command"])
def test_hosts_that_may_not_go_on_keep_no_place(held: str) -> None:
    """Those of a stopped job, or paused by a command; they are fetched when they may."""
    world = World()
    world.job("held")
    for n in range(5):
        world.find(*pages(f"h{n}.held.com", 2), job="held")
    pause = Command(action="pause", host=".held.com")
    if held == "stopped":
        world.job("held", rev=2, state="stopped")
    else:
        world.frontier.obey(Commands([pause]))
    world.job()
    world.find(*pages("a.com", 2), *pages("b.com", 2))
    assert len(world.drain()) == 4
    if held == "stopped":
        world.job("held", rev=3)
    else:
        world.frontier.obey(Commands([]))
    assert len(world.drain()) == 10


@pytest.mark.usefixtures("two_awake")
@pytest.mark.parametrize(("action", "held"), [("pause", (10, 0)), ("block", (0, 10))])
def test_what_a_command_holds_is_counted_of_hosts_that_sleep_too(action: Any, held: tuple[int, int]) -> None:
    """Those that slept before it, those that come later, and after the partition came back: a run goes by it."""
    world = World()
    world.job()
    for n in range(3):
        world.find(*pages(f"h{n}.held.com", 2))
    command = Command(action=action, host=".held.com")
    world.frontier.obey(Commands([command]))
    for n in range(3, 5):
        world.find(*pages(f"h{n}.held.com", 2))
    world.find(*pages("a.com", 2))
    assert held_back(world) == held
    world.rebalance()
    assert held_back(world) == held
    assert len(world.drain()) == 2
    world.frontier.obey(Commands([]))
    assert held_back(world) == (0, 0)
    assert len(world.drain()) == 10


@pytest.mark.usefixtures("two_awake")
@pytest.mark.parametrize("held", ["limit", "command"])
def test_hosts_that_were_ready_for_a_job_keep_no_place(held: str) -> None:
    """Nobody looks for one in that job any more, at its limit or paused; the other job has all places at once."""
    world = World()
    limit = 0 if held == "limit" else None
    world.job("held", max_pages=limit)
    for n in range(5):
        world.find(*pages(f"h{n}.held.com", 2), job="held")
    if held == "limit":
        world.job("held", rev=2, state="stopped", max_pages=limit)
    else:
        world.frontier.obey(Commands([Command(action="pause", job="held")]))
    world.job()
    for n in range(5):
        world.find(*pages(f"h{n}.com", 2))
    assert [task is not None for task in (world.next(), world.next(), world.next())] == [True, True, False]
    for task in list(world.in_flight):
        world.fetched(task)
    assert len(world.drain()) == 8


@pytest.mark.usefixtures("two_awake")
def test_a_host_asleep_for_one_job_wakes_for_another() -> None:
    """It may not go on for the first one, and the second finds something there."""
    world = World()
    world.job("held")
    world.job()
    for n in range(5):
        world.find(*pages(f"h{n}.com", 2), job="held")
    world.job("held", rev=2, state="stopped")
    assert world.drain() == []
    for n in range(5):
        world.find(f"http://h{n}.com/of-the-other")
    assert len(world.drain()) == 5


@pytest.mark.usefixtures("two_awake")
@pytest.mark.parametrize("paused", ["before", "after"])
def test_waits_of_a_job_that_may_not_go_on_keep_no_place(paused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over before it was paused or after that: they are left in their rows, and come in time when it may go on."""
    monkeypatch.setattr(waits, "WAITING_IN_MEMORY", 3)
    world = World()
    world.job("held")
    world.job()
    for n in range(5):
        world.find(*pages(f"h{n}.held.com", 1), job="held")
    for _ in range(5):
        world.pass_time(1)
        task = world.next()
        assert isinstance(task, Task)
        world.retry(task, 20.0)
        world.fold_dones()
    world.pass_time(30 if paused == "after" else 0)
    if paused == "after":
        world.frontier._wake(world.clock)
    world.frontier.obey(Commands([Command(action="pause", job="held")]))
    for n in range(5):
        world.find(*pages(f"h{n}.com", 1))
        task = world.next()
        assert isinstance(task, Task)
        world.retry(task, 30.0)
        world.fold_dones()
        world.pass_time(1)
    assert len(world.drain()) == 5
    world.frontier.obey(Commands([]))
    assert len(world.drain()) == 5


def test_urls_put_back_keep_no_waits_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody fetches those of a paused job, so they would take the places of another job's waits for ever."""
    monkeypatch.setattr(waits, "WAITING_IN_MEMORY", 1)
    world, pauses = World(), [Command(action="pause", job=job) for job in ("held", "j")]
    world.job("held")
    world.find("http://held.com/", job="held")
    held = world.next_page()
    world.job()
    world.find("http://a.com/")
    world.retry(world.next_page(), 5.0)
    world.fold_dones()
    world.aborted(held)
    world.frontier.obey(Commands(pauses))
    world.pass_time(10)
    assert world.next() is None
    world.frontier.obey(Commands(pauses[:1]))
    assert world.drain() == ["http://a.com/"]


@pytest.mark.usefixtures("two_awake")
def test_a_host_that_is_woken_for_a_load_is_fetched_in_its_turn() -> None:
    """The browser looks at it for a page's loads and may never ask it; its own pages do not wait for that."""
    world = World()
    world.job()
    for n in range(5):
        world.find(*pages(f"h{n}.com", 2))
    for n in range(5):
        world.frontier.lend(PLACES.of(f"http://h{n}.com/"))
    assert len(world.drain()) == 10


@pytest.mark.usefixtures("two_awake")
def test_a_host_loaded_for_a_job_that_may_not_go_on_is_asked_for_another() -> None:
    """Its rows come job by job: for the first one it is put to sleep until that job changes."""
    world = World()
    world.job("held")
    world.job()
    for job in ("held", "j"):
        world.find(*pages(f"a.com/{job}", 2), *pages(f"b.com/{job}", 2), *pages(f"c.com/{job}", 2), job=job)
    world.job("held", rev=2, state="paused")
    world.rebalance()
    assert len(world.drain()) == 6


def first_pages(world: World, most: int, robots: bytes) -> dict[str, float]:
    """When each of some hosts is asked for a page first, by the clock; robots.txt is known without a request."""
    first, rules = dict[str, float](), RobotsRules.parse(robots)
    while len(first) < most:
        task = world.next()
        if isinstance(task, RobotsTask):
            task.host.rules, task.host.rules_until = rules, inf
            world.unsent(task)
        elif task is not None:
            first.setdefault(task.host.key, world.clock)
            world.fetched(task)
            world.fold_dones()
        else:
            world.pass_time(max((world.frontier.next_at() or 0.0) - world.clock, 0.001))
    return first


@pytest.mark.usefixtures("two_awake")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("then", ["", "a rebalance"])
def test_a_host_that_slept_through_a_crash_rests_one_crawl_delay(known: bool, then: str) -> None:
    """The request of the crashed worker left no trace, and what robots.txt asks for is known only once it wakes."""
    world = World(robots=True)
    world.job()
    for n in range(5):
        world.find(*pages(f"h{n}.com", 10))
    if known:
        first_pages(world, 5, b"")
        world.pass_time(100)
    crashed_at = world.clock
    world.crash()
    if then:
        world.pass_time(1)
        world.rebalance()
    assert len(world.frontier.owned[0].sleepers.times) == 3
    asked = first_pages(world, 5, b"User-agent: *\nCrawl-delay: 90\n")
    assert min(asked.values()) >= crashed_at + 90


def test_a_host_whose_queue_was_dropped_before_a_crash_rests_too() -> None:
    """1 a page is asked for → 2 its job begins a new epoch → 3 a crash → 4 another job finds a link there."""
    world = World()
    world.job("dropped")
    world.find("http://a.com/", job="dropped")
    assert world.next() is not None
    world.job("dropped", rev=2, epoch=1)
    world.job()
    world.find("http://b.com/")
    world.crash()
    world.find("http://a.com/1")
    assert world.drain_until(0.9) == []
    assert len(world.drain()) == 2


@pytest.mark.usefixtures("two_awake")
def test_a_slowed_host_does_not_sleep_for_ever() -> None:
    """A rest that it has slept is over, however long the command makes it."""
    world = World()
    world.job()
    for n in range(5):
        world.find(*pages(f"h{n}.com", 2))
    world.frontier.obey(Commands([Command(action="slow", job="j", delay_s=300.0)]))
    assert len(world.drain()) == 10


@pytest.mark.usefixtures("two_awake")
def test_a_host_that_sleeps_keeps_no_rows_in_memory() -> None:
    """Only those of URLs whose dones have not been folded are kept at hand."""
    world = World()
    world.job()
    for n in range(50):
        world.find(*pages(f"h{n}.com", 3))
        task = world.next()
        assert isinstance(task, Task)
        world.ended(task, wait_s=500.0)
        world.write(task, "fetched")
        world.fold_dones()
    assert len(world.frontier.owned[0].sleepers.times) >= 48
    assert world.rows._kept == {}


@pytest.mark.usefixtures("two_awake")
def test_hosts_that_sleep_until_the_same_time_wake_in_turns_of_the_partitions() -> None:
    """After a restore all hosts rest equally long; those of partition 0 once came before all others."""
    world, places = World(), Places(2)
    urls = [f"http://h{n}.com/" for n in range(64)]
    for number in range(2):
        fold = Fold(number, places, Rows(InMemory()), cached_pages=2)
        founds = [u.FoundUrl(url) for url in urls if places.of(url).partition == number]
        assert len(founds) > 16
        spec = u.JobSpec(rev=1, scope=u.ScopeSpec(kind="any"))
        for offset, record in enumerate((u.UrlsRecord(job="j", spec=spec), u.UrlsRecord(job="j", urls=founds))):
            fold.take(u.encode(record), offset, WALL)
        for _ in world.frontier.take_over(number, fold, NoCache()):
            pass
    world.clock += 10
    asked = []
    while (task := world.frontier.next()) is not None:
        assert isinstance(task, Task)
        world.frontier.finished(task.host)
        asked.append(task.partition.fold.partition)
    assert len(asked) == len(urls)
    assert all(8 <= asked[at : at + 32].count(0) <= 24 for at in (0, 32))
