"""After a power cut, or any damage of the log: what it has lost is made again, from what it still has.

The promise covers the death of processes. When the machine dies, each file of Kafka's log ends where the disk had it,
one topic later than another; a damaged file ends before its first damaged batch; a folder may be gone. What that can
break, and what is done, while no worker of ours writes:

    a job's record is gone, its copy is there      written again to every partition: the fold knows a revision it has
    some of a rewind is gone, its note is there    carried out once more
    a done stands, its page is gone                a found with `again`: the URL is queued although it is known
    a page stands, its items are gone              crawlog-parse goes back to it; where it cannot, a found with `again`
    crawl.urls was cut                             crawlog-parse goes back to the log's start: it finds the founds again
    crawl.items was cut                            the sinks read its cut partitions again, and keep the rows they have
    others' workers hold crawlog-parse             their supervisors recover too, and one of them moves it; else it ends
    the machine died                               crawlog-parse goes back by the last minute of pages: their founds

Which pages and items are gone is found out by a check of the whole log (`logcheck.py`), not by a time. That is done
before workers go, since the offsets that are gone are given out again: once a worker has written a page, a done that
names a lost one looks as if it named that. The found with `again` is a record like any other, so the fold stays a
function of the log. What is left to the user: seeds that `crawlog seed` had written; giving them again does no harm.
A `run` without seeds of its own therefore ends with 5 where crawl.urls was cut; one that has seeds sends them again.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import TopicPartition

from crawlog.schemas import urls as u
from crawlog.schemas.control import JobCopy
from crawlog.streams.errors import EngineError

from . import groups
from .admin import Admin
from .check import Check, LostPage, Unparsed
from .client import committed_offsets, log_bounds
from .commits import without_written
from .job_records import control_entries
from .offsets import Target, plan
from .producer import Producer
from .read import read_records
from .rewind import mend
from .topics import Topics, stage_group

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .damage import CutPartition

WINDOW_S = 60.0
"""What the operating system had not written may be so old; Linux writes what is older than 30 s."""

EMPTY_S = 30.0
"""How long the group of workers that died may take to empty: their session, from the start on."""

ACKNOWLEDGED_S = 60.0

Report = Callable[[str], None]


def after_power_cut(settings: "Settings", report: Report) -> None:
    """Do all of it; doing it twice is harmless.

    Raises: EngineError: the log cannot be read or written.
    """
    report(
        "the machine went down without stopping Apache Kafka, and the last seconds may not be on its disk: "
        "the last minute of pages is parsed again, and what is gone is fetched again"
    )
    names, admin = Topics(settings.kafka.prefix), Admin(settings)
    count = groups.count(admin, names.pages)
    _recover(settings, report, Check(settings), _last_minute(settings, admin, names.pages, count))


def after_cuts(
    settings: "Settings",
    report: Report,
    cuts: "Iterable[CutPartition]",
    check: Check | None = None,
    *,
    founds: bool = False,
) -> None:
    """The same for partitions that end too early, or for what a check has found to be missing.

    Args:
        founds: Founds are gone, though crawl.urls does not end too early any more.

    Raises: EngineError: the log cannot be read or written.
    """
    names, cuts = Topics(settings.kafka.prefix), list(cuts)
    for one in cuts:
        report(f"the log is damaged: {one}; what is gone is fetched or parsed again")
    urls_cut = founds or any(one.topic == names.urls for one in cuts)
    numbers = list(range(groups.count(Admin(settings), names.pages)))
    back = {number: low for number, (low, _) in log_bounds(settings, names.pages, numbers).items()} if urls_cut else {}
    _recover(settings, report, check or Check(settings), back)
    if cuts:
        _forget_ends(settings, numbers)
    _sinks_again(settings, names, {one.partition for one in cuts if one.topic == names.items})


def offer_again(
    settings: "Settings", report: Report, file: str, founds: "Iterable[tuple[str, int, u.UrlsRecord]]"
) -> None:
    """Gives the founds to the log again that were readable behind damage: a URL that is known stays known.

    Args:
        file: Where they stand.
        founds: Topic, partition and record of each.

    Raises: EngineError: the log cannot be written.
    """
    producer, count = Producer(settings, "crawlog-recovery"), 0
    for topic, number, record in founds:
        producer.send(topic, u.encode(record), partition=number)
        count += len(record.urls or ())
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge the URLs of {file} within {ACKNOWLEDGED_S:.0f} s")
    if count:
        report(f"links that were cut off, by {file}, are in the log again: {count}")


def _recover(settings: "Settings", report: Report, check: Check, back: Mapping[int, int]) -> None:
    """Makes again what a check finds to be missing; parse goes back to `back`, by partition, in any case.

    Raises: EngineError: others' workers hold parse's group, and nobody moved it; or no answer.
    """
    names, admin = Topics(settings.kafka.prefix), Admin(settings)
    of = groups.Group(stage_group(settings, "parse"), "parse", names.pages)
    before = admin.committed(of.name, of.topic)
    producer = Producer(settings, "crawlog-recovery")
    mend(settings, producer, names)
    _write_jobs(settings, producer, names)
    lost = 0
    for number, job, epoch, found in _again(settings, names, check.lost()):
        producer.send(names.urls, u.encode(u.UrlsRecord(job=job, epoch=epoch, urls=[found])), partition=number)
        lost += 1
    starts = {**back}
    for number, first in check.unparsed_from().items():
        starts[number] = min(first, starts.get(number, first))
    is_held = bool(starts) and not _is_empty(admin, of)
    if is_held:
        for page in check.unparsed():
            record = u.encode(u.UrlsRecord(job=page.job, epoch=page.meta.epoch, urls=[_of_page(page)]))
            producer.send(names.urls, record, partition=page.partition)
            lost += 1
        starts = {}
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge what is fetched again within {ACKNOWLEDGED_S:.0f} s")
    if is_held and back and not _was_moved(before, admin.committed(of.name, of.topic)):
        raise EngineError(
            f"{names.urls} has lost founds, and only parsing all pages again finds them; but the group {of.name} has "
            f"members ({'; '.join(groups.members(admin, [of.name]))}).\nStop them, and run this again."
        )
    moved = _parse_again(admin, of, starts)
    report(f"pages gone, fetched again: {lost}; pages parsed again: {moved}")


def _write_jobs(settings: "Settings", producer: Producer, names: Topics) -> None:
    count = groups.count(Admin(settings), names.urls)
    for entry in control_entries(settings, names).values():
        if isinstance(entry, JobCopy):
            record = u.encode(u.UrlsRecord(job=entry.job, epoch=entry.epoch, spec=entry.spec))
            for number in range(count):
                producer.send(names.urls, record, partition=number)


def _again(settings: "Settings", names: Topics, lost: Iterable[LostPage]) -> Iterator[tuple[int, str, int, u.FoundUrl]]:
    """Partition, job, epoch and the found that asks for each page that is gone, as it was found before."""
    for number, of_one in groupby(lost, key=attrgetter("partition")):
        gone = list(of_one)
        queued = _queued(settings, names, number, {one.result.row for one in gone})
        for one in gone:
            result = one.result
            found = queued.get(result.row) or u.FoundUrl(result.url, priority=result.priority, source="link")
            found = msgspec.structs.replace(found, url=result.url, depth=result.depth, again=result.status)
            yield number, one.job, one.epoch, found


def _of_page(page: Unparsed) -> u.FoundUrl:
    """The found that asks for a page which others' workers have passed and cannot be told to parse again."""
    meta, status = page.meta, "failed"
    if meta.http is not None:
        status = "redirected" if meta.location else "not_modified" if meta.same_as else "fetched"
    source = "sitemap" if meta.kind == "sitemap" else "link"
    found = u.FoundUrl(meta.url, meta.depth, source=source, hops=meta.hops)  # type: ignore[arg-type]  # two of its words
    return msgspec.structs.replace(found, again=status)


