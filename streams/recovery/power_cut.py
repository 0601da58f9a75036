"""Recovery after a power cut or any damage of the log: lost records are made again from the records that are left.

The delivery guarantee covers killed processes, not a dead machine. After a power cut each file of Kafka's log ends
at its last write to the disk, so topics end at different times. A damaged file ends before its first damaged batch. A
folder may be gone. Recovery runs while none of our workers writes:

    lost, and left                          recovery
    a job's record, its copy is left        is written again to every partition; the fold ignores a known revision
    part of a rewind, its note is left      the rewind is repeated
    a page, its done is left                a found with `again` queues the URL although it is known
    a page, before parse read it            so too, by the parse worker that meets it (`parse_places.py`)
    items, their page is left               crawlog-parse goes back to the page; where it cannot, a found with `again`
    the end of crawl.urls                   crawlog-parse goes back to the log's start, and writes all founds again
    the end of a partition of crawl.items   the sinks read that partition again, and keep their rows
    founds, after a power cut               crawlog-parse goes back by the last minute of pages
    any, but crawlog-parse has members      the supervisors of those workers recover too, and one moves the group;
                                            else recovery ends with an error

A check of the whole log (`check.py`) finds the lost pages and items. It runs before workers start, because Kafka
assigns the lost offsets again: once a worker has written a new page there, a done that names the lost page seems to
name the new one. The found with `again` is an ordinary record, so the state stays a fold of the log.

Seeds that `crawlog seed` had written cannot be made again; the user may give them again without harm. So a `run`
without seeds ends with exit code 5 if crawl.urls was cut; a `run` with seeds sends them again.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import TopicPartition

from crawlog.schemas import urls as u
from crawlog.schemas.control import JobCopy
from crawlog.streams import groups
from crawlog.streams.cluster import Admin, committed_offsets, log_bounds
from crawlog.streams.control import mend_rewinds, read_control
from crawlog.streams.errors import EngineError
from crawlog.streams.groups import offsets, without_written
from crawlog.streams.log import CommandProducer, Producer, Topics, read_records, stage_group
from crawlog.streams.sink_groups import known_sinks, read_again

from .check import Check, LostPage, Unparsed
from .newest_pages import lost_unread

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .damage import CutPartition

# Age up to which records may be missing on the disk, seconds; Linux writes data that is older than 30 s.
WINDOW_S = 60.0

# How long to wait until a group of dead workers is empty, seconds: their session timeout, counted from the call.
EMPTY_S = 30.0

ACKNOWLEDGED_S = 60.0

Report = Callable[[str], None]


def after_power_cut(settings: "Settings", report: Report) -> None:
    """Recover from a power cut. A second call is harmless.

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
    """Recover from cut partitions, or from the losses that a check has found.

    Args:
        founds: Whether founds are lost although crawl.urls is not among the cuts.

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


def fetch_unread(settings: "Settings", gone: Mapping[int, range]) -> int:
    """Have pages fetched again that the log lost before parse read them; returns their number.

    A second call is harmless: a page that was asked for again since is left out.

    Args:
        gone: Their offsets, by partition.

    Raises: EngineError: the log cannot be read or written.
    """
    names = Topics(settings.kafka.prefix)
    return fetch_again(
        settings, (page for number, pages in gone.items() for page in lost_unread(settings, names, number, pages))
    )


def fetch_again(settings: "Settings", lost: Iterable[LostPage]) -> int:
    """Have the pages of these dones, ordered by partition, fetched again; returns their number.

    Raises: EngineError: the log cannot be read or written.
    """
    names, producer, count = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-recovery"), 0
    for number, job, epoch, found in _again(settings, names, lost):
        producer.send(names.urls, u.encode(u.UrlsRecord(job, epoch, urls=[found])), partition=number)
        count += 1
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge what is fetched again within {ACKNOWLEDGED_S:.0f} s")
    return count


def offer_again(
    settings: "Settings", report: Report, file: str, founds: "Iterable[tuple[str, int, u.UrlsRecord]]"
) -> None:
    """Writes founds that were saved from behind damage to the log again. A URL that is known stays known.

    Args:
        file: The files with the saved founds, for the messages.
        founds: Topic, partition and record of each.

    Raises: EngineError: the log cannot be written.
    """
    producer, count = CommandProducer(settings, "crawlog-recovery"), 0
    for topic, number, record in founds:
        producer.send(topic, u.encode(record), partition=number)
        count += len(record.urls or ())
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge the URLs of {file} within {ACKNOWLEDGED_S:.0f} s")
    if count:
        report(f"links that were cut off, by {file}, are in the log again: {count}")


def _recover(settings: "Settings", report: Report, check: Check, back: Mapping[int, int]) -> None:
    """Repairs the losses that a check has found, and moves parse back to `back`, by partition.

    Raises: EngineError: no answer; or parse's group has members, and no other command has moved it.
    """
    names, admin = Topics(settings.kafka.prefix), Admin(settings)
    of = groups.Group(stage_group(settings, "parse"), "parse", names.pages)
    before = admin.committed(of.name, of.topic)
    producer = CommandProducer(settings, "crawlog-recovery")
    mend_rewinds(settings, producer, names)
    _write_jobs(settings, producer, names)
    lost = 0
    for number, job, epoch, found in _again(settings, names, check.lost()):
        producer.send(names.urls, u.encode(u.UrlsRecord(job, epoch, urls=[found])), partition=number)
        lost += 1
    starts = {**back}
    for number, first in check.unparsed_from().items():
        starts[number] = min(first, starts.get(number, first))
    is_held = bool(starts) and not _is_empty(admin, of)
    if is_held:
        for page in check.unparsed():
            record = u.encode(u.UrlsRecord(page.job, page.meta.epoch, urls=[_of_page(page)]))
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


def sorted_out(settings: "Settings", pages: Iterable[tuple[LostPage, bool]]) -> tuple[list[LostPage], dict[int, int]]:
    """Of pages whose items are gone: those that are gone too, and by partition the first of the others.

    Args:
        pages: By partition, each with whether its URL was asked again since; then nothing is left to do for a gone one.

    Raises: EngineError: no answer.
    """
    lost, names = list(pages), Topics(settings.kafka.prefix)
    bounds = log_bounds(settings, names.pages, sorted({one.partition for one, _ in lost}))
    gone = [one for one, is_asked in lost if one.page < bounds[one.partition][0] and not is_asked]
    back: dict[int, int] = {}
    for one, _ in lost:
        if one.page >= bounds[one.partition][0]:
            back[one.partition] = min(one.page, back.get(one.partition, one.page))
    return gone, back


def parse_again(settings: "Settings", back: Mapping[int, int]) -> int:
    """Move crawlog-parse back to these offsets, where its commit is higher; returns the number of pages.

    Raises: EngineError: no answer; or the group has members.
    """
    of = groups.Group(stage_group(settings, "parse"), "parse", Topics(settings.kafka.prefix).pages)
    return _parse_again(Admin(settings), of, back)


def _write_jobs(settings: "Settings", producer: Producer, names: Topics) -> None:
    count = groups.count(Admin(settings), names.urls)
    for copy in read_control(settings, names).of(JobCopy):
        record = u.encode(u.UrlsRecord(job=copy.job, epoch=copy.epoch, spec=copy.spec))
        for number in range(count):
            producer.send(names.urls, record, partition=number)


def _again(settings: "Settings", names: Topics, lost: Iterable[LostPage]) -> Iterator[tuple[int, str, int, u.FoundUrl]]:
    """Partition, job, epoch and the found with `again`, for each lost page; a copy of the old found if that is left."""
    for number, of_one in groupby(lost, key=attrgetter("partition")):
        gone = list(of_one)
        queued = _queued(settings, names, number, {one.result.row for one in gone})
        for one in gone:
            result = one.result
            found = queued.get(result.row) or u.FoundUrl(result.url, priority=result.priority, source="link")
            was = {"again": result.status, "again_http": result.http, "again_why": result.why_no_page}
            found = msgspec.structs.replace(found, url=result.url, depth=result.depth, **was)
            yield number, one.job, one.epoch, found


def _of_page(page: Unparsed) -> u.FoundUrl:
    """The found with `again` for a page without a result, when parse's group has members and cannot be moved."""
    meta, status = page.meta, "failed"
    if meta.http is not None:
        status = "redirected" if meta.location else "not_modified" if meta.same_as else "fetched"
    source = "sitemap" if meta.kind == "sitemap" else "link"
    found = u.FoundUrl(meta.url, meta.depth, source=source, hops=meta.hops)  # type: ignore[arg-type]  # two of its words
    return msgspec.structs.replace(found, again=status, id=meta.id, request=meta.request)


