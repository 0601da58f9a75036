"""The dispatcher, driven with the fold under a clock of its own: polite, fair, nothing twice, nothing forgotten."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.schemas.control import Command
from crawlog.streams.frontier import partition as owned_partition
from crawlog.streams.frontier import schedule, waits
from crawlog.streams.frontier.host import RobotsTask, Task
from crawlog.streams.jobs.commands import Commands
from crawlog.streams.robots.robots import RobotsRules
from tests.support.dispatching import WALL, NoCache, Rests, World, pages


@pytest.mark.parametrize("late_s", [0.0, 0.0015, 0.003, 0.0045])
def test_a_host_that_is_ready_while_the_next_is_chosen_waits_for_the_next_look(late_s: float) -> None:
    """A retry due just as its host has rested: by a clock read once more it is ready, by the first it is not."""
    world = World(Rests(delay_s=1.0))
    world.job()
    world.find("http://a/1")
    task = world.next_page()
    world.retry(task, 1.0 - late_s)
    world.fold_dones()
    world.pass_time(1.0 - late_s)
    readings = 0

    def ticking() -> float:
        nonlocal readings
        readings += 1
        assert readings < 1000, "it never ends"
        return world.clock + readings * 0.001

    world.frontier.schedule.now = ticking
    while world.frontier.next() is None:
        world.pass_time(0.0005)


def end(world: World, draw: random.Random, task: Task | RobotsTask) -> None:
    """A request ends in one of the ways there are."""
    if isinstance(task, Task) and draw.random() < 0.5:
        if draw.random() < 0.5:
            world.refused(task)
        else:
            world.retry(task, draw.choice([0.5, 5, 20]), draw.choice([0, 0, 9]))
    else:
        draw.choice([world.fetched, world.fetched, world.aborted])(task)


def keep(world: World, draw: random.Random) -> None:
    """What a worker does beside fetching; sometimes it dies."""
    pick = draw.random()
    if pick < 0.5:
        world.fold_dones()
        world.pass_time(draw.choice([0.1, 1.0, 3.0]))
    elif pick < 0.7:
        world.checkpoint()
    elif pick < 0.9:
        world.frontier.size_windows()
    elif pick < 0.95:
        world.rebalance()
    else:
        world.crash()


def interfere(world: World, draw: random.Random, revs: Counter[str]) -> None:
    """Commands and job records: what may go on changes."""
    job = draw.choice("jk")
    if draw.random() < 0.5:
        revs[job] += 1
        world.job(job, revs[job], order=world.order, state=draw.choice(["running", "stopped"]))
    else:
        pause = Command(action="pause", job=job)
        slow = Command(action="slow", job=job, delay_s=draw.choice([5.0, 100.0]))
        hosts = [Command(action="pause", host="a.com"), Command(action="block", host="a.com")]
        world.frontier.obey(Commands(draw.choice([[], [pause], [slow], hosts[:1], hosts[1:]])))


def live(world: World, draw: random.Random, urls: set[str], revs: Counter[str]) -> None:
    """One step of a life: links are found, requests end, time passes, somebody meddles, the worker restarts."""
    pick = draw.random()
    if pick < 0.15:
        job = draw.choice("jk")
        found = pages(f"{draw.choice('abc')}.com/{job}", draw.choice([1, 5, 40]), draw.randrange(60))
        urls.update(found)
        world.find(*found, job=job, priority=draw.choice([0, 0, 0, 3]), depth=draw.randrange(3))
    elif pick < 0.18:
        interfere(world, draw, revs)
    elif pick < 0.55:
        world.next()
    elif pick < 0.8 and world.in_flight:
        end(world, draw, draw.choice(world.in_flight))
    else:
        keep(world, draw)


@given(
    seed=st.integers(0, 1_000_000),
    rests=st.builds(Rests, st.sampled_from([0.0, 1.0]), st.sampled_from([1, 2])),
    robots=st.booleans(),
    order=st.sampled_from(["fifo", "lifo"]),
    small=st.booleans(),
    awake=st.sampled_from([1, 2, 20_000]),
)
def test_nothing_is_forgotten_nothing_is_done_twice(
    seed: int, rests: Rests, robots: bool, order: str, small: bool, awake: int
) -> None:
    """Whatever a worker lives through, each URL found is done once, and no host is asked too early or too much.

    Two jobs have their hosts in common. In the end first one may go on, then both.
    """
    draw = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        if small:
            patched.setattr(schedule, "WINDOW", 4)
            patched.setattr(waits, "WAITING_IN_MEMORY", 3)
        patched.setattr(schedule, "HOSTS_AWAKE", awake)
        world = World(rests, robots)
        world.order = order
        world.frontier.size_windows()
        urls, revs = set[str](), Counter("jk")
        for job in revs:
            world.job(job, order=order)
        for _ in range(400):
            live(world, draw, urls, revs)
        for task in list(world.in_flight):
            world.fetched(task)
        world.fold_dones()
        world.frontier.obey(Commands([]))
        world.job("j", rev=99, order=order)
        world.job("k", rev=99, order=order, state="stopped")
        world.drain()
        more = [f"http://{name}.com/j-more" for name in "abc"]
        world.find(*more)
        world.drain()
        assert not {url for url in urls.union(more) if "/j" in url} - world.done.keys()
        world.job("k", rev=100, order=order)
        world.drain()
        assert world.done == Counter(dict.fromkeys(urls.union(more), 1))
        assert [world.fold.jobs[job].counts.queued for job in revs] == [0, 0]
        assert world.frontier.owned[0].pending == {}


def test_a_host_is_asked_one_at_a_time() -> None:
    """The next request waits for the response, however long that takes."""
    world = World()
    world.job()
    world.find(*pages("a.com", 3))
    assert world.next() is not None
    world.pass_time(100)
    assert world.next() is None


def test_the_delay_runs_from_the_responses_end() -> None:
    """Not from the request."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next()
    assert task is not None
    world.pass_time(5)
    world.fetched(task)
    world.pass_time(0.99)
    assert world.next() is None
    world.pass_time(0.02)
    assert world.next() is not None


