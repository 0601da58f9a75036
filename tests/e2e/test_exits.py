"""`crawlog worker exit`, the real command: each machine lends its address to the owner of a domain."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crawlog.commands.doctor import examine
from crawlog.commands.fleet_workers import list_workers, order_worker
from crawlog.jobs.changes import list_jobs
from crawlog.streams.log import ensure_topics
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import data, there
from tests.support.processes import Process, crawlog, until
from tests.support.sites import Answer, Threaded

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["data", "there"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Machines:
    """A master that crawls one site by an address of its own, and machines that lend theirs.

    Args:
        pages: Of the site; page N links to pages 2 N and 2 N + 1.

    Attributes:
        turned_away: Whether the site refuses an address.
    """

    def __init__(self, cluster: Settings, there: list[str], data: Path, pages: int) -> None:
        self.cluster, self.pages = cluster, pages
        self._options = ["--data", data, *there, "-s", "network.allow_private=true"]
        self.turned_away: Callable[[str], bool] = lambda _address: False
        self.site = Threaded(self._answer)
        self.processes: list[Process] = []
        ensure_topics(cluster)
        self.worker("parse")
        self.worker("fetch", 'exits.addresses=["127.0.0.11"]')

    def _answer(self, path: str) -> Answer:
        number = int(path.strip("/")) if path.strip("/").isdigit() else 0
        if self.turned_away(next(address for _, address, of in reversed(self.site.came) if of == path)):
            return 429, "text/html", b""
        links = "".join(f"<a href=/{at}>{at}</a>" for at in (2 * number, 2 * number + 1) if at <= self.pages)
        return (200, "text/html", f"<title>{number}</title>{links}".encode()) if number else (404, "text/html", b"")

    def worker(self, stage: str, *settings: str) -> Process:
        """One more worker."""
        process = crawlog("worker", stage, *self._options, *(part for one in settings for part in ("-s", one)))
        self.processes.append(process)
        return process

    def lends(self, address: str, *more: str) -> Process:
        """A machine that lends an address; the fleet knows it."""
        process = self.worker("exit", f'exits.addresses=["{address}"]', *more)
        until(lambda: process.poll() is not None or address in self.lent(), f"{address} is lent")
        return process

    def lent(self) -> set[str]:
        """All addresses that are lent."""
        return {name.rpartition("@")[2] for one in list_workers(self.cluster) for name in one.exits}

    def submit(self, delay_s: float) -> Process:
        """The job; its process ends with it."""
        wanted = [f"politeness.delay_s={delay_s}", "politeness.per_exit=true", "exits.policy=request"]
        settings = [part for one in wanted for part in ("-s", one)]
        process = crawlog("submit", f"{self.site.origin}/1", *self._options, *settings, "--job", "j", "--wait")
        self.processes.append(process)
        return process

    def asked(self) -> Counter[str]:
        """How often each page was asked for."""
        return Counter(path for _, _, path in self.site.came if path != "/robots.txt")

    def by_exit(self, since: int = 0) -> dict[str, list[float]]:
        """When pages were asked for, by the client's address, from a request on."""
        times: dict[str, list[float]] = {}
        for at, address, path in self.site.came[since:]:
            if path != "/robots.txt":
                times.setdefault(address, []).append(at)
        return times

    def close(self) -> None:
        """End them all."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        self.site.close()


DELAY_S = 0.05

SLOW_S = 0.1  # Beside it the time of a tunnel does not count, on a slow machine either

OWN, SECOND, THIRD = "127.0.0.11", "127.0.0.12", "127.0.0.13"


def shortest_rest(machines: Machines) -> float:
    """Between two requests by one exit, seconds."""
    return min(later - earlier for times in machines.by_exit().values() for earlier, later in pairwise(times))


def assert_shared(machines: Machines, addresses: set[str], first: int, last: int | None = None) -> None:
    """Between two requests of the site's log, all these addresses asked for as much, within 10 %, and no other one."""
    shares = Counter(address for _, address, path in machines.site.came[first:last] if path != "/robots.txt")
    assert set(shares) == addresses
    assert min(shares.values()) >= 0.9 * max(shares.values()), shares