def _last_minute(settings: "Settings", admin: Admin, topic: str, count: int) -> dict[int, int]:
    """Where each partition's records of the topic's last minute start; those without any are left out."""
    limits = log_bounds(settings, topic, list(range(count)))
    newest_ms = 0
    for number, (low, end) in limits.items():
        for message in read_records(settings, topic, number, max(low, end - 1), end):
            newest_ms = max(newest_ms, message.timestamp()[1])
    starts = groups.offsets_at(admin, topic, range(count), newest_ms - int(WINDOW_S * 1000))
    return {number: starts[number] for number, (_, end) in limits.items() if 0 <= starts[number] < end}


def _queued(settings: "Settings", names: Topics, number: int, rows: set[int]) -> dict[int, u.FoundUrl]:
    """The founds that queued URLs, by row; those that are gone too are left out. Read in one go, in the log's order."""
    low, end = log_bounds(settings, names.urls, [number])[number]
    offsets = {row >> 16 for row in rows if low <= row >> 16 < end}
    found: dict[int, u.FoundUrl] = {}
    if not offsets:
        return found
    for message in read_records(settings, names.urls, number, min(offsets), max(offsets) + 1):
        offset = message.offset() or 0
        if offset not in offsets:
            continue
        try:
            urls = u.decode(message.value()).urls or []
        except ValueError:
            continue
        found |= {row: url for index, url in enumerate(urls) if (row := offset << 16 | index) in rows}
    return found