def test_a_longer_crawl_delay_holds() -> None:
    """As robots.txt wished it."""
    world = World()
    world.job(requests=u.RequestRules(robots=True))
    world.find(*pages("a.com", 2))
    robots = world.next()
    assert robots is not None
    world.fetched(robots)
    world.pass_time(1)
    task = world.next()
    assert task is not None
    task.host.rules = RobotsRules.parse(b"User-agent: *\nCrawl-delay: 10")
    world.fetched(task)
    assert world.frontier.next_at() == world.clock + 10


def test_more_at_a_time_still_start_a_delay_apart() -> None:
    """Two places: the second request one delay after the first, the third when one has ended and rested."""
    world = World(Rests(1.0, 2))
    world.job()
    world.find(*pages("a.com", 5))
    assert world.next() is not None
    assert world.next() is None
    world.pass_time(1)
    assert world.next() is not None
    world.pass_time(1)
    assert world.next() is None


def test_a_rest_that_a_host_asked_for_outlives_a_refused_url() -> None:
    """Two in flight: one is answered 503 with a minute's rest, the other turns out to be refused by a rule."""
    world = World(Rests(1.0, 2))
    world.job()
    world.find(*pages("a.com", 5))
    first = world.next()
    world.pass_time(1)
    second = world.next()
    assert isinstance(first, Task)
    assert isinstance(second, Task)
    world.ended(first, wait_s=60.0)
    world.refused(second)
    world.pass_time(59)
    assert world.next() is None


