"""`crawlog recrawl` and `crawlog jobs retry`: URLs that are done are due again, in the same epoch.

    crawl.urls, a partition at a time ─► results of the job, in a temporary file ─► the newest one of each request
        ─► chosen? ─► the found that queued it, with its request and depth ─► a found with `again` ─► crawl.urls

A second command leaves out a URL that a first one has asked for, until its new result is in the log. A command that was
killed may be given again. The file keeps memory small: ten million results are sorted on the disk.
"""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.agents.seed import Look, Sower
from crawlog.schemas import urls as u
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import settled_control, write_control
from crawlog.streams.errors import InvalidState, Misconfigured
from crawlog.streams.http import RETRY_STATUSES
from crawlog.streams.log import CommandProducer, Topics, partition_count, read_records
from crawlog.streams.url import Canonicaliser, InvalidUrl, Places, fingerprint

from .job_logs import unknown_job

if TYPE_CHECKING:
    from crawlog.schemas.control import JobCopy
    from crawlog.streams.settings import Settings

_INDEX_BITS = 16  # A row's number is its found's offset, and in these bits its index in that record

_KINDS = (b'"results"', b'"again"', b'"rewind"')  # One of these is in each record that counts

_MAX_ROW = (1 << 63) - 1  # Of SQLite; no offset leads to it

CACHE_KB = 16 << 10  # Memory of the file of results

_STATUS = re.compile(r"[1-5](\d\d|xx)|[a-z][a-z_]*")

Report = Callable[[str], None]


class RecrawlChoice(msgspec.Struct, frozen=True):
    """Which URLs of a job are due again: those that have one of the results, and all of the other marks.

    Attributes:
        urls: Only these; none for all.
        failed: Those that all attempts failed for: no whole answer, or a status of the job's `fetch.retry_statuses`.
        statuses: Status codes (`403`), classes of them (`5xx`), and words for why there is no page (`dns`, `robots`).
        before: Only those whose result is older, UTC epoch seconds.
    """

    urls: tuple[str, ...] = ()
    failed: bool = False
    statuses: tuple[str, ...] = ()
    before: float | None = None

    def check(self) -> None:
        """Raises: Misconfigured: it chooses nothing, or a status is none."""
        if not (self.urls or self.failed or self.statuses or self.before is not None):
            raise Misconfigured("which URLs? Give some, or --failed, --status 403,5xx or --older-than 7d (1s for all)")
        for one in self.statuses:
            if not _STATUS.fullmatch(one):
                raise Misconfigured(f"--status {one!r}: write 403, 5xx, or a word of `no page:` such as dns or timeout")

    def takes(self, result: u.Result, at: float, failures: Collection[int]) -> bool:
        """Whether a result is one of these, whatever its URL.

        Args:
            failures: Status codes that count as failed.
        """
        if self.before is not None and at >= self.before:
            return False
        if not (self.failed or self.statuses):
            return True
        http = str(result.http or "")
        named = {http, f"{http[:1]}xx", (result.unkept or result.reason).partition(":")[0]}
        is_failed = result.status == "failed" or result.http in failures
        return (self.failed and is_failed) or not named.isdisjoint(self.statuses)


class Recrawl(msgspec.Struct):
    """What a command asks for again.

    Attributes:
        asked: URLs that are due again; with `is_plan` that would be.
        of: URLs of the job that have a result, among those that were named.
        waiting: Of these, the ones that an earlier command has asked for, and whose new result is not in the log yet.
        lost: Chosen, but the log no longer has their request.
        unknown: Named URLs without a result in the job.
        state: Of the job.
    """

    job: str
    is_plan: bool
    state: str = ""
    asked: int = 0
    of: int = 0
    waiting: int = 0
    lost: int = 0
    unknown: list[str] = []


class Chosen(NamedTuple):
    """The newest result of a request, as its new found needs it."""

    row: int
    mark: int
    url: str
    depth: int
    priority: int
    status: u.Status
    http: int | None
    why: str

    def found(self, queued: u.FoundUrl | None) -> u.FoundUrl | None:
        """The found that has it fetched again; None if the log has lost its request.

        Args:
            queued: The found that queued it; None if it is gone.
        """
        if queued is None:
            if _mark(0, self.url) != self.mark:
                return None
            queued = u.FoundUrl(self.url, priority=self.priority, source="link")
        was = {"again": self.status, "again_http": self.http, "again_why": self.why}
        now = {"depth": self.depth, "priority": self.priority, "eta": 0.0, "expires": 0.0}
        return msgspec.structs.replace(queued, url=self.url, **was, **now)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Chosen).decode


