"""The figures of hosts that people see: what requests came to, and where each host stands. Pure: time is given.

    a request ends ─► HostNews, by bucket ─┐
    the bucket's record before ────────────┼─► HostLedger.figures ─► the bucket's next record (`schemas/hosts.py`)
    queues in the state's rows, hosts ─────┘

The record before is kept in the state's cache column, so memory holds only what came since.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from crawlog.schemas.hosts import BUCKETS, MAX_HOSTS, MAX_KINDS, HostBucket, HostFigures, HostRobots, bucket_of
from crawlog.streams.fold import rows as r
from crawlog.streams.url import hashed

from .host import Host
from .politeness import crawl_delay_s
from .schedule import Schedule

if TYPE_CHECKING:
    from crawlog.streams.http import Answer

    from .partition import OwnedPartition

KEPT_S = 86_400.0  # How long a host without URLs is kept after its last request, seconds

# Hosts with news in memory, at most: some 10 MB. Further ones are not counted until their bucket is written.
MOST_NEWS = 40_000

GONE = frozenset({404, 410})  # Statuses of a page alone: the host is well

_BUCKET_SHIFT = 64 - (BUCKETS - 1).bit_length()


class HostNews:
    """What the requests to a host came to since its bucket's last record.

    Attributes:
        served: Whether one of them was answered well: `bad_row` counts those after it.
    """

    __slots__ = ("asked", "asked_at", "bad_row", "exit", "last", "rests", "results", "robots", "served")

    def __init__(self) -> None:
        self.asked = self.bad_row = 0
        self.results: dict[str, int] = {}
        self.served = False
        self.last = self.rests = self.exit = ""
        self.asked_at = 0.0
        self.robots: HostRobots | None = None


class HostLedger:
    """The news of all hosts that this worker asks, until they are taken.

    Attributes:
        news: By partition, bucket and host.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.news: dict[int, dict[int, dict[str, HostNews]]] = {}
        self._count = 0

    def _of(self, host: Host) -> HostNews | None:
        """The news of a host; None for one that is not counted."""
        if host.key not in host.partition.hosts:
            return None  # a host of another worker's partition, asked for a page in the browser
        hosts = self.news.setdefault(host.partition.fold.partition, {}).setdefault(bucket_of(host.hash), {})
        news = hosts.get(host.key)
        if news is None and self._count < MOST_NEWS:
            self._count += 1
            news = hosts[host.key] = HostNews()
        return news

    def answered(self, host: Host, answer: "Answer", at: float, rests: str = "", *, is_page: bool = True) -> None:
        """Count a request that has ended.

        Args:
            at: UTC epoch seconds.
            rests: Why the host rests now, as in `HostFigures`.
            is_page: Whether a page was asked for: a robots.txt that is well, or not there, is no result.
        """
        news = self._of(host)
        if news is None:
            return
        status = answer.http
        is_well = status is not None and (status < 400 or status in GONE)
        news.asked += 1
        news.asked_at, news.rests, news.exit = at, rests, answer.exit
        if is_well and not is_page:
            return
        news.last = str(status) if status is not None else answer.error or "no_answer"
        news.results[news.last] = news.results.get(news.last, 0) + 1
        news.served |= is_well
        news.bad_row = 0 if is_well else news.bad_row + 1

    def robots(self, host: Host, read: HostRobots) -> None:
        """Note a robots.txt that was read, or could not be."""
        if (news := self._of(host)) is not None:
            news.robots = read

    def taken(self, partition: int, bucket: int) -> dict[str, HostNews]:
        """The news of a bucket, which are forgotten here."""
        news = self.news.get(partition, {}).pop(bucket, {})
        self._count -= len(news)
        return news

    def figures(
        self, owned: "OwnedPartition", bucket: int, before: Iterable[HostFigures], since_s: float
    ) -> HostBucket:
        """The next record of a bucket; takes the bucket's news.

        Args:
            before: The hosts of its last record; they are changed.
            since_s: Seconds since that one.
        """
        wall = self._schedule.wall()
        news = self.taken(owned.fold.partition, bucket)
        known = {one.host: one for one in before}
        queued, delays = _queued(owned, bucket)
        found = []
        for host in dict.fromkeys((*queued, *news, *known)):
            figures = known.get(host) or HostFigures(host)
            figures.queued = queued.get(host, 0)
            _add(figures, news.get(host), since_s)
            _place(figures, self._schedule, owned, delays.get(host))
            if figures.queued or figures.in_flight or wall - figures.asked_at < KEPT_S:
                found.append(figures)
        found.sort(key=lambda one: (not one.queued, -one.bad_row, -one.queued, one.host))
        return HostBucket(found[:MAX_HOSTS], max(len(found) - MAX_HOSTS, 0))

    def drop(self, partition: int) -> None:
        """Forget the news of a partition: it has another owner."""
        self._count -= sum(map(len, self.news.pop(partition, {}).values()))