def test_a_refused_url_costs_no_delay() -> None:
    """There was no request; the next one may go at once."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next_page()
    world.refused(task)
    assert world.next() is not None


def test_robots_rules_come_first() -> None:
    """One request for them, nothing else meanwhile, one delay after them."""
    world = World(Rests(1.0, 2), robots=True)
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next()
    assert isinstance(task, RobotsTask)
    world.find(*pages("a.com", 2, first=2))
    assert world.next() is None
    world.fetched(task)
    world.pass_time(1)
    assert isinstance(world.next(), Task)


def test_expired_robots_rules_are_asked_for_again() -> None:
    """Before the next page."""
    world = World(robots=True)
    world.job()
    world.find(*pages("a.com", 2))
    for kind, rest_s in ((RobotsTask, 1), (Task, 60)):
        task = world.next()
        assert isinstance(task, kind)
        world.fetched(task)
        world.pass_time(rest_s)
    assert isinstance(world.next(), RobotsTask)


def test_after_a_restore_a_full_delay_passes() -> None:
    """A request in flight at the crash left no trace."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    world.crash()
    assert world.next() is None
    assert world.frontier.next_at() == world.clock + 1
    world.pass_time(1)
    assert world.next() is not None


def test_a_partition_that_comes_back_keeps_the_rests_of_its_hosts() -> None:
    """Who need not rest is asked at once; an aborted request counts as one."""
    world = World(Rests(10.0))
    world.job()
    for name in "abc":
        world.find(*pages(f"{name}.com", 2))
        world.pass_time(0.001)  # so that the order is theirs
    first = world.next_page()
    world.fetched(first)
    world.pass_time(4)
    second = world.next_page()
    world.rebalance()
    third = world.next_page()
    assert len({task.host.key for task in (first, second, third)}) == 3
    world.fetched(third)
    assert world.next() is None
    for rested, left_s in ((first, 6), (second, 3.9)):
        world.pass_time(left_s - 0.1)
        assert world.next() is None
        world.pass_time(0.2)
        again = world.next_page()
        assert again.host.key == rested.host.key
        world.fetched(again)


def test_a_request_under_way_counts_as_ended_when_its_partition_is_given_up() -> None:
    """Whoever has the partition next does not know when it ends."""
    world = World(Rests(10.0))
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next_page()
    world.pass_time(7)
    assert world.frontier.rests_of(0) == {task.host.hash: world.clock + 10.0}


def test_what_was_folded_since_the_checkpoint_is_dispatched() -> None:
    """A restore ends with changes that no checkpoint has written yet, host queues among them."""
    world = World()
    world.frontier.disown(0)
    world.job()
    world.find(*pages("a.com", 2))
    world.take_over()
    assert world.drain() == pages("a.com", 2)


def test_a_partition_is_taken_over_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million hosts must not hold up the event loop; it is listened to once all are there."""
    monkeypatch.setattr(owned_partition, "LOADED_AT_ONCE", 1)
    world = World()
    world.job()
    world.find(*(f"http://h{n}.com/" for n in range(5)))
    world.frontier.disown(0)
    world.fold.listener = None
    steps = 0
    for _ in world.frontier.take_over(0, world.fold, NoCache()):
        steps += 1
        assert world.fold.listener is None
    assert steps == 5
    assert world.fold.listener is not None
    assert len(world.drain()) == 5


def turned_away(wait_s: float) -> World:
    """A host that answered 503 and asked for rest, then a restart."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next_page()
    world.retry(task, wait_s, host_wait_s=wait_s)
    world.fold_dones()
    return world


@pytest.mark.parametrize(("jump", "left"), [(0, 60), (20, 40), (100, 1), (-1000, 60)])
def test_a_rest_is_never_longer_than_the_log_says(jump: float, left: float) -> None:
    """Whatever the wall clock did between the answer and the restore."""
    world = turned_away(60.0)
    world.wall += jump
    world.due.clear()
    world.hosts.clear()
    world.crash()
    world.pass_time(left - 0.1)
    assert world.next() is None
    world.pass_time(0.2)
    assert world.next() is not None


@pytest.mark.parametrize("jump", [-1000, 0, 5000])
def test_a_wait_is_counted_on_the_monotonic_clock(jump: float) -> None:
    """The wall clock jumps while the process lives: nothing changes."""
    world = turned_away(30.0)
    world.wall += jump
    assert world.frontier.next_at() == world.clock + 30


