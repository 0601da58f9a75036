"""The dispatcher without a cluster: the fold and a clock of its own, and a model of what may be asked when."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from crawlog.schemas import urls as u
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.fold import Fold
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.frontier.dispatcher import Frontier
from crawlog.streams.frontier.host import NameTask, RobotsTask, Task
from crawlog.streams.job_spec import own_policy
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.robots.robots import RobotsRules
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places

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
        self.base = InMemory()
        self.offset = 0
        self.unfolded: list[bytes] = []
        self.in_flight: list[Task | RobotsTask] = []
        self.out: set[str] = set()
        self.done: Counter[str] = Counter()
        self.due: dict[str, float] = {}
        self.hosts: dict[str, Kept] = {}
        asked = {"delay_s": self.rests.delay_s, "per_host": self.rests.per_host, "robots": self.robots}
        usual = RequestPolicy(structs.replace(own_policy(Settings()).rules, **asked))
        self.frontier = Frontier(usual, lambda: self.clock, lambda: self.wall)
        self.own()

    # ------------------------------------------------------------------ the log

    def own(self, rests: dict[int, float] | None = None) -> None:
        """Open the state as it was checkpointed and dispatch for it: from now on one full delay, or what is known."""
        self.rows = Rows(self.base)
        self.fold = Fold(0, PLACES, self.rows, cached_pages=2)
        self.take_over(rests)
        queued = {r.read_host_queue(value).host for _, value in self.rows.scan(b"g") if r.read_host_queue(value).queued}
        for key, kept in self.hosts.items():
            kept.in_flight = 0
            if key in queued and rests is None:
                kept.rests_until = max(kept.rests_until, self.clock + self.rests.delay_s)

    def take_over(self, rests: dict[int, float] | None = None) -> None:
        """Dispatch for the fold as it is."""
        for _ in self.frontier.take_over(0, self.fold, NoCache(), rests):
            pass

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
        assert not isinstance(task, NameTask), "here every name is known"
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

    def next_page(self) -> Task:
        """A page is handed out."""
        task = self.next()
        assert isinstance(task, Task)
        return task

    def ended(self, task: Task | RobotsTask, wait_s: float = 0.0) -> None:
        """The response has ended."""
        self.in_flight.remove(task)
        kept = self.hosts[task.host.key]
        kept.in_flight -= 1
        kept.rests_until = max(kept.rests_until, self.clock + max(self.rests.delay_s, wait_s))
        if isinstance(task, RobotsTask):
            task.host.rules = RobotsRules.parse(b"")
            task.host.rules_until = self.clock + 50.0
        self.frontier.finished(task.host, wait_s, task.job.number if isinstance(task, Task) else 0)

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
        """A rule refused it."""
        self.unsent(task)
        self.write(task, "refused")

    def unsent(self, task: Task | RobotsTask) -> None:
        """There was no request."""
        self.in_flight.remove(task)
        self.hosts[task.host.key].in_flight -= 1
        self.frontier.unsent(task.host)

    def aborted(self, task: Task | RobotsTask) -> None:
        """It ended without a trace."""
        self.ended(task)
        if isinstance(task, Task):
            self.out.discard(task.row.url)
            self.frontier.back(task)

    def crash(self) -> None:
        """Nothing in flight left a trace; what was written is folded before anything is dispatched."""
        self._restore(None)

    def rebalance(self) -> None:
        """The partition is given up and comes back at once: what was in flight is aborted."""
        for task in list(self.in_flight):
            self.aborted(task)
        self._restore(self.frontier.rests_of(0))

    def _restore(self, rests: dict[int, float] | None) -> None:
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
        self.own(rests)

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

    def drain_until(self, within_s: float) -> list[str]:
        """Fetch what there is before so much time has passed; returns the URLs in order."""
        order, end = [], self.clock + within_s
        while True:
            task = self.next()
            if task is not None:
                self.fetched(task)
                order += [task.row.url] if isinstance(task, Task) else []
            self.fold_dones()
            if task is None:
                at = self.frontier.next_at()
                if at is None or at >= end:
                    return order
                self.pass_time(max(at - self.clock, 0.001))


def pages(host: str, number: int, first: int = 0) -> list[str]:
    """URLs of a host."""
    return [f"http://{host}/{n}" for n in range(first, first + number)]