def _last_minute(settings: "Settings", admin: Admin, topic: str, count: int) -> dict[int, int]:
    """The first offset of the topic's last minute, by partition; partitions without such records are left out."""
    limits = log_bounds(settings, topic, list(range(count)))
    newest_ms = 0
    for number, (low, end) in limits.items():
        for message in read_records(settings, topic, number, max(low, end - 1), end):
            newest_ms = max(newest_ms, message.timestamp()[1])
    starts = groups.offsets_at(admin, topic, range(count), newest_ms - int(WINDOW_S * 1000))
    return {number: starts[number] for number, (_, end) in limits.items() if 0 <= starts[number] < end}


def _queued(settings: "Settings", names: Topics, number: int, rows: set[int]) -> dict[int, u.FoundUrl]:
    """The founds that queued URLs, by row; lost founds are left out. One pass over the partition."""
    low, end = log_bounds(settings, names.urls, [number])[number]
    places = {row >> 16 for row in rows if low <= row >> 16 < end}
    found: dict[int, u.FoundUrl] = {}
    if not places:
        return found
    for message in read_records(settings, names.urls, number, min(places), max(places) + 1):
        offset = message.offset() or 0
        if offset not in places:
            continue
        try:
            urls = u.decode(message.value()).urls or []
        except ValueError:
            continue
        found |= {row: url for index, url in enumerate(urls) if (row := offset << 16 | index) in rows}
    return found