class JobResults:
    """The results of a job in one partition of crawl.urls, in a file that is deleted with this object.

    Args:
        copy: The job's record.
        choice: Decides about each result as it is read.
        urls: The canonical forms of the choice's URLs; empty for all URLs.
    """

    def __init__(self, copy: "JobCopy", choice: RecrawlChoice, urls: frozenset[str]) -> None:
        self._job, self._choice, self._urls = copy.job, choice, urls
        rules = copy.spec.requests
        said = rules.retry_statuses if rules is not None else None
        self._failures: Collection[int] = RETRY_STATUSES if said is None else said
        self._after = copy.after  # records of this epoch and of those before do not count
        self._file = sqlite3.connect("", isolation_level=None)  # a temporary file of SQLite's own
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KB}")
        self._file.execute("CREATE TABLE results (mark, place, waits, url, row, chosen)")
        self._file.execute("BEGIN")

    def close(self) -> None:
        self._file.close()

    def take(self, offset: int, value: bytes | None, timestamp_s: float) -> None:
        """Add what a record says of the job; the records come in the log's order."""
        if value is None or not any(kind in value for kind in _KINDS):  # most are founds
            return
        try:
            record = u.decode(value)
        except ValueError:
            return  # a dead letter
        if record.rewind is not None:
            self._rewind(record, record.rewind)
        if record.job != self._job or record.epoch <= self._after:
            return
        place = offset << _INDEX_BITS
        rows = [self._done(place + index, one, timestamp_s) for index, one in enumerate(record.results or ())]
        rows += [self._asked(place + index, one) for index, one in enumerate(record.urls or ())]
        self._file.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)", filter(None, rows))

    def _done(self, place: int, result: u.Result, timestamp_s: float) -> tuple[object, ...] | None:
        if result.status == "began" or (result.status == "failed" and result.next_at > 0):
            return None
        if self._urls and result.url not in self._urls:
            return None
        mark, url = _mark(result.id, result.url), result.url if self._urls else None
        if not self._choice.takes(result, result.at or timestamp_s, self._failures):
            return mark, place, False, url, None, None
        row, why = min(result.row, _MAX_ROW), result.why_no_page
        chosen = Chosen(row, mark, result.url, result.depth, result.priority, result.status, result.http, why)
        return mark, place, False, url, row, _encode(chosen)

    def _asked(self, place: int, found: u.FoundUrl) -> tuple[object, ...] | None:
        """A URL that is due again; its new result comes behind it."""
        if not found.again or (self._urls and found.url not in self._urls):
            return None
        return _mark(found.id, found.url), place, True, found.url if self._urls else None, None, None

    def _rewind(self, record: u.UrlsRecord, rewind: u.Rewind) -> None:
        """Drop the results that no longer count."""
        if record.epoch - 1 > self._after and record.job in (None, self._job):
            self._file.execute("DELETE FROM results WHERE place >= ?", [rewind.start << _INDEX_BITS])
            self._after = record.epoch - 1

    def newest(self) -> Iterator[tuple[bool, Chosen | None, str | None]]:
        """For each request: whether it waits for a new result, its newest result if that is chosen, and its URL.

        In the order of the founds that queued them, which is that of reading the log.
        """
        newest = self._file.execute(
            "SELECT waits, url, chosen FROM (SELECT max(place), * FROM results GROUP BY mark) ORDER BY row"
        )
        for waits, url, chosen in newest:
            yield bool(waits), None if chosen is None else _decode(chosen), url


def _mark(identity: int, url: str) -> int:
    """The identity of a request, in the signed 64 bits that SQLite has."""
    return (identity or fingerprint(url)) - (1 << 63)


