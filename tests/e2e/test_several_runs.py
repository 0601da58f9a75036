"""Several `crawlog run` with different jobs on one cluster, as processes, against hosts that they share."""

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.streams.fleet import ProgressReader
from crawlog.streams.groups import groups
from crawlog.streams.jobs import FleetReports
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.settings.settings import Settings
from tests.support.processes import LIMIT_S, Process, crawlog, ended, until
from tests.support.sites import Answer, Threaded

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HOSTS = 4
DELAY_S = 0.1


class Hosts:
    """Addresses of loopback, each with a chain of pages for every job; notes when each path was asked for.

    Attributes:
        last: Number of the last page of each chain.
    """

    def __init__(self) -> None:
        self.last = 40
        self.asked: dict[int, list[tuple[float, str]]] = defaultdict(list)
        self._servers = [
            Threaded(partial(self._answer, number), address=f"127.0.0.{number + 11}") for number in range(HOSTS)
        ]

    def _answer(self, host: int, path: str) -> Answer:
        self.asked[host].append((time.monotonic(), path))
        _, job, number = (*path.split("/"), "", "")[:3]
        if not number.isdigit():
            return 404, "text/html", b""
        link = f'<a href="/{job}/{int(number) + 1}">' if int(number) < self.last else ""
        return 200, "text/html", f"<title>{path}</title>{link}".encode()

    def end_soon(self) -> None:
        """Ends the chains a few pages behind what was asked for."""
        asked = [path.rpartition("/")[2] for each in self.asked.values() for _, path in list(each)]
        self.last = 5 + max(int(number) for number in asked if number.isdigit())

    def seeds(self, job: int) -> list[str]:
        """The first pages of a job, on two hosts; each host is one of two jobs."""
        return [f"{self._servers[host % HOSTS].origin}/{job}/1" for host in (job, job + 1)]

    def origin(self, host: int) -> str:
        """Of a host."""
        return self._servers[host].origin

    def pages(self, job: int) -> Counter[tuple[int, str]]:
        """How often each page of a job was asked for."""
        return Counter(
            (host, path) for host, asked in self.asked.items() for _, path in list(asked) if path.startswith(f"/{job}/")
        )

    def shortest_rest(self) -> float:
        """Least time between two requests to one host, whichever jobs sent them."""
        times = [[at for at, _ in asked] for asked in self.asked.values()]
        return min(later - earlier for each in times for earlier, later in pairwise(each))

    def close(self) -> None:
        """End them."""
        for server in self._servers:
            server.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Hosts of this test alone."""
    made = Hosts()
    yield made
    made.close()


class Runs:
    """Runs of several jobs, each with a folder and a FILE of its own."""

    def __init__(self, folder: Path, cluster: Settings, hosts: Hosts) -> None:
        self.folder = folder
        self.hosts = hosts
        self.live: dict[int, Process] = {}
        self._options = [
            *("--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}"),
            *("-s", "network.allow_private=true"),
        ]

    def start(self, job: int, *seeds: str, delay_s: float = DELAY_S) -> None:
        """`crawlog run` of a job, by the first pages of its chains where no other seeds are given."""
        where = ["--data", str(self.folder / f"data{job}"), "-o", str(self.output(job)), "--job", f"j{job}", "--json"]
        delay = ("-s", f"politeness.delay_s={delay_s}")
        self.live[job] = crawlog("run", *(seeds or self.hosts.seeds(job)), *where, *self._options, *delay)

    def output(self, job: int) -> Path:
        """FILE of a job."""
        return self.folder / f"rows{job}.jsonl"

    def end(self, job: int) -> tuple[int, dict[str, Any], str]:
        """Exit code, summary and standard error of a job's run."""
        return ended(self.live.pop(job))

    def check(self, job: int) -> None:
        """A run ended with every page of its job in FILE."""
        code, summary, err = self.end(job)
        wanted = 2 * self.hosts.last
        assert (code, summary["rows"]) == (0, wanted), err
        assert summary["reason"] in ("finished", "already_finished"), err  # the other runs' workers end it, too
        rows = [json.loads(line)["url"] for line in self.output(job).read_text().splitlines()]
        assert len(rows) == len(set(rows)) == wanted