def _queued(owned: "OwnedPartition", bucket: int) -> tuple[dict[str, int], dict[str, float]]:
    """The URLs of each host with a queue, as of the last checkpoint, and the longest delay of its jobs."""
    queued: dict[str, int] = {}
    delays: dict[str, float] = {}
    first = bucket << _BUCKET_SHIFT
    for job in owned.fold.with_queue():
        start = r.host_queue_key(job.number, first)
        end = r.host_queue_key(job.number, first + (1 << _BUCKET_SHIFT) - 1) + b"\0"
        delay_s = owned.policy(job.number).rules.delay_s
        for _, value in owned.fold.rows.base.read(start, end, 10 * MAX_HOSTS):
            row = r.read_host_queue(value)
            if row.queued > 0:
                queued[row.host] = queued.get(row.host, 0) + row.queued
                delays[row.host] = max(delay_s, delays.get(row.host, 0.0))
    return queued, delays


def _add(figures: HostFigures, news: HostNews | None, since_s: float) -> None:
    """Add what came since to a host's counts."""
    figures.rate = 0.0
    if news is None:
        return
    figures.robots = news.robots or figures.robots
    if not news.asked:
        return
    figures.asked += news.asked
    figures.rate = round(60 * news.asked / max(since_s, 1.0), 1)
    figures.results = dict(figures.results)
    for result, count in news.results.items():
        name = result if result in figures.results or len(figures.results) < MAX_KINDS else "other"
        figures.results[name] = figures.results.get(name, 0) + count
    figures.bad_row = news.bad_row if news.served else figures.bad_row + news.bad_row
    figures.last, figures.asked_at = news.last or figures.last, round(news.asked_at)
    figures.rests, figures.exit = news.rests, news.exit


def _place(figures: HostFigures, schedule: Schedule, owned: "OwnedPartition", own_s: float | None) -> None:
    """Set where a host stands now: its delay, why it rests, and when it is asked next.

    Args:
        own_s: The delay by its jobs' settings; None without a queue, where the last one known stays.
    """
    now = schedule.now()
    host = owned.hosts.get(figures.host)
    if host is not None:
        orders, until, rests_until = host.orders, host.next_at, max(host.ready_at, host.exits_until)
        figures.in_flight, figures.per_host, delay_s = host.in_flight, host.per_host, host.delay_s
        if host.exits_until > now and all(  # else it has only the delays of its exits
            schedule.exits.wakes_in_s(host.key, host.partition.policy(job).rules, now) for job in host.queues
        ):
            figures.rests = "exits"
    else:
        orders = schedule.commands.of_host(figures.host)
        until = rests_until = owned.sleepers.wakes_at(hashed(figures.host))
        wish_s = figures.robots.delay_s if figures.robots is not None else None
        figures.in_flight, delay_s = 0, crawl_delay_s(own_s or 0.0, wish_s, schedule.usual.rules.max_delay_s)
    if own_s is not None:
        figures.delay_s, figures.delay_of = delay_s, "robots" if delay_s > own_s else "setting"
    if orders.slow_s > figures.delay_s:
        figures.delay_s, figures.delay_of = orders.slow_s, "command"
    if orders.paused:
        figures.rests, until = "block" if orders.stopped else "pause", 0.0
    elif rests_until <= now:
        figures.rests = ""
    due = round(schedule.wall() + until - now) if figures.queued and until > now else 0
    if abs(due - figures.next_at) > 1:  # two roundings of one time are no change
        figures.next_at = due