def _parse_again(admin: Admin, of: groups.Group, back: Mapping[int, int]) -> int:
    """Move crawlog-parse back to these offsets, where it is further; returns how many pages that are."""
    held = groups.held(admin, of)
    further = {n: at for n, at in back.items() if (held[n].committed or 0) > at}
    beyond = {n: one.end for n, one in held.items() if (one.committed or 0) > one.end and n not in further}
    moves, _ = plan(of.topic, Target("from-file", offsets=further | beyond), held)
    if not moves:
        return 0
    if not _is_empty(admin, of):
        raise EngineError(f"the group {of.name} still has members after {EMPTY_S:.0f} s; stop them, and run again")
    groups.move(admin, of, moves)
    return sum(one.records for one in moves)


def _was_moved(before: Mapping[tuple[str, int], int], now: Mapping[tuple[str, int], int]) -> bool:
    """Whether somebody has moved a group back meanwhile: another command that noticed the same."""
    return any(now.get(at, 0) < offset for at, offset in before.items())


def _forget_ends(settings: "Settings", numbers: list[int]) -> None:
    """Has crawlog-parse's commits say no more how far the log went: it would count as cut until it has grown so far."""
    admin, name = Admin(settings), stage_group(settings, "parse")
    topic = Topics(settings.kafka.prefix).pages
    places = [
        TopicPartition(topic, number, offset, without_written(metadata))
        for number, (offset, metadata) in committed_offsets(settings, name, topic, numbers).items()
        if without_written(metadata) != metadata
    ]
    of = groups.Group(name, "parse", topic)
    if places and _is_empty(admin, of):
        groups.commit(admin, of, places)


def _is_empty(admin: Admin, of: groups.Group) -> bool:
    """Whether a group has no members, once those that died are forgotten."""
    until = time.monotonic() + EMPTY_S
    while (live := groups.members(admin, [of.name])) and time.monotonic() < until:
        time.sleep(0.2)
    return not live


def _sinks_again(settings: "Settings", names: Topics, cut: Container[int]) -> None:
    """Have the sinks read those partitions again that were cut, or that end before their commits.

    See `SinkStage.starts`.
    """
    admin = Admin(settings)
    for of in groups.known_sink_groups(admin).values():
        held = groups.held(admin, of)
        starts = {n: one.first for n, one in held.items() if n in cut or (one.committed or 0) > one.end}
        moves, _ = plan(names.items, Target("from-file", offsets=starts), held)
        if moves and _is_empty(admin, of):
            groups.move(admin, of, moves)
