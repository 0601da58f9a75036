"""The dispatcher, driven with the fold under a clock of its own: polite, fair, nothing twice, nothing forgotten."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.schemas.control import Command
from crawlog.streams import frontier as front
from crawlog.streams import rows as r
from crawlog.streams.commands import Commands
from crawlog.streams.domain import Places
from crawlog.streams.fold import Fold
from crawlog.streams.frontier import Frontier
from crawlog.streams.queues import ROW_BYTES, WINDOW, RobotsTask, Task
from crawlog.streams.robots import RobotsRules

PLACES = Places(1)
WALL = 1_700_000_000.0


@dataclass
class Rests:
    """The settings that the dispatcher needs."""

    delay_s: float = 1.0
    per_host: int = 1


class NoCache:
    """A cache that forgets."""

    def cache(self, key: bytes, value: bytes) -> None:
        """Forget it."""

    def remember(self, key: bytes, value: bytes) -> None:
        """Forget it."""

    def cached(self, key: bytes) -> bytes | None:
        """It was forgotten."""


@dataclass
class Kept:
    """What the model knows of a host."""

    in_flight: int = 0
    rests_until: float = 0.0


@dataclass
class World:
    """One partition, its log, its state and its dispatcher; and a model of what may be asked when."""

    rests: Rests = field(default_factory=Rests)
    robots: bool = False
    clock: float = 1000.0
    wall: float = WALL
    order: str = "fifo"

    def __post_init__(self) -> None:
        self.base = r.Memory()
        self.offset = 0
        self.unfolded: list[bytes] = []
        self.in_flight: list[Task | RobotsTask] = []
        self.out: set[str] = set()
        self.done: Counter[str] = Counter()
        self.due: dict[str, float] = {}
        self.hosts: dict[str, Kept] = {}
        self.frontier = Frontier(self.rests, lambda: self.clock, lambda: self.wall, robots=self.robots)
        self.own()

    # ------------------------------------------------------------------ the log

    def own(self) -> None:
        """Open the state as it was checkpointed and dispatch for it: from now on one full delay."""
        self.rows = r.Rows(self.base)
        self.fold = Fold(0, PLACES, self.rows, cached_pages=2)
        self.frontier.own(0, self.fold, NoCache())
        queued = {r.read_host_queue(value).host for _, value in self.rows.scan(b"g") if r.read_host_queue(value).queued}
        for key, kept in self.hosts.items():
            kept.in_flight = 0
            if key in queued:
                kept.rests_until = max(kept.rests_until, self.clock + self.rests.delay_s)

    def checkpoint(self) -> None:
        """Write all changes."""
        self.fold.flush()
        self.base.write(self.rows.taken())

    def take(self, value: bytes) -> None:
        """Fold a record."""
        self.fold.take(value, self.offset, self.wall)
        self.offset += 1

    def job(self, name: str = "j", rev: int = 1, epoch: int = 0, **changes: Any) -> None:
        """Fold a job record."""
        spec = u.JobSpec(rev=rev, scope=u.ScopeSpec(kind="any"), **changes)
        self.take(u.encode(u.UrlsRecord(job=name, epoch=epoch, spec=spec)))

    def find(self, *urls: str, job: str = "j", **fields: Any) -> None:
        """Fold a found."""
        self.take(u.encode(u.UrlsRecord(job=job, urls=[u.FoundUrl(url, **fields) for url in urls])))

    def fold_dones(self) -> None:
        """Read back what was written."""
        while self.unfolded:
            value = self.unfolded.pop(0)
            record = u.decode(value)
            self.take(value)
            for result in record.results or []:
                self.out.discard(result.url)
                if result.next_at:
                    self.due[result.url] = self.clock + result.delay_s
                else:
                    self.done[result.url] += 1

    # ------------------------------------------------------------------ dispatch

    def next(self) -> Task | RobotsTask | None:
        """What is handed out, which the model must allow."""
        task = self.frontier.next()
        if task is None:
            return None
        kept = self.hosts.setdefault(task.host.key, Kept())
        assert kept.in_flight < self.rests.per_host, "too many at a time"
        assert self.clock >= kept.rests_until, "too early"
        if isinstance(task, Task):
            url = task.row.url
            assert url not in self.out, "handed out twice"
            assert not self.done[url], "handed out after it was done"
            assert self.clock >= self.due.get(url, 0.0) - 0.002, "handed out before it was due"
            self.out.add(url)
        kept.in_flight += 1
        self.in_flight.append(task)
        return task

    def ended(self, task: Task | RobotsTask, wait_s: float = 0.0) -> None:
        """The response has ended."""
        self.in_flight.remove(task)
        kept = self.hosts[task.host.key]
        kept.in_flight -= 1
        kept.rests_until = max(kept.rests_until, self.clock + max(self.rests.delay_s, wait_s))
        if isinstance(task, RobotsTask):
            task.host.rules = RobotsRules.allow_all()
            task.host.rules_until = self.clock + 50.0
        self.frontier.finished(task.host, wait_s)

    def write(self, task: Task, status: u.Status, **fields: Any) -> None:
        """Write a done; it is folded later."""
        result = u.Result(
            task.row.url,
            task.sequence,
            status,
            priority=task.row.priority,
            attempt=task.row.attempt + 1,
            at=self.wall,
            **fields,
        )
        self.unfolded.append(u.encode(u.UrlsRecord(job=task.job.name, epoch=task.epoch, results=[result])))

    def fetched(self, task: Task | RobotsTask) -> None:
        """It was answered."""
        self.ended(task)
        if isinstance(task, Task):
            self.write(task, "fetched")

    def retry(self, task: Task, wait_s: float, host_wait_s: float = 0.0) -> None:
        """It failed, and is tried again; perhaps the whole host must rest."""
        self.ended(task, host_wait_s)
        self.write(task, "failed", next_at=self.wall + wait_s, delay_s=wait_s, host_wait_s=host_wait_s)

    def refused(self, task: Task) -> None:
        """A rule refused it: there was no request."""
        self.in_flight.remove(task)
        self.hosts[task.host.key].in_flight -= 1
        self.frontier.unsent(task.host)
        self.write(task, "refused")

    def aborted(self, task: Task | RobotsTask) -> None:
        """It ended without a trace."""
        self.ended(task)
        if isinstance(task, Task):
            self.out.discard(task.row.url)
            self.frontier.back(task)

    def crash(self) -> None:
        """Nothing in flight left a trace; what was written is folded before anything is dispatched."""
        for value in self.unfolded:
            self.take(value)
            for result in u.decode(value).results or []:
                if not result.next_at:
                    self.done[result.url] += 1
                else:
                    self.due[result.url] = 0.0
        self.unfolded.clear()
        self.frontier.disown(0)
        self.checkpoint()
        self.in_flight.clear()
        self.out.clear()
        self.own()

    def pass_time(self, seconds: float) -> None:
        """On both clocks."""
        self.clock += seconds
        self.wall += seconds

    def drain(self, most: int = 20_000) -> list[str]:
        """Fetch all there is; returns the URLs in order."""
        order = []
        for _ in range(most):
            task = self.next()
            if task is not None:
                self.fetched(task)
                order += [task.row.url] if isinstance(task, Task) else []
            self.fold_dones()
            if task is None:
                at = self.frontier.next_at()
                if at is None:
                    return order
                self.pass_time(max(at - self.clock, 0.001))
        raise AssertionError("it never ends")


def pages(host: str, number: int, first: int = 0) -> list[str]:
    """URLs of a host."""
    return [f"http://{host}/{n}" for n in range(first, first + number)]


@pytest.mark.parametrize("late_s", [0.0, 0.0015, 0.003, 0.0045])
def test_a_host_that_is_ready_while_the_next_is_chosen_waits_for_the_next_look(late_s: float) -> None:
    """A retry due just as its host has rested: by a clock read once more it is ready, by the first it is not."""
    world = World(Rests(delay_s=1.0))
    world.job()
    world.find("http://a/1")
    task = world.next()
    assert isinstance(task, Task)
    world.retry(task, 1.0 - late_s)
    world.fold_dones()
    world.pass_time(1.0 - late_s)
    readings = 0

    def ticking() -> float:
        nonlocal readings
        readings += 1
        assert readings < 1000, "it never ends"
        return world.clock + readings * 0.001

    world.frontier.now = ticking
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
    elif pick < 0.95:
        world.frontier.size_windows()
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
        world.frontier.obey(Commands(draw.choice([[], [pause], [slow], [Command(action="pause", host="a.com")]])))


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


@settings(max_examples=40)
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
            patched.setattr(front, "WINDOW", 4)
            patched.setattr(front, "WAITING_IN_MEMORY", 3)
        patched.setattr(front, "HOSTS_AWAKE", awake)
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


# ---------------------------------------------------------------------- politeness


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
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next()
    assert task is not None
    task.host.delay_s = 10.0
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
    task = world.next()
    assert isinstance(task, Task)
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


# ---------------------------------------------------------------------- restores


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


def test_what_was_folded_since_the_checkpoint_is_dispatched() -> None:
    """A restore ends with changes that no checkpoint has written yet, host queues among them."""
    world = World()
    world.frontier.disown(0)
    world.job()
    world.find(*pages("a.com", 2))
    world.frontier.own(0, world.fold, NoCache())
    assert world.drain() == pages("a.com", 2)


def turned_away(wait_s: float) -> World:
    """A host that answered 503 and asked for rest, then a restart."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next()
    assert isinstance(task, Task)
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
    world.frontier.own(0, world.fold, NoCache())
    world.pass_time(1)
    assert len(world.drain()) == 2


