"""A check of the whole log: each record's CRC and decoding, and the conservation of pages (`ledger.py`).

Reads every topic once with plain consumers, page bodies too, since the CRC covers them. Workers may run: the ends are
asked in an order in which the new records of a healthy crawl never look like a loss. A damaged batch does not end the
check: the reader searches for the next readable record and notes the range between.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from confluent_kafka import Consumer, Message, TopicPartition

from crawlog.schemas import control, dead, items, pages, progress
from crawlog.schemas import urls as u
from crawlog.streams import groups
from crawlog.streams.cluster import Admin, consumer_config, is_transient, log_bounds
from crawlog.streams.errors import DamagedLog
from crawlog.streams.log import ReadPatience, Topics, check_jump, is_log_end, read_error, record_headers, stage_group

from .ledger import Ledger, page_name
from .parse_places import parse_places

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

PROBE_TRIES = 3  # Number of errors after which an offset counts as unreadable

# Timeout after which an offset counts as unreadable, seconds: a broker that cannot read its file is silent.
PROBE_S = 5.0

POLL_S = 0.2

Range = tuple[int, int]
Take = Callable[[Message], object]  # Handles a record. Raises: ValueError: the record does not decode.


class Part(msgspec.Struct):
    """The result of reading one partition.

    Attributes:
        start, end: Bounds of the partition.
        undecodable: Number of records that do not decode; the stages send such records to crawl.dead.
        damaged: Ranges of unreadable offsets.
    """

    topic: str
    partition: int
    start: int
    end: int
    records: int = 0
    undecodable: int = 0
    damaged: list[Range] = []


class CheckFinding(msgspec.Struct, omit_defaults=True):
    """A missing range of a partition.

    Attributes:
        start, end: Offsets in the partition.
        url, job: Of the page; empty where unknown.
    """

    topic: str
    partition: int
    start: int
    end: int
    what: str
    url: str = ""
    job: str = ""

    def __str__(self) -> str:
        """One line for users."""
        offsets = f"{self.start}" if self.end == self.start + 1 else f"{self.start} to {self.end - 1}"
        return f"{self.topic}[{self.partition}] {offsets}: {self.what}" + f" ({self.url})" * bool(self.url)


class LostPage(NamedTuple):
    """A done whose page is lost.

    Attributes:
        partition, offset: Of the done's record in crawl.urls.
        page: Offset of the page in crawl.pages, in the partition of the same number.
    """

    partition: int
    offset: int
    job: str
    epoch: int
    result: u.Result
    page: int


class Unparsed(NamedTuple):
    """A page before parse's commit that has no result (`ledger.py`)."""

    partition: int
    offset: int
    meta: pages.PageMeta

    @property
    def job(self) -> str:
        return self.meta.job