def _parse_again(admin: Admin, of: groups.Group, back: Mapping[int, int]) -> int:
    """Move crawlog-parse back to these offsets, where its commit is higher; returns the number of pages."""
    held = groups.held(admin, of)
    further = {n: at for n, at in back.items() if (held[n].committed or 0) > at}
    beyond = {n: one.end for n, one in held.items() if (one.committed or 0) > one.end and n not in further}
    moves, _ = offsets.plan(of.topic, offsets.Target("from-file", offsets=further | beyond), held)
    if not moves:
        return 0
    if not _is_empty(admin, of):
        raise EngineError(f"the group {of.name} still has members after {EMPTY_S:.0f} s; stop them, and run again")
    groups.move(admin, of, moves)
    return sum(one.records for one in moves)


def _was_moved(before: Mapping[tuple[str, int], int], now: Mapping[tuple[str, int], int]) -> bool:
    """Whether another command has moved a group back meanwhile."""
    return any(now.get(at, 0) < offset for at, offset in before.items())


def _forget_ends(settings: "Settings", numbers: list[int]) -> None:
    """Removes the written ends from crawlog-parse's commits.

    Else the log would count as cut until it has grown to its old ends.
    """
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
    """Whether a group has no members; waits for the session timeout of dead ones."""
    until = time.monotonic() + EMPTY_S
    while (live := groups.members(admin, [of.name])) and time.monotonic() < until:
        time.sleep(0.2)
    return not live


def _sinks_again(settings: "Settings", names: Topics, cut: Collection[int]) -> None:
    """Have the sinks of this data folder read partitions that were cut again. One that notices a cut does so itself."""
    firsts = {at: first for at, (first, _) in log_bounds(settings, names.items, list(cut)).items()} if cut else {}
    for sink in known_sinks(settings.run.data) if cut else ():
        read_again(settings.run.data, sink, firsts)