def test_a_partition_owned_twice_is_dispatched_once() -> None:
    """An assignment may name a partition that is owned already."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1), *pages("b.com", 1))
    world.take_over()
    world.pass_time(1)
    assert len(world.drain()) == 2


def test_a_partition_let_go_is_not_dispatched() -> None:
    """Neither its queues nor what comes back late."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1), *pages("b.com", 5))
    task = world.next_page()
    world.frontier.disown(0)
    world.aborted(task)
    world.pass_time(100)
    assert world.next() is None
    assert world.frontier.next_at() is None


def test_a_url_goes_back_to_a_host_that_was_forgotten() -> None:
    """The one entry of the host takes it: two would ask the host twice at a time."""
    world = World(Rests(0.0))
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next_page()
    world.frontier.finished(task.host)
    world.frontier.size_windows()
    world.find(*pages("a.com", 1, first=1))
    world.frontier.back(task)
    assert [host.key for host in world.frontier.owned[0].hosts.values()] == ["http://a.com:80"]
    assert task.host is not world.frontier.owned[0].hosts["http://a.com:80"]


def test_a_retry_waits_its_time() -> None:
    """Then it goes before the queue."""
    world = World()
    world.job()
    world.find(*pages("a.com", 9))
    task = world.next_page()
    world.retry(task, 4.5)
    world.fold_dones()
    assert world.drain().index("http://a.com/0") == 4


def test_a_wait_renewed_by_another_worker_is_not_cut_short() -> None:
    """A late done of a former owner fails the waiting URL once more: the first due time means nothing then."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next_page()
    world.retry(task, 5.0)
    world.fold_dones()
    late = u.Result(task.row.url, task.sequence, "failed", attempt=2, next_at=WALL + 60, delay_s=60.0)
    world.take(u.encode(u.UrlsRecord(job="j", results=[late])))
    world.pass_time(30)
    assert world.next() is None


def test_more_waits_than_memory_holds_all_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones fill it first; a short one still comes when it is due, and all of them in the end."""
    monkeypatch.setattr(waits, "WAITING_IN_MEMORY", 5)
    world = World(Rests(0.0))
    world.job()
    world.find(*pages("a.com", 31))
    for wait_s in [1000.0] * 30 + [3.0]:
        task = world.next_page()
        world.retry(task, wait_s)
        world.fold_dones()
    assert len(world.frontier.owned[0].waits) < 10
    world.pass_time(3)
    short = world.next()
    assert short is not None
    world.fetched(short)
    assert len(world.drain()) == 30


def test_waits_overdue_at_a_restore_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are due at once; memory holds a few, and none is read twice for each request."""
    world = World(Rests(0.0))
    world.job()
    world.find(*pages("a.com", 200))
    for _ in range(200):
        task = world.next_page()
        world.retry(task, 1.0)
    world.fold_dones()
    monkeypatch.setattr(waits, "WAITING_IN_MEMORY", 10)
    world.pass_time(5)
    world.crash()
    scans = Counter[str]()
    scan = world.rows.scan
    monkeypatch.setattr(world.rows, "scan", lambda *args: (scans.update(["scan"]), scan(*args))[1])
    assert len(world.drain()) == 200
    assert scans["scan"] <= 2 * 200 / 10


def test_a_stopped_job_hands_nothing_out_and_goes_on_where_it_was() -> None:
    """Its queue stays."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    world.job(rev=2, state="stopped")
    assert world.next() is None
    world.job(rev=3)
    assert world.drain() == pages("a.com", 2)


