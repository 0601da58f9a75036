"""A worker's process by its reports: what it owns, its rates, and its view. Pure."""

from typing import NamedTuple

from crawlog.schemas.progress import IDLE, Progress, stage_of
from crawlog.streams.jobs import ControlState

from .lost_workers import GONE_S
from .views import WorkerView

RATE_S = 5.0  # Time over which rates are taken, seconds


class Sample(NamedTuple):
    """What a worker's process had done at one of its reports."""

    at: float
    pages: int
    cpu_s: float


class Passed(NamedTuple):
    """What a worker's process had passed of a partition, by its report at this time."""

    at: float
    offset: int


class WorkerProcess:
    """A worker's process, by its reports."""

    def __init__(self, report: Progress, at: float) -> None:
        self.partitions: dict[int, Passed] = {}
        self.has_ended = False
        self.first = self.last = Sample(at, report.pages, report.cpu_s)
        self.take(report, at)

    def take(self, report: Progress, at: float) -> None:
        """Takes a report that arrived at `at`."""
        self.report = report
        self.at = at
        if report.stage == IDLE:  # partitions that it had are not dropped at once: a rebalance makes all workers idle
            self.partitions = {number: place for number, place in self.partitions.items() if at - place.at < GONE_S}
        else:
            self.partitions[report.partition] = Passed(at, report.offset)
        sample = Sample(at, report.pages, report.cpu_s)
        if at < self.last.at:
            self.first = self.last = sample  # the broker's clock was set back
        elif at - self.last.at >= RATE_S:
            self.first, self.last = self.last, sample

    def has(self, partition: int, now: float) -> bool:
        """Whether it lives, and has reported a partition lately."""
        place = self.partitions.get(partition)
        return place is not None and now - place.at <= GONE_S

    def rate(self) -> tuple[float, float]:
        """Pages a second, and the share of a CPU."""
        report, seconds = self.report, self.at - self.first.at
        if seconds <= 0:
            return 0.0, 0.0
        return (report.pages - self.first.pages) / seconds, (report.cpu_s - self.first.cpu_s) / seconds

    def view(self, now: float, control: ControlState, first: Progress | None) -> WorkerView:
        """As it is shown.

        Args:
            first: The newest report on partition 0 of crawl.urls.
        """
        report = self.report
        order = control.order_to(report.worker)
        is_held = (
            order is not None and order.action == "pause" and order.is_to(report.worker, report.pid, report.started)
        )
        pages_per_s, cpu = self.rate()
        owned = tuple(sorted(number for number, place in self.partitions.items() if self.at - place.at < GONE_S))
        return WorkerView(
            id=report.worker,
            stage=stage_of(report),
            host=report.host,
            pid=report.pid,
            partitions=owned,
            pages_per_s=round(max(pages_per_s, 0.0), 2),
            cpu=round(max(cpu, 0.0), 3),
            rss=report.rss,
            version=report.version,
            started_at=report.started,
            reported_s=round(max(now - self.at, 0.0), 1),
            supervisor=report.supervisor,
            paused=report.paused,
            is_held=is_held,
            is_coordinator=first is not None and (first.worker, first.pid) == (report.worker, report.pid),
            trouble=report.trouble,
            exits={one.name: one.address for one in report.offers},
            tunnels=sum(one.tunnels for one in report.offers),
        )