def test_a_partition_let_go_is_not_dispatched() -> None:
    """Neither its queues nor what comes back late."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1), *pages("b.com", 5))
    task = world.next()
    assert isinstance(task, Task)
    world.frontier.disown(0)
    world.aborted(task)
    world.pass_time(100)
    assert world.next() is None
    assert world.frontier.next_at() is None


# ---------------------------------------------------------------------- order


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_a_long_queue_keeps_its_order(order: str, written: bool) -> None:
    """Far more URLs than a window holds, in the state's file or not yet."""
    world = World()
    world.job(order=order)
    urls = pages("a.com", 200)
    world.find(*urls)
    if written:
        world.checkpoint()
    assert world.drain() == (urls if order == "fifo" else urls[::-1])


def test_a_higher_priority_goes_first() -> None:
    """Even one that comes when the window is full."""
    world = World()
    world.job()
    world.find(*pages("a.com", 100))
    world.find("http://a.com/high", priority=5)
    world.find("http://a.com/low", priority=-5)
    order = world.drain()
    assert (order[0], order[-1]) == ("http://a.com/high", "http://a.com/low")


def test_a_url_that_goes_back_is_the_next() -> None:
    """It was never tried."""
    world = World()
    world.job()
    world.find(*pages("a.com", 3))
    task = world.next()
    assert task is not None
    world.aborted(task)
    assert world.drain() == pages("a.com", 3)