@pytest.mark.parametrize("action", ["pause", "block"])
def test_what_waits_for_another_try_is_held_too(action: Any) -> None:
    """Its time passes meanwhile; it has its next try once the command has ended."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next_page()
    world.retry(task, 60.0)
    world.fold_dones()
    world.frontier.obey(Commands([Command(action=action, host="a.com")]))
    world.pass_time(100)
    assert world.next() is None
    owned = world.frontier.owned[0]
    assert sum(owned.held.counts(owned.fold.jobs["j"])) == 1
    world.frontier.obey(Commands([]))
    assert world.drain() == pages("a.com", 1)


def test_a_done_of_an_older_epoch_is_fetched_again() -> None:
    """A rewind that takes nothing back began a new epoch while its request was in flight."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next_page()
    world.take(u.encode(u.UrlsRecord(epoch=1, rewind=u.Rewind(world.offset))))
    world.job(rev=2, epoch=1)
    world.ended(task)
    world.out.clear()
    world.take(u.encode(u.UrlsRecord(job="j", results=[u.Result(task.row.url, task.sequence, "fetched")])))
    assert world.drain() == pages("a.com", 1)


def test_a_job_that_begins_again_is_forgotten() -> None:
    """Queued, waiting, woken or in flight: nothing of the old epoch is handed out, and another job goes on."""
    world = World()
    world.job()
    world.job("k")
    world.find(*pages("a.com", 5), *pages("b.com", 1))
    world.find(*pages("c.com", 2), job="k")
    tasks = {task.host.domain: task for task in (world.next() for _ in range(3)) if isinstance(task, Task)}
    world.retry(tasks["a.com"], 1.0)
    world.fetched(tasks["c.com"])
    world.fold_dones()
    world.take(u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind())))
    world.pass_time(2.0)
    assert world.drain() == ["http://c.com/1"]
    world.job(rev=2, epoch=1)
    world.out.clear()
    world.due.clear()
    world.find("http://a.com/0", "http://b.com/0")
    assert world.drain() == ["http://a.com/0"]  # a request to the other host is still under way
    world.fetched(tasks["b.com"])
    world.unfolded.clear()
    assert world.drain() == ["http://b.com/0"]


def test_a_url_found_nearer_in_flight_is_handed_out_again() -> None:
    """After its first done, not before."""
    world = World()
    world.job(max_depth=5)
    world.find(*pages("a.com", 1), depth=3)
    task = world.next_page()
    world.find(*pages("a.com", 1), depth=1)
    assert task.row.depth == 3
    world.ended(task)
    world.write(task, "fetched", depth=3)
    world.pass_time(1)
    assert world.next() is None
    world.take(world.unfolded.pop())
    world.out.clear()
    again = world.next_page()
    assert again.row.depth == 1


def test_hosts_with_nothing_to_fetch_are_forgotten() -> None:
    """Once they have rested; not while a request is in flight."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1), *pages("b.com", 1))
    task = world.next()
    assert task is not None
    other = world.next()
    assert other is not None
    world.fetched(task)
    world.fold_dones()
    world.frontier.size_windows()
    assert len(world.frontier.owned[0].hosts) == 2
    world.pass_time(1)
    world.frontier.size_windows()
    assert [host.in_flight for host in world.frontier.owned[0].hosts.values()] == [1]


@pytest.mark.parametrize("has_room", [True, False])
def test_a_host_that_is_shut_is_remembered_while_there_is_room(has_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its robots.txt may be tried again; beyond the room it would keep others out."""
    world = World(robots=True)
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next()
    assert task is not None
    world.ended(task)
    assert isinstance(task, RobotsTask)
    task.host.rules = None
    task.host.close("timeout", world.clock + 50.0, asking=task.policy.asking)
    world.pass_time(1)
    world.refused(world.next_page())
    world.fold_dones()
    monkeypatch.setattr(schedule, "HOSTS_AWAKE", 9 if has_room else 1)
    world.frontier.size_windows()
    assert bool(world.frontier.owned[0].hosts) is has_room
    world.pass_time(60)
    world.frontier.size_windows()
    assert not world.frontier.owned[0].hosts