class Check:
    """Reads the whole log when it is created; the results are kept.

    Args:
        parsed: Known offsets of parse, by partition, if they are higher than its group's commits.

    Attributes:
        parts: Of all topics, in the order in which they were read.
    """

    def __init__(self, settings: "Settings", parsed: Mapping[int, int] | None = None) -> None:
        self.names = Topics(settings.kafka.prefix)
        self.parts: list[Part] = []
        self._settings = settings
        self._count = groups.count(Admin(settings), self.names.urls)
        self._passed_over: dict[int, range] = {}
        self._ledgers = self._read(parsed or {})

    @property
    def trimmed(self) -> int:
        return sum(one.trimmed for one in self._ledgers.values())

    @property
    def missing(self) -> int:
        """Number of lost pages, pages without a result, and ranges that are unreadable or passed over."""
        told = sum(len(one.gone()) + len(one.unparsed()) for one in self._ledgers.values())
        return told + len(self._passed_over) + sum(len(part.damaged) for part in self.parts)

    @property
    def lacking(self) -> int:
        """Like `missing`, without unreadable ranges of crawl.progress: its reports are replaced within a second."""
        return self.missing - sum(len(part.damaged) for part in self.parts if part.topic == self.names.progress)

    def unparsed_from(self) -> dict[int, int]:
        """The first page without a result, by partition."""
        found = {number: one.unparsed() for number, one in self._ledgers.items()}
        return {number: offsets[0] for number, offsets in found.items() if offsets}

    def lost(self) -> Iterator[LostPage]:
        """The dones whose pages are lost; reads their records again."""
        for number, ledger in self._ledgers.items():
            pages_of = dict(ledger.gone())
            gone = {(one.done, one.page) for one in ledger.gone()}
            for message in _at(self._settings, self.names.urls, number, sorted(pages_of)):
                record = u.decode(message.value())
                for result in record.results or ():
                    if result.page is not None and (message.offset(), result.page[1]) in gone:
                        yield LostPage(
                            number, message.offset() or 0, record.job or "", record.epoch, result, result.page[1]
                        )

    def unparsed(self) -> Iterator[Unparsed]:
        """The pages without a result; reads their records again."""
        for number, ledger in self._ledgers.items():
            for message in _at(self._settings, self.names.pages, number, ledger.unparsed()):
                try:
                    meta = pages.meta_in(record_headers(message))
                except ValueError:
                    meta = pages.PageMeta("", "")
                yield Unparsed(number, message.offset() or 0, meta)

    def findings(self) -> Iterator[CheckFinding]:
        """All losses."""
        for part in self.parts:
            for start, end in part.damaged:
                yield CheckFinding(part.topic, part.partition, start, end, "cannot be read: damaged")
        for number, passed in self._passed_over.items():
            what = f"not parsed: another program moved the group {stage_group(self._settings, 'parse')} past them"
            yield CheckFinding(self.names.pages, number, passed.start, passed.stop, what)
        for one in self.lost():
            what = f"gone, and crawl.urls[{one.partition}] {one.offset} says that it was fetched"
            yield CheckFinding(self.names.pages, one.partition, one.page, one.page + 1, what, one.result.url, one.job)
        for page in self.unparsed():
            what = "no item record, dead letter or later page of its URL"
            yield CheckFinding(
                self.names.pages, page.partition, page.offset, page.offset + 1, what, page.meta.url, page.job
            )

    def _read(self, told: Mapping[int, int]) -> dict[int, Ledger]:
        """Reads all topics.

        The end of crawl.urls is asked before that of crawl.pages, because a page is written before its done. Likewise
        parse's commits are asked before the ends of items and dead letters.
        """
        settings, names, numbers = self._settings, self.names, list(range(self._count))
        places = parse_places(settings, names, numbers)
        parsed = {n: max(told.get(n, 0), place.parsed) for n, place in places.items()}
        passed_over = {n: at.passed_over for n, at in places.items() if at.passed_over}
        self._passed_over = {n: passed for n, passed in passed_over.items() if told.get(n, 0) < passed.stop}
        urls = log_bounds(settings, names.urls, numbers)
        held = log_bounds(settings, names.pages, numbers)
        rest = {names.items: log_bounds(settings, names.items, numbers)}
        rest |= {topic: log_bounds(settings, topic, [0]) for topic in (names.dead, names.control, names.progress)}
        ledgers = {n: Ledger(start, end, parsed[n]) for n, (start, end) in held.items()}
        deleted = self._deleted(urls.get(0, (0, 0)), rest[names.control][0])

        def page(message: Message) -> None:
            ledger, offset = ledgers[message.partition() or 0], message.offset() or 0
            try:
                meta = pages.meta_in(record_headers(message))
            except ValueError:
                ledger.page(offset, 0)
                raise
            needs_item = meta.kind != "robots" and meta.epoch > deleted.get(meta.job, control.NO_EPOCH)
            ledger.page(offset, page_name(meta.job, meta.url, meta.id), needs_item=needs_item)

        def url(message: Message) -> None:
            _note(ledgers[message.partition() or 0], message.offset() or 0, u.decode(message.value()))

        def item(message: Message) -> None:
            record = items.decode(message.value())
            if record.page[0] in ledgers:
                ledgers[record.page[0]].named(record.page[1], page_name(record.job, record.url, record.id))

        def letter(message: Message) -> None:
            one = dead.from_headers(dead.by_name(record_headers(message)), None, None)
            if one.topic == names.pages and one.partition in ledgers:
                ledgers[one.partition].named(one.offset)

        self._scan(names.pages, held, page)
        self._scan(names.urls, urls, url)
        self._scan(names.items, rest[names.items], item)
        self._scan(names.dead, rest[names.dead], letter)
        self._scan(names.control, rest[names.control], partial(_note_skipped, ledgers))
        self._scan(names.progress, rest[names.progress], _report)
        return ledgers

    def _deleted(self, urls: Range, said: Range) -> dict[str, int]:
        """The last epoch in which each job was deleted: parse makes nothing of its pages up to that epoch.

        Each deletion is in partition 0 of crawl.urls before parse learns of it from crawl.control, which keeps the
        newest record of each job only. Where the end of crawl.urls was trimmed, that record is left: a job that has a
        deleted one's name says of which epoch that was.

        Args:
            urls, said: Bounds of partition 0 of crawl.urls, and of crawl.control.
        """
        deleted: dict[str, int] = {}
        for message in readable(self._settings, self.names.urls, {0: Part(self.names.urls, 0, *urls)}):
            with suppress(ValueError):  # it is counted when the topic is scanned
                if u.may_delete(message.value()):
                    _note_deletion(deleted, u.decode(message.value()))
        for message in readable(self._settings, self.names.control, {0: Part(self.names.control, 0, *said)}):
            with suppress(ValueError):
                entry = control.decode(message.key(), message.value())
                if isinstance(entry, control.JobCopy):
                    deleted[entry.job] = max(entry.after, deleted.get(entry.job, control.NO_EPOCH))
                    _note_deletion(deleted, entry)
        return deleted

    def _scan(self, topic: str, held: Mapping[int, Range], handle: Take) -> None:
        parts = {number: Part(topic, number, start, end) for number, (start, end) in sorted(held.items())}
        self.parts += parts.values()
        for message in readable(self._settings, topic, parts):
            part = parts[message.partition() or 0]
            part.records += 1
            try:
                handle(message)
            except ValueError:
                part.undecodable += 1