def test_a_url_goes_back_to_a_host_that_was_forgotten() -> None:
    """The one entry of the host takes it: two would ask the host twice at a time."""
    world = World(Rests(0.0))
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next()
    assert isinstance(task, Task)
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
    task = world.next()
    assert isinstance(task, Task)
    world.retry(task, 4.5)
    world.fold_dones()
    assert world.drain().index("http://a.com/0") == 4


def test_a_wait_renewed_by_another_worker_is_not_cut_short() -> None:
    """A late done of a former owner fails the waiting URL once more: the first due time means nothing then."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next()
    assert isinstance(task, Task)
    world.retry(task, 5.0)
    world.fold_dones()
    late = u.Result(task.row.url, task.sequence, "failed", attempt=2, next_at=WALL + 60, delay_s=60.0)
    world.take(u.encode(u.UrlsRecord(job="j", results=[late])))
    world.pass_time(30)
    assert world.next() is None


def test_more_waits_than_memory_holds_all_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones fill it first; a short one still comes when it is due, and all of them in the end."""
    monkeypatch.setattr(front, "WAITING_IN_MEMORY", 5)
    world = World(Rests(0.0))
    world.job()
    world.find(*pages("a.com", 31))
    for wait_s in [1000.0] * 30 + [3.0]:
        task = world.next()
        assert isinstance(task, Task)
        world.retry(task, wait_s)
        world.fold_dones()
    assert len(world.frontier.owned[0].waits) < 10
    world.pass_time(3)
    task = world.next()
    assert task is not None
    world.fetched(task)
    assert len(world.drain()) == 30