def test_a_forgotten_host_still_rests() -> None:
    """It is forgotten only when it needs none; found again, it is asked at once and then rests as ever."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    world.drain()
    world.frontier.size_windows()
    world.find(*pages("a.com", 2, first=1))
    assert len(world.drain()) == 2


@pytest.mark.parametrize("restart", [False, True])
def test_a_host_that_comes_back_into_memory_was_turned_away_once_for_each_rest(restart: bool) -> None:
    """Its row counts all eight requests that failed together."""
    world = World(rests=Rests(0.0, 8))
    world.job()
    world.find(*pages("a.com", 8))
    for task in [world.next_page() for _ in range(8)]:
        world.retry(task, 5.0, host_wait_s=2.3)
    world.fold_dones()
    world.pass_time(4.0)
    if restart:
        world.crash()
    else:
        world.frontier.size_windows()
        assert not world.frontier.owned[0].hosts
    world.pass_time(2.0)
    task = world.next_page()
    assert (task.host.failures, task.round) == (1, 0)


def test_requests_that_are_handed_out_before_a_failure_are_of_its_round() -> None:
    """Those that follow its rest are of the next one."""
    world = World(rests=Rests(0.0, 2))
    world.job()
    world.find(*pages("a.com", 3))
    tasks = [world.next_page() for _ in range(2)]
    for task in tasks:
        task.host.failed(task.round)
        world.retry(task, 60.0, host_wait_s=2.0)
    world.pass_time(2.0)
    assert [task.round for task in (*tasks, world.next_page())] == [0, 0, 1]


def steps_of_a_request(hosts: int) -> float:
    """Clock readings and row reads for each request, over a host's first and second page: calls, not time."""
    world = World(Rests(10.0))
    world.job()
    for n in range(hosts):
        world.find(f"http://h{n}.com/1", f"http://h{n}.com/2")
    calls = Counter[str]()
    get = world.rows.get
    world.rows.get = lambda key: (calls.update(["get"]), get(key))[1]  # type: ignore[method-assign]  # counted
    world.frontier.schedule.now = lambda: (calls.update(["now"]), world.clock)[1]
    world.frontier.schedule.arrange = counted(calls, world.frontier.schedule.arrange)  # type: ignore[method-assign]  # counted
    assert len(world.drain()) == 2 * hosts
    return calls.total() / hosts


def counted(calls: "Counter[str]", function: Any) -> Any:
    """The function, each call counted."""

    def call(*args: Any) -> Any:
        calls.update([function.__name__])
        return function(*args)

    return call


def test_a_request_costs_the_same_with_many_hosts() -> None:
    """A thousand hosts or ten."""
    assert steps_of_a_request(1000) <= 1.1 * steps_of_a_request(10)


def test_the_slowest_hosts_are_shown() -> None:
    """With what they have queued and how long they rest; each in the report of its own partition, and so once."""
    world = World()
    world.job()
    world.find(*pages("a.com", 3), *pages("b.com", 2))
    for wait_s in (9.0, 5.0):
        task = world.next_page()
        world.retry(task, 1.0, wait_s)
    world.fold_dones()
    a, b = ("http://a.com:80", 3, 9.0), ("http://b.com:80", 2, 5.0)
    assert world.frontier.slowest(1) == {0: [a]}
    assert sorted(world.frontier.slowest(5)[0]) == [a, b]


@pytest.mark.parametrize(
    ("state", "command", "queued"),
    [
        ("running", None, 5),
        ("running", Command("pause", job="k"), 5),
        ("running", Command("stop", job="k"), 3),
        ("paused", None, 5),
        ("stopped", None, 3),
        ("cancelled", None, 3),
        ("finished", None, 5),  # it runs again for them
    ],
)
def test_a_slow_host_has_nothing_queued_of_jobs_that_ended(state: str, command: Command | None, queued: int) -> None:
    """Nobody waits for the URLs of a stopped or a cancelled one."""
    world = World()
    world.job()
    world.find(*pages("a.com", 3))
    world.job("k")
    world.find(*pages("a.com", 2, 10), job="k")
    world.retry(world.next_page(), 1.0, 9.0)
    world.fold_dones()
    world.job("k", 2, state=state)
    if command is not None:
        world.frontier.obey(Commands([command]))
    assert world.frontier.slowest(5) == {0: [("http://a.com:80", queued, 9.0)]}