def first_by(machines: Machines, address: str) -> int:
    """The number of the first request by an address."""
    return next(number for number, (_, by, _) in enumerate(machines.site.came) if by == address)


def test_two_machines_share_the_requests_to_one_site(cluster: Settings, data: Path, there: list[str]) -> None:
    """Each asks for half of the pages, each page once, and each exit rests the site's delay.

    The exit is listed among the workers, doctor reaches it, and an order ends it.
    """
    machines = Machines(cluster, there, data, pages=80)
    try:
        exit_worker = machines.lends(SECOND)
        submitted = machines.submit(SLOW_S)
        assert submitted.wait() == 0, submitted.communicate()
        assert machines.asked() == {f"/{number}": 1 for number in range(1, machines.pages + 1)}
        assert_shared(machines, {OWN, SECOND}, first_by(machines, SECOND))
        assert shortest_rest(machines) > 0.9 * SLOW_S
        (worker,) = (one for one in list_workers(cluster) if one.stage == "exit")
        assert (worker.pid, worker.partitions) == (exit_worker.pid, ())
        assert [one.status for one in examine(cluster) if one.check == "exits"] == ["ok"]
        order_worker(cluster, worker.id, "drain")
        assert exit_worker.wait() == 0
    finally:
        machines.close()


@pytest.mark.long
def test_a_third_machine_joins_and_one_dies(cluster: Settings, data: Path, there: list[str]) -> None:
    """Of 11,111 pages none is lost; only what was in flight by the dead machine is asked for twice."""
    machines = Machines(cluster, there, data, pages=11_111)
    try:
        second = machines.lends(SECOND)
        submitted = machines.submit(DELAY_S)
        until(lambda: len(machines.asked()) > machines.pages // 3, "a third of the pages")
        joined_at = len(machines.site.came)
        machines.lends(THIRD)
        until(lambda: len(machines.asked()) > machines.pages * 2 // 3, "two thirds of the pages")
        second.kill()
        died_at = len(machines.site.came)
        assert submitted.wait(600) == 0, submitted.communicate()
        asked = machines.asked()
        assert set(asked) == {f"/{number}" for number in range(1, machines.pages + 1)}
        assert asked.total() <= machines.pages + 1
        assert_shared(machines, {OWN, SECOND}, first_by(machines, SECOND), joined_at)
        assert_shared(machines, {OWN, SECOND, THIRD}, first_by(machines, THIRD), died_at)
        assert_shared(machines, {OWN, THIRD}, died_at + 100)
        assert shortest_rest(machines) > 0.9 * DELAY_S
        view = next(one for one in list_jobs(cluster) if one.name == "j")
        assert (view.state, view.counts.fetched, view.counts.failed) == ("finished", machines.pages, 0)
    finally:
        machines.close()


@pytest.mark.long
def test_a_machine_that_a_site_bans_gets_a_new_address(
    cluster: Settings, data: Path, there: list[str], tmp_path: Path
) -> None:
    """It learns of the ban from the fetch worker, redials its own line once, and serves again."""
    script, calls = tmp_path / "redial.sh", tmp_path / "calls"
    script.write_text(f'#!/bin/sh\necho "$CRAWLOG_EXIT" >> {calls}\n')
    script.chmod(0o700)
    machines = Machines(cluster, there, data, pages=1_000)
    machines.turned_away = lambda address: (
        address == SECOND and not calls.exists() and len(machines.by_exit().get(SECOND, ())) > 20
    )
    try:
        machines.lends(SECOND, f'exits.redial={{"*@{SECOND}": "{script}"}}', "exits.redial_pause_s=0.1")
        submitted = machines.submit(DELAY_S)
        assert submitted.wait() == 0, submitted.communicate()
        view = next(one for one in list_jobs(cluster) if one.name == "j")
        assert (view.counts.fetched, view.counts.failed) == (machines.pages, 0)
        (name,) = calls.read_text().split()
        assert name.endswith(f"@{SECOND}")
        assert len(machines.by_exit()[SECOND]) > 100
    finally:
        machines.close()