def _note(ledger: Ledger, offset: int, record: u.UrlsRecord) -> None:
    """Feeds the pages that a record of crawl.urls names; they are in the partition of the same number."""
    job = record.job or u.DEFAULT_JOB
    for result in record.results or ():
        if result.page is not None:
            ledger.done(page_name(job, result.url, result.id), offset, result.page[1])
    for found in record.urls or ():
        if found.again:
            ledger.again(page_name(job, found.url, found.id))


def _note_deletion(deleted: dict[str, int], record: u.UrlsRecord | control.JobCopy) -> None:
    if record.job is not None and record.spec is not None and record.spec.state == "deleted":
        deleted[record.job] = max(record.epoch, deleted.get(record.job, control.NO_EPOCH))


def _note_skipped(ledgers: Mapping[int, Ledger], message: Message) -> None:
    record = control.decode(message.key(), message.value())
    if isinstance(record, control.Skipped) and record.partition in ledgers:
        ledgers[record.partition].skipped(record.start, record.end)


def _report(message: Message) -> None:
    if message.value() and progress.decode(message.value()) is None:
        raise ValueError("no report")


def _at(settings: "Settings", topic: str, partition: int, offsets: list[int]) -> Iterator[Message]:
    """The readable records at some offsets of a partition."""
    if not offsets:
        return
    wanted = set(offsets)
    part = Part(topic, partition, offsets[0], offsets[-1] + 1)
    yield from (one for one in readable(settings, topic, {partition: part}) if one.offset() in wanted)