@pytest.fixture
def runs(tmp_path: Path, cluster: Settings, hosts: Hosts) -> Runs:
    """Runs of this test."""
    return Runs(tmp_path, cluster, hosts)


def test_workers_of_others_are_known_before_they_report(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends soon has no report of some of them: the group names its members, by either of their names."""
    ensure_topics(cluster)
    watch = ProgressReader(cluster, FleetReports())
    mine, theirs = "fetch-0-mine", "fetch-0-theirs"
    assert not watch.has_others({mine}, LIMIT_S)
    members = [
        SimpleNamespace(group_instance_id=mine, client_id="x"),
        SimpleNamespace(group_instance_id=None, client_id=theirs),
    ]
    monkeypatch.setattr(groups, "_described", lambda *_: SimpleNamespace(members=members))
    assert watch.has_others({mine}, LIMIT_S)
    assert not watch.has_others({mine, theirs}, LIMIT_S)
    watch.close()


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_runs_with_different_jobs_on_one_cluster_all_end(runs: Runs, hosts: Hosts, count: int) -> None:
    """Started together: each page once, each FILE complete, and every host keeps its rest whoever asks it."""
    for job in range(count):
        runs.start(job)
    for job in range(count):
        runs.check(job)
        assert set(hosts.pages(job).values()) == {1}
    assert hosts.shortest_rest() >= DELAY_S


@pytest.mark.long
def test_a_run_that_is_interrupted_or_killed_stops_no_other_run(runs: Runs, hosts: Hosts) -> None:
    """The others go on with its job too, and end; the same command goes on and ends with all its rows.

    Only a kill repeats requests, those that were in flight.
    """
    hosts.last = 1_000_000
    for job in (1, 2):
        runs.start(job)
    until(lambda: all(hosts.pages(job) for job in (1, 2)), "pages of both jobs")
    runs.start(0)
    partial = Path(f"{runs.output(0)}.partial")
    until(lambda: partial.exists() and partial.stat().st_size, "rows of the third one")
    runs.live[0].send_signal(signal.SIGINT)
    code, summary, err = runs.end(0)
    assert (code, summary["reason"]) == (130, "interrupted"), err
    assert "workers of other commands on this cluster go on with it" in err
    assert "`crawlog control stop --job j0" in err
    runs.live[1].kill()
    runs.live.pop(1).communicate()
    before = [hosts.pages(job).total() for job in range(3)]
    until(lambda: all(hosts.pages(job).total() > before[job] + 5 for job in range(3)), "more pages of each job")
    hosts.end_soon()
    runs.check(2)
    for job in (0, 1):
        runs.start(job)
    for job in (0, 1):
        runs.check(job)
    asked = sum((hosts.pages(job) for job in range(3)), Counter[tuple[int, str]]())
    assert asked.total() <= len(asked) + HOSTS
    assert hosts.shortest_rest() >= DELAY_S


@pytest.mark.long
def test_the_greater_delay_of_two_runs_holds_for_a_host_of_both(runs: Runs, hosts: Hosts) -> None:
    """While both have pages there, whichever worker asks; before and after, the fast one has its own pace."""
    hosts.last = 1_000_000
    slow_s = 4 * DELAY_S
    runs.start(1)
    until(lambda: hosts.pages(1), "a page of the fast one")
    runs.start(0, *(f"{hosts.origin(1)}/0/none-{number}" for number in range(10)), delay_s=slow_s)
    code, summary, err = runs.end(0)
    assert (code, summary["rows"]) == (0, 10), err
    hosts.end_soon()
    runs.check(1)
    asked = hosts.asked[1]
    slow = [index for index, (_, path) in enumerate(asked) if path.startswith("/0/")]
    rests = [later - earlier for (earlier, _), (later, _) in pairwise(asked)]
    assert any(path.startswith("/1/") for _, path in asked[slow[0] : slow[-1]])
    assert min(rests[slow[0] : slow[-1]]) >= slow_s
    assert DELAY_S <= min(rests) < slow_s
