"""After a power cut under the local engine: what its disk did not get is found again, before anything is written.

The promise covers the death of processes. When the machine dies, each file of Kafka's log ends where the disk had it,
one topic later than another. What that can break, and what is done, once, before the workers go:

    a job's record is gone, its copy is there      written again to every partition: the fold knows a revision it has
    some of a rewind is gone, its note is there    carried out once more
    founds or items of a committed page are gone   crawlog-parse goes back to the last minute of pages
    a done stands, its page is gone                a found with `again`: the URL is queued although it is known

The last must be found out here and not by the partition's owner, since the offsets that are gone are given out again:
once a worker has written a page, a done that names a lost one looks as if it named that. The found with `again` is a
record like any other, so the fold stays a function of the log. What is left to the user: seeds that `crawlog seed` had
written in the last seconds; giving them again does no harm.
"""

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from ..schemas import urls as u
from ..schemas.control import JobCopy
from . import groups
from .errors import EngineError
from .jobs import known
from .kafka import bounds, read
from .offsets import Target, plan
from .producer import Producer
from .rewind import mend
from .topics import Admin, Topics, group

if TYPE_CHECKING:
    from .settings import Settings

WINDOW_S = 60.0
"""What the operating system had not written may be so old; Linux writes what is older than 30 s."""

EMPTY_S = 30.0
"""How long the group of workers that died with the machine may take to empty: their session, from the start on."""

ACKNOWLEDGED_S = 60.0

Gone = tuple[int, str, int, u.Result]
"""Partition of crawl.urls, job, epoch, and the done whose page is gone."""


def recover(settings: "Settings", report: Callable[[str], None]) -> None:
    """Do all of it; doing it twice is harmless.

    Raises: EngineError: the log cannot be read or written.
    """
    report(
        "the machine went down without stopping Apache Kafka, and the last seconds may not be on its disk: "
        "the last minute of pages is parsed again, and what is gone is fetched again"
    )
    names, admin = Topics(settings.kafka.prefix), Admin(settings)
    producer = Producer(settings, "crawlog-powercut")
    mend(settings, producer, names)
    for entry in known(settings, names).values():
        if isinstance(entry, JobCopy):
            record = u.encode(u.UrlsRecord(job=entry.job, epoch=entry.epoch, spec=entry.spec))
            for number in range(groups.count(admin, names.urls)):
                producer.send(names.urls, record, partition=number)
    lost = sorted(gone(settings, admin, names), key=itemgetter(0))
    for number, of_one in groupby(lost, key=itemgetter(0)):
        results = list(of_one)
        queued = _queued(settings, names, number, {result.row for *_, result in results})
        for _, job, epoch, result in results:
            found = queued.get(result.row) or u.FoundUrl(result.url, priority=result.priority, source="link")
            found = msgspec.structs.replace(found, url=result.url, depth=result.depth, again=result.status)
            producer.send(names.urls, u.encode(u.UrlsRecord(job=job, epoch=epoch, urls=[found])), partition=number)
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge what is fetched again within {ACKNOWLEDGED_S:.0f} s")
    moved = _parse_again(settings, admin, names)
    report(f"pages gone, fetched again: {len(lost)}; pages parsed again: {moved}")


def gone(settings: "Settings", admin: Admin, names: Topics) -> Iterator[Gone]:
    """Dones of the last minute that name a page which the log no longer has, unless it was asked for again since."""
    count = groups.count(admin, names.urls)
    ends = {number: end for number, (_, end) in bounds(settings, names.pages, list(range(count))).items()}
    starts = _last_minute(settings, admin, names.urls, count)
    for number, (start, end) in starts.items():
        found: dict[tuple[str, str], Gone] = {}
        for message in read(settings, names.urls, number, start, end):
            try:
                record = u.decode(message.value())
            except ValueError:
                continue
            for result in record.results or ():
                if result.page is not None and result.page[1] >= ends.get(result.page[0], 0):
                    assert record.job is not None
                    found[record.job, result.url] = number, record.job, record.epoch, result
            for url in record.urls or ():
                if url.again:
                    found.pop((record.job or "", url.url), None)
        yield from found.values()


def _last_minute(settings: "Settings", admin: Admin, topic: str, count: int) -> dict[int, tuple[int, int]]:
    """[start, end) of each partition's records of the topic's last minute; those without any are left out."""
    limits = bounds(settings, topic, list(range(count)))
    newest_ms = 0
    for number, (low, end) in limits.items():
        for message in read(settings, topic, number, max(low, end - 1), end):
            newest_ms = max(newest_ms, message.timestamp()[1])
    starts = groups.offsets_at(admin, topic, range(count), newest_ms - int(WINDOW_S * 1000))
    return {number: (starts[number], end) for number, (_, end) in limits.items() if 0 <= starts[number] < end}


def _queued(settings: "Settings", names: Topics, number: int, rows: set[int]) -> dict[int, u.FoundUrl]:
    """The founds that queued URLs, by row; those that are gone too are left out. Read in one go, in the log's order."""
    low, end = bounds(settings, names.urls, [number])[number]
    offsets = {row >> 16 for row in rows if low <= row >> 16 < end}
    found: dict[int, u.FoundUrl] = {}
    if not offsets:
        return found
    for message in read(settings, names.urls, number, min(offsets), max(offsets) + 1):
        offset = message.offset() or 0
        if offset not in offsets:
            continue
        try:
            urls = u.decode(message.value()).urls or []
        except ValueError:
            continue
        found |= {row: url for index, url in enumerate(urls) if (row := offset << 16 | index) in rows}
    return found


def _parse_again(settings: "Settings", admin: Admin, names: Topics) -> int:
    """Move crawlog-parse back to the last minute of pages, where it is further; returns how many pages that are."""
    of = groups.Group(group(settings, "parse"), "parse", names.pages)
    count = groups.count(admin, names.pages)
    back = {number: start for number, (start, _) in _last_minute(settings, admin, names.pages, count).items()}
    held = groups.held(admin, of)
    further = {n: at for n, at in back.items() if (held[n].committed or 0) > at}
    beyond = {n: one.end for n, one in held.items() if (one.committed or 0) > one.end and n not in further}
    moves, _ = plan(names.pages, Target("from-file", offsets=further | beyond), held)
    if not moves:
        return 0
    until = time.monotonic() + EMPTY_S
    while (live := groups.members(admin, [of.name])) and time.monotonic() < until:
        time.sleep(0.2)
    if live:
        raise EngineError(f"the group {of.name} still has members after {EMPTY_S:.0f} s: {'; '.join(live)}")
    groups.move(admin, of, moves)
    return sum(one.records for one in moves)