def readable(settings: "Settings", topic: str, parts: Mapping[int, Part]) -> Iterator[Message]:
    """The records of some partitions, from start to end. Unreadable ranges are added to the part.

    Raises: EngineError: the cluster does not answer.
    """
    left = {number: part.start for number, part in parts.items() if part.start < part.end}
    while left:
        damaged: set[int] = set()
        yield from _until_damaged(settings, topic, parts, left, damaged)
        for number in damaged:
            part, at = parts[number], left[number]
            behind = log_bounds(settings, topic, [number])[number][0]
            if behind <= at:  # else `at` was trimmed meanwhile
                behind = _next_readable(settings, topic, number, at, part.end)
                part.damaged.append((at, behind))
            left[number] = behind
            if behind >= part.end:
                del left[number]


def _until_damaged(
    settings: "Settings", topic: str, parts: Mapping[int, Part], left: dict[int, int], damaged: set[int]
) -> Iterator[Message]:
    """The records of all partitions in `left`, up to the first damage.

    `left` holds the next offset of each partition; a partition leaves it when it is read to its end. A damaged
    partition is added to `damaged`, and reading stops.
    """
    consumer = _consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, at) for number, at in left.items()])
        patience = ReadPatience(topic)
        while left:
            yield from (one for one in patience.take(consumer, left) if _is_record(consumer, one, parts, left))
    except DamagedLog as error:
        damaged.add(error.partition)
    finally:
        consumer.close()


def _is_record(consumer: Consumer, message: Message, parts: Mapping[int, Part], left: dict[int, int]) -> bool:
    """Whether a message is a record before its partition's end; advances `left`.

    Raises: DamagedLog: the record is damaged. EngineError: the partition cannot be read.
    """
    number, error, offset = message.partition() or 0, message.error(), message.offset() or 0
    if number not in left:
        return False
    end = parts[number].end
    if error is not None and not (is_transient(error) or is_log_end(error)):
        raise read_error(message)
    if error is None:
        if offset != left[number]:
            check_jump(consumer, parts[number].topic, number, left[number], offset)
        left[number] = offset + 1
    if is_log_end(error) or left[number] >= end:
        del left[number]
    return error is None and offset < end


def _next_readable(settings: "Settings", topic: str, partition: int, at: int, end: int) -> int:
    """The offset of the first readable record behind `at`; `end` where none is found.

    Steps double until a record can be read, then a binary search: a damaged batch covers up to some thousand offsets,
    and each of them fails.
    """
    step, low = 1, at
    found = _readable_from(settings, topic, partition, at, end)
    while found is None and low + step < end:
        low += step
        step *= 2
        found = _readable_from(settings, topic, partition, low, end)
    if found is None:
        return end
    bad = max(at, low - step // 2)
    while low - bad > 1:
        middle = (low + bad) // 2
        earlier = _readable_from(settings, topic, partition, middle, end)
        if earlier is None:
            bad = middle
        else:
            low, found = middle, min(earlier, found)
    return found


def _readable_from(settings: "Settings", topic: str, partition: int, at: int, end: int) -> int | None:
    """The offset of the first record that a consumer reads from `at` on; None after errors or silence."""
    consumer = _consumer(settings)
    until, errors = time.monotonic() + PROBE_S, 0
    try:
        consumer.assign([TopicPartition(topic, partition, at)])
        while errors < PROBE_TRIES and time.monotonic() < until:
            message = consumer.poll(POLL_S)
            error = None if message is None else message.error()
            if message is not None and error is None:
                return min(message.offset() or 0, end)
            if is_log_end(error):
                return end
            errors += error is not None and not is_transient(error)
    finally:
        consumer.close()
    return None


def _consumer(settings: "Settings") -> Consumer:
    return Consumer(consumer_config(settings) | {"enable.partition.eof": True})