def test_waits_overdue_at_a_restore_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are due at once; memory holds a few, and none is read twice for each request."""
    world = World(Rests(0.0))
    world.job()
    world.find(*pages("a.com", 200))
    for _ in range(200):
        task = world.next()
        assert isinstance(task, Task)
        world.retry(task, 1.0)
    world.fold_dones()
    monkeypatch.setattr(front, "WAITING_IN_MEMORY", 10)
    world.pass_time(5)
    world.crash()
    scans = Counter[str]()
    scan = world.rows.scan
    monkeypatch.setattr(world.rows, "scan", lambda *args: (scans.update(["scan"]), scan(*args))[1])
    assert len(world.drain()) == 200
    assert scans["scan"] <= 2 * 200 / 10


# ---------------------------------------------------------------------- jobs


def test_a_stopped_job_hands_nothing_out_and_goes_on_where_it_was() -> None:
    """Its queue stays."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    world.job(rev=2, state="stopped")
    assert world.next() is None
    world.job(rev=3)
    assert world.drain() == pages("a.com", 2)


def test_a_done_of_an_older_epoch_is_fetched_again() -> None:
    """A rewind that takes nothing back began a new epoch while its request was in flight."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    task = world.next()
    assert isinstance(task, Task)
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
    task = world.next()
    assert isinstance(task, Task)
    world.find(*pages("a.com", 1), depth=1)
    assert task.row.depth == 3
    world.ended(task)
    world.write(task, "fetched", depth=3)
    world.pass_time(1)
    assert world.next() is None
    world.take(world.unfolded.pop())
    world.out.clear()
    again = world.next()
    assert isinstance(again, Task)
    assert again.row.depth == 1


def test_jobs_take_turns() -> None:
    """One with a hundred hosts, one with ten: while both have some, they alternate."""
    world = World()
    for name, hosts in (("many", 100), ("few", 10)):
        world.job(name)
        for n in range(hosts):
            world.find(f"http://{name}{n}.com/", job=name)
    first = [world.next() for _ in range(20)]
    assert Counter(task.job.name for task in first if isinstance(task, Task)) == {"many": 10, "few": 10}


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
    world.frontier.only = "j" if held == "other" else ""
    world.find("http://a.com/held", job="held")
    assert world.next() is None
    world.job()
    world.find("http://a.com/1", "http://a.com/2")
    assert [url[-1] for url in world.drain()] == ["1", "2"]


# ---------------------------------------------------------------------- size


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


def test_a_forgotten_host_still_rests() -> None:
    """It is forgotten only when it needs none; found again, it is asked at once and then rests as ever."""
    world = World()
    world.job()
    world.find(*pages("a.com", 1))
    world.drain()
    world.frontier.size_windows()
    world.find(*pages("a.com", 2, first=1))
    assert len(world.drain()) == 2


def test_memory_holds_a_window_of_each_queue() -> None:
    """Thousands of URLs of one host, 30 in memory: of long ones fewer, be they found or read."""
    world = World(Rests(0.0))
    world.job()
    for first in range(0, 2000, 500):
        world.find(*pages("a.com", 500, first))
        world.find(*(f"http://b.com/{'long' * 300}/{n}" for n in range(first, first + 100)))
    world.checkpoint()
    for _ in range(100):
        task = world.next()
        assert isinstance(task, Task)
        world.fetched(task)
        short, long = (world.frontier.owned[0].hosts[f"http://{host}.com:80"] for host in "ab")
        [one], [other] = short.queues.values(), long.queues.values()
        assert len(one.window) <= WINDOW
        assert sum(map(len, other.window)) <= WINDOW * ROW_BYTES


def test_many_hosts_make_windows_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is shared."""
    monkeypatch.setattr(front, "WINDOW_BUDGET", 100)
    world = World()
    world.job()
    world.find(*(f"http://h{n}.com/" for n in range(10)))
    world.frontier.size_windows()
    assert world.frontier.window == 10


