"""What changed on the pages of a job: the records of crawl.changes, each beside the record of crawl.items before it.

crawl.changes, all partitions ─► the newest ones of the job ─┬─► `was`: read from crawl.items ─► differences by field
                                                             └─► new or gone: nothing to read, or all that was there
"""

from collections import deque
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.schemas import items
from crawlog.streams.cluster import log_bounds, offset_at
from crawlog.streams.control import read_control
from crawlog.streams.errors import UnknownName
from crawlog.streams.log import Topics, partition_count, read_records
from crawlog.streams.parse import fields_of, ignored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from crawlog.streams.settings import Settings

NEAR = 1_000  # Longest distance of two records in crawl.items that are read in one run

Place = tuple[int, int]  # (partition, offset)


class PageChanges(msgspec.Struct, frozen=True):
    """What changed on a page.

    Attributes:
        at: UTC epoch seconds when it was noticed.
        page: (partition, offset) in crawl.pages of the page that has it.
        id: Identity of its request; 0 for a plain GET.
        items: Of each item that differs, by field, the old and the new value; None stands for no such field.
        was: (partition, offset) in crawl.items of the record before.
        is_lost: Whether that record is no longer in the log.
    """

    at: float
    change: items.Change
    url: str
    page: Place
    items: list[dict[str, tuple[Any, Any]]]
    id: int = 0
    was: Place | None = None
    is_lost: bool = False


def changes_of(settings: "Settings", job: str, since: float = 0.0, limit: int = 1_000) -> list[PageChanges]:
    """The newest changes of a job that are in the log now, the newest last.

    Args:
        since: Leaves out older ones; UTC epoch seconds.

    Raises: UnknownName: no such job. EngineError: the log cannot be read.
    """
    topics = Topics(settings.kafka.prefix)
    copy = read_control(settings, topics).job(job)
    if copy is None:
        raise UnknownName(f"there is no job {job!r:.120} in the log; `crawlog jobs` names those that there are.")
    newest: list[tuple[float, items.ItemsRecord]] = []
    for number, (first, end) in log_bounds(settings, topics.changes, list(range(partition_count(settings)))).items():
        start = max(first, offset_at(settings, topics.changes, number, int(since * 1000), end)) if since else first
        with closing(read_records(settings, topics.changes, number, start, end)) as records:
            told = ((one.timestamp()[1] / 1000, _read(one.value())) for one in records)
            of_job = ((at, one) for at, one in told if one is not None and one.job == job and one.epoch > copy.after)
            newest += deque(of_job, maxlen=limit)
    once = {(told.url, told.id, told.page): (at, told) for at, told in newest}  # a page may be parsed twice
    chosen = sorted(once.values(), key=lambda one: one[0])[-limit:]
    before = _records_at(settings, topics.items, {told.was for _, told in chosen if told.was is not None})
    return [_change(at, told, before, ignored(copy.spec)) for at, told in chosen]


def _read(value: bytes | None) -> items.ItemsRecord | None:
    try:
        return items.decode(value)
    except ValueError:
        return None


def _records_at(settings: "Settings", topic: str, places: "set[Place]") -> dict[Place, items.ItemsRecord]:
    """The records at some places that are still in the log; those near each other are read in one run."""
    runs: list[tuple[int, int, int]] = []
    for number, offset in sorted(places):
        if runs and runs[-1][0] == number and offset - runs[-1][2] <= NEAR:
            runs[-1] = (number, runs[-1][1], offset)
        else:
            runs.append((number, offset, offset))
    bounds = log_bounds(settings, topic, sorted({number for number, _, _ in runs})) if runs else {}
    found = {}
    for number, start, last in runs:
        first, end = bounds[number]
        with closing(read_records(settings, topic, number, max(start, first), min(last + 1, end))) as records:
            for record in records:
                place = number, record.offset() or 0
                if place in places and (told := _read(record.value())) is not None:
                    found[place] = told
    return found


def _change(
    at: float, now: items.ItemsRecord, before: dict[Place, items.ItemsRecord], ignored: "Collection[str]"
) -> PageChanges:
    old = before.get(now.was) if now.was is not None else None
    is_lost = now.was is not None and (old is None or (old.url, old.id) != (now.url, now.id))
    gave = old.items if old is not None and not is_lost else []
    has = now.items if now.change != "gone" else []
    found = differences([fields_of(one, ignored) for one in gave], [fields_of(one, ignored) for one in has])
    return PageChanges(at, now.change, now.url, now.page, found, now.id, now.was, is_lost)


def differences(old: list[dict[str, Any]], new: "Iterable[dict[str, Any]]") -> list[dict[str, tuple[Any, Any]]]:
    """By field, what differs between the items of two records. Equal items fall out; the rest pair up in order."""
    added = []
    for item in new:
        if item in old:
            old.remove(item)
        else:
            added.append(item)
    nothing: dict[str, Any] = {}
    return [
        {name: (was.get(name), now.get(name)) for name in was | now if was.get(name) != now.get(name)}
        for was, now in zip_longest(old, added, fillvalue=nothing)
    ]
