"""Requests with an `eta`, on a real state and a clock of the test's own: held for a year, and sent in their order."""

import random
import resource
from array import array
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.fold import EXPIRED
from crawlog.streams.frontier import waits
from crawlog.streams.frontier.dispatcher import Frontier
from crawlog.streams.frontier.host import Task
from crawlog.streams.job_spec import own_policy
from crawlog.streams.settings.sources import NO_FILE, load
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.url.place import Places

WALL = 1_700_000_000.0
YEAR_S = 365 * 86_400.0
LATE_S = 10.0
"""How late a request may be: hosts rest a second, and once more when their partition was taken over."""

CHANGES = 20_000
"""Changes of the state between two checkpoints."""


class Fleet:
    """One partition with its log in a file. Its worker may be killed, and its state lost.

    Attributes:
        etas: By the number of the URL, UTC epoch seconds; negative for one that has expired by then.
    """

    def __init__(self, folder: Path, etas: "array[float]", hosts: int) -> None:
        self.folder, self.etas, self.hosts = folder, etas, hosts
        self.clock, self.passed = 1000.0, 0.0
        self.log = (folder / "log").open("ab")
        self.partition = self.folded("state")
        self.own()
        self.take(u.UrlsRecord("j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))

    @property
    def wall(self) -> float:
        """UTC epoch seconds."""
        return WALL + self.passed

    def folded(self, name: str) -> Partition:
        """A state that is taken up, or made, by folding the log to its end."""
        path = self.folder / name
        state = Partition(path, 0, Places(1), LogIdentity("t", "t"), StateMemory(64), cached_pages=1_000)
        self.log.flush()
        with (self.folder / "log").open("rb") as log:
            for offset, value in enumerate(log):
                if offset >= state.offset:
                    self.fold(state, value.rstrip(b"\n"), offset)
        return state

    def fold(self, state: Partition, value: bytes, offset: int) -> None:
        """Folds a record; a checkpoint now and then."""
        state.take(value, offset, WALL)
        if state.changes >= CHANGES:
            state.checkpoint()

    def own(self) -> None:
        """Dispatches for the state."""
        usual = own_policy(load({"robots.obey": False, "politeness.delay_s": 1.0}, NO_FILE, {}))
        self.frontier = Frontier(usual, lambda: self.clock, lambda: self.wall)
        for _ in self.frontier.take_over(0, self.partition.fold, self.partition.db):
            pass

    def take(self, record: u.UrlsRecord) -> None:
        """Writes and folds a record."""
        value = u.encode(record)
        self.log.write(value + b"\n")
        self.fold(self.partition, value, self.partition.offset)

    def find_all(self) -> None:
        """Finds the URLs, in the order of their numbers."""
        founds = []
        for number, eta in enumerate(self.etas):
            url = f"http://h{number % self.hosts}.test/{number}"
            founds.append(u.FoundUrl(url, eta=abs(eta), expires=-eta - 1 if eta < 0 else abs(eta) + 3600))
            if len(founds) == u.MAX_BATCH_URLS or number == len(self.etas) - 1:
                self.take(u.UrlsRecord("j", urls=founds))
                founds = []

    def kill(self) -> None:
        """The worker dies with a request in flight; another one takes up what was checkpointed, and folds the rest."""
        self.frontier.next()
        self.frontier.disown(0)
        self.partition.db.close()
        self.partition = self.folded("state")
        self.own()

    def close(self) -> None:
        """Ends the test's worker."""
        self.partition.db.close()
        self.log.close()

    def rebalance(self) -> None:
        """The partition is given up and comes back."""
        self.frontier.disown(0)
        self.own()

    def lose_state(self) -> None:
        """The state is folded from the whole log; it equals the one that the worker had."""
        again = self.folded(f"again{self.partition.offset}")
        again.checkpoint()
        self.partition.checkpoint()
        assert again.digest() == self.partition.digest()
        self.frontier.disown(0)
        self.partition.db.close()
        self.partition = again
        self.own()

    def serve(self, number: int) -> list[int]:
        """Has at most so many URLs fetched; returns their numbers in order."""
        served: list[int] = []
        while len(served) < number:
            task = self.frontier.next()
            if task is None:
                at = self.frontier.next_at()
                if at is None:
                    break
                self.passed += max(at - self.clock, 0.001)
                self.clock = max(at, self.clock + 0.001)
                continue
            assert isinstance(task, Task)
            served.append(self._ended(task))
        return served

    def _ended(self, task: Task) -> int:
        number, row = int(task.row.url.rpartition("/")[2]), task.row
        assert -0.002 <= self.wall - abs(self.etas[number]) <= LATE_S
        is_expired = 0 < row.expires <= self.wall  # as `agents/fetch/task.py` has it
        assert is_expired == (self.etas[number] < 0)
        if is_expired:
            self.frontier.unsent(task.host)
            result = u.Result(row.url, task.sequence, "refused", reason=EXPIRED, at=self.wall)
        else:
            self.frontier.finished(task.host, 0.0, task.job.number)
            result = u.Result(row.url, task.sequence, "fetched", http=200, at=self.wall)
        self.take(u.UrlsRecord("j", results=[result]))
        return number


def spread(number: int, seed: int) -> "array[float]":
    """Times over a year, in no order; one in fifty has expired by then."""
    dice = random.Random(seed)
    return array("d", [(WALL + dice.uniform(1, YEAR_S)) * dice.choice([1] * 49 + [-1]) for _ in range(number)])


def check(fleet: Fleet, served: list[int]) -> None:
    """Each URL was served once, those of each host by their times; the counts have them all."""
    assert sorted(served) == list(range(len(fleet.etas)))
    by_host: defaultdict[int, list[float]] = defaultdict(list)
    for number in served:
        by_host[number % fleet.hosts].append(abs(fleet.etas[number]))
    assert all(times == sorted(times) for times in by_host.values())
    counts = fleet.partition.fold.jobs["j"].counts
    expired = sum(eta < 0 for eta in fleet.etas)
    assert (counts.fetched, counts.refused, counts.queued) == (len(served) - expired, expired, 0)


def test_requests_that_wait_up_to_a_year_survive_kills_rebalances_and_lost_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is sent once, in time and in order; the state that is folded from the whole log is the same."""
    monkeypatch.setattr(waits, "WAITING_IN_MEMORY", 50)
    dice, served = random.Random(8), list[int]()
    with closing(Fleet(tmp_path, spread(1_000, 7), 40)) as fleet:
        fleet.find_all()
        while part := fleet.serve(dice.randrange(1, 100)):
            served += part
            dice.choice((fleet.kill, fleet.rebalance, fleet.lose_state, fleet.partition.checkpoint))()
        check(fleet, served)


@pytest.mark.long
def test_of_a_million_requests_that_wait_the_earliest_are_sent_first_and_memory_stays(tmp_path: Path) -> None:
    """A fifth of a year passes, with a kill in it."""
    served = list[int]()
    with closing(Fleet(tmp_path, spread(1_000_000, 9), 1_000)) as fleet:
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fleet.find_all()
        for _ in range(2):
            served += fleet.serve(100_000)
            fleet.kill()
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        times = [abs(eta) for eta in fleet.etas]
        left = set(range(1_000_000)).difference(served)
        assert len(left) == 800_000
        assert max(times[number] for number in served) <= min(times[number] for number in left) + LATE_S
    assert grown_mb < 250