def test_a_url_found_nearer_is_fetched_from_there_though_it_was_read_before() -> None:
    """Its row lies in the window, and the change is in a checkpoint already."""
    world = World(Rests(0.0))
    world.job(max_depth=9)
    world.find(*pages("a.com", 3), depth=5)
    world.checkpoint()
    world.find(pages("a.com", 3)[1], depth=2)
    world.checkpoint()
    depths = []
    while isinstance(task := world.next(), Task):
        depths.append(task.row.depth)
        world.fetched(task)
    assert depths == [5, 2, 5]


def test_a_url_that_another_worker_has_done_is_not_fetched_again() -> None:
    """Its done is folded, and in a checkpoint, while its row lies in the window."""
    world = World()
    world.job()
    urls = pages("a.com", 3)
    sequence = (world.offset << r.SEQUENCE_INDEX_BITS) + 1
    world.find(*urls)
    world.take(u.encode(u.UrlsRecord(job="j", results=[u.Result(urls[1], sequence, "fetched", at=world.wall)])))
    world.checkpoint()
    assert world.drain() == [urls[0], urls[2]]


@pytest.fixture
def two_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two hosts are in memory."""
    monkeypatch.setattr(front, "HOSTS_AWAKE", 2)
    monkeypatch.setattr(front, "WINDOW", 3)


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
    assert len(owned.asleep) == 48
    assert len(world.drain()) == 100
    world.pass_time(1)
    world.frontier.size_windows()
    assert (len(owned.hosts), len(owned.asleep), world.frontier.awake) == (0, 0, 0)


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
    monkeypatch.setattr(front, "WAITING_IN_MEMORY", 3)
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
    assert len(world.frontier.owned[0].asleep) >= 48
    assert world.rows._kept == {}


def steps_of_a_request(hosts: int) -> float:
    """Clock readings and row reads for each request, over a host's first and second page: calls, not time."""
    world = World(Rests(10.0))
    world.job()
    for n in range(hosts):
        world.find(f"http://h{n}.com/1", f"http://h{n}.com/2")
    calls = Counter[str]()
    get = world.rows.get
    world.rows.get = lambda key: (calls.update(["get"]), get(key))[1]  # type: ignore[method-assign]  # counted
    world.frontier.now = lambda: (calls.update(["now"]), world.clock)[1]
    world.frontier.arrange = counted(calls, world.frontier.arrange)  # type: ignore[method-assign]  # counted
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
    """With what they have queued and how long they rest."""
    world = World()
    world.job()
    world.find(*pages("a.com", 3), *pages("b.com", 2))
    for wait_s in (9.0, 5.0):
        task = world.next()
        assert isinstance(task, Task)
        world.retry(task, 1.0, wait_s)
    world.fold_dones()
    assert world.frontier.slowest(1) == [("http://a.com:80", 3, 9.0)]