def recrawl(
    settings: "Settings", job: str, choice: RecrawlChoice, *, execute: bool, report: Report, look: Look | None = None
) -> Recrawl:
    """Has URLs of a job fetched again; without `execute` only counts them.

    Args:
        look: Reads the workers' progress, to keep their pace; None without workers.

    Raises: UnknownName: there is no such job. InvalidState: its URLs are never fetched again. Misconfigured: `choice`.
    """
    choice.check()
    topics, producer = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-recrawl", say=report)
    control = settled_control(settings, producer, topics)
    copy = control.job(job)
    if copy is None or copy.spec.state == "deleted":
        raise unknown_job(job)
    if copy.spec.state == "cancelled":
        raise InvalidState(f"job {job} is cancelled for good; `crawlog submit … --job {job} --fresh` begins it again")
    if execute and control.has_ended_once(job):
        write_control(producer, topics, [copy])  # workers then report the counts of this finished job again
    done = Recrawl(job, not execute, copy.spec.state)
    sower = Sower(producer, topics, partition_count(settings), copy, report, look)
    for found in _due(settings, topics, copy, choice, done):
        done.asked += 1
        if execute:
            sower.add(found)
    if execute:
        sower.finish()
    return done


def _due(
    settings: "Settings", topics: Topics, copy: "JobCopy", choice: RecrawlChoice, done: Recrawl
) -> Iterator[u.FoundUrl]:
    """The founds that have the chosen URLs fetched again; `done` counts what is not chosen, and what cannot be."""
    for number, results in _partitions(settings, topics, copy, choice, done.unknown):
        with closing(results):
            for found in _founds(settings, topics, number, _counted(results, done)):
                if found is None:
                    done.lost += 1
                else:
                    yield found


def _partitions(
    settings: "Settings", topics: Topics, copy: "JobCopy", choice: RecrawlChoice, unknown: list[str]
) -> Iterator[tuple[int, JobResults]]:
    """The partitions that hold chosen URLs, with the results of each; URLs without a result are added to `unknown`."""
    count = partition_count(settings)
    canonical, place = Canonicaliser(copy.spec.canonical).canonical, Places(count).of
    named: dict[int, set[str]] = {}
    try:
        urls = list(map(canonical, choice.urls))
    except InvalidUrl as error:
        raise Misconfigured(str(error)) from None
    for url in urls:
        named.setdefault(place(url).partition, set()).add(url)
    for number in sorted(named) or range(count):
        of_it = frozenset(named.get(number, ()))
        results = JobResults(copy, choice, of_it)
        low, end = log_bounds(settings, topics.urls, [number])[number]
        for message in read_records(settings, topics.urls, number, low, end):
            results.take(message.offset() or 0, message.value(), message.timestamp()[1] / 1000)
        if of_it:
            unknown += sorted(of_it - {url for _, _, url in results.newest() if url})
        yield number, results


def _counted(results: JobResults, done: Recrawl) -> Iterator[Chosen]:
    for waits, chosen, _ in results.newest():
        done.of += 1
        done.waiting += waits
        if chosen is not None:
            yield chosen


def _founds(settings: "Settings", topics: Topics, number: int, chosen: Iterable[Chosen]) -> Iterator[u.FoundUrl | None]:
    """The new found of each; None where the log has lost its request. One pass over the partition."""
    one_by_one = iter(chosen)
    one = next(one_by_one, None)
    low, end = log_bounds(settings, topics.urls, [number])[number]
    while one is not None and one.row >> _INDEX_BITS < low:
        yield one.found(None)
        one = next(one_by_one, None)
    if one is None:
        return
    with closing(read_records(settings, topics.urls, number, one.row >> _INDEX_BITS, end)) as records:
        for message in records:
            offset, queued = message.offset() or 0, None
            while one is not None and one.row >> _INDEX_BITS <= offset:
                if queued is None:
                    queued = _queued(message.value())
                index = one.row & ((1 << _INDEX_BITS) - 1)
                is_there = one.row >> _INDEX_BITS == offset and index < len(queued)
                yield one.found(queued[index] if is_there else None)
                one = next(one_by_one, None)
            if one is None:
                return


def _queued(value: bytes | None) -> list[u.FoundUrl]:
    try:
        return u.decode(value).urls or []
    except ValueError:
        return []
