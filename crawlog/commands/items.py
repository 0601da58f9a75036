"""Rows of a job, page by page, read from crawl.items by a cursor. Each row says which page it was parsed from.

A cursor has the next offset of each partition, and how many rows of that record were given: `12.40-3.7`. It stays valid
while rows are added. A page that was parsed again gives its rows again, later; the newest are those of the later page.
"""

import heapq
from collections import Counter
from contextlib import closing
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from crawlog.schemas import items
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Topics, partition_count, read_partitions, read_records
from crawlog.streams.sink import places_of, plain_rows

from .export import ExportedJob, exported_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

# Records looked at for one page of rows. A page may then be empty though there are more rows: `is_end` says so.
MOST_READ = 50_000

NEWEST_READ = (800, MOST_READ)  # Records looked at for the newest rows: the last few, and more if these lack rows


GIVEN = "-"  # Stands in a cursor before the rows that were given; `+` would be a blank in a URL's query


class ItemRow(msgspec.Struct, frozen=True):
    """A row.

    Attributes:
        url: Of the page.
        page: (partition, offset) in crawl.pages of the page that it was parsed from.
        at: (partition, offset) in crawl.items of its record.
        item: The row, a JSON object. Of a job with pipelines: the item as it was scraped.
    """

    url: str
    page: tuple[int, int]
    at: tuple[int, int]
    item: msgspec.Raw


class ItemsPage(msgspec.Struct, frozen=True):
    """Some rows of a job.

    Attributes:
        cursor: Gives the next rows.
        is_end: Whether there was no row behind these when they were read.
    """

    job: str
    rows: list[ItemRow]
    cursor: str
    is_end: bool


class _Place(NamedTuple):
    """The next row of a partition: a record's offset, and rows of that record that were given."""

    offset: int
    given: int = 0

    @property
    def text(self) -> str:
        return f"{self.offset}{GIVEN}{self.given}" if self.given else str(self.offset)


def items_of(settings: "Settings", job: str, cursor: str = "", limit: int = 100, host: str | None = None) -> ItemsPage:
    """The next rows of a job.

    Args:
        cursor: Of the page before; empty for the first page.
        limit: Rows, at most.
        host: Only rows of URLs of this host (`name` or `name:port`).

    Raises: Misconfigured: no such job, or no cursor. EngineError: the log cannot be read.
    """
    count = partition_count(settings)
    reading = _Reading(exported_job(settings, job, "-"), limit, host)
    topic = Topics(settings.kafka.prefix).items
    bounds = log_bounds(settings, topic, list(range(count)))
    places = _places(cursor, count)
    if any(place.offset > bounds[number][1] for number, place in enumerate(places)):
        raise _wrong(cursor)  # of a log that was made anew, or cut: the rows before it would be missing
    start_of = places_of(reading.now.copy.spec)
    left = MOST_READ
    is_end = True
    for number, (first, end) in sorted(bounds.items()):
        place = places[number] if places else _Place(start_of(number, first, end))
        if place.offset < first:
            place = _Place(first)
        reading.places[number] = place
        if place.offset >= end:
            continue
        if reading.is_full or left <= 0:
            is_end = False
            continue
        until = min(end, place.offset + left)
        left -= until - place.offset
        with closing(read_records(settings, topic, number, place.offset, until)) as records:
            reading.read(number, place, records, until)
        is_end &= reading.places[number].offset >= end
    return ItemsPage(job, reading.rows, _cursor(reading.places), is_end)


def newest_rows(settings: "Settings", job: str, limit: int) -> list[ItemRow]:
    """The newest rows of a job, the newest first; none if the end of the log has none of it.

    Raises: Misconfigured: no such job. EngineError: the log cannot be read.
    """
    count, topic = partition_count(settings), Topics(settings.kafka.prefix).items
    reading = _Reading(exported_job(settings, job, "-"), limit, None)
    bounds = log_bounds(settings, topic, list(range(count)))
    found: list[tuple[int, int, ItemRow]] = []
    for read in NEWEST_READ:
        begins = {number: max(first, end - read // count) for number, (first, end) in bounds.items()}
        with closing(read_partitions(settings, topic, {at: (begins[at], bounds[at][1]) for at in begins})) as records:
            found = heapq.nlargest(limit, reading.timed(records), key=itemgetter(0, 1))
        if len(found) >= limit or all(begins[number] == first for number, (first, _) in bounds.items()):
            break
    return [row for _, _, row in found]


def cursors_behind(page: ItemsPage, begun: str) -> list[str]:
    """The cursor behind each row of a page; that of the last one is the page's.

    Args:
        begun: The cursor from which on the page was read.
    """
    parts = page.cursor.split(".")
    given = Counter({(number, one.offset): one.given for number, one in enumerate(_places(begun, len(parts)))})
    starts = []
    for row in page.rows:
        starts.append((row.at[0], _Place(row.at[1], given[row.at])))
        given[row.at] += 1
    behind = []
    for number, start in reversed(starts):  # where a row begins is where those before it end
        behind.append(".".join(parts))
        parts[number] = start.text
    return behind[::-1]


class _Reading:
    """The rows of one page, while they are read."""

    def __init__(self, now: ExportedJob, limit: int, host: str | None) -> None:
        self.now = now
        self.rows: list[ItemRow] = []
        self.places: dict[int, _Place] = {}
        self._limit = limit
        self._host = host.lower() if host else ""
        self._job = now.copy.job.encode()

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._limit

    def read(self, number: int, place: _Place, records: "Iterator[Message]", until: int) -> None:
        """Takes rows of one partition until there are enough."""
        for message in records:
            offset = message.offset() or 0
            given = place.given if offset == place.offset else 0
            found = self._rows(message, (number, offset))
            taken = found[given : given + self._limit - len(self.rows)]
            self.rows += taken
            if given + len(taken) < len(found):
                self.places[number] = _Place(offset, given + len(taken))
                return
            self.places[number] = _Place(offset + 1)
            if self.is_full:
                return
        self.places[number] = _Place(until)

    def timed(self, records: "Iterable[Message]") -> "Iterator[tuple[int, int, ItemRow]]":
        """The rows of records with the time of their record, and its offset, for sorting."""
        for message in records:
            offset = message.offset() or 0
            for row in self._rows(message, (message.partition() or 0, offset)):
                yield message.timestamp()[1], offset, row

    def _rows(self, message: "Message", at: tuple[int, int]) -> list[ItemRow]:
        """The job's rows in a record; none of another job's, and none of garbage."""
        named, space, _ = (message.key() or b"").partition(b" ")
        if space and named != self._job:
            return []
        try:
            record = items.decode(message.value())
            if not self.now.spec.wants(record.job, record.epoch, record.page) or not self._is_of_host(record.url):
                return []
            return [ItemRow(record.url, record.page, at, row) for row in plain_rows(record)]
        except ValueError:
            return []

    def _is_of_host(self, url: str) -> bool:
        if not self._host:
            return True
        parts = urlsplit(url)
        return self._host in (parts.hostname, parts.netloc)


def _places(cursor: str, count: int) -> list[_Place]:
    """The places in a cursor; none in an empty one. Raises: Misconfigured: it is no cursor of this log."""
    if not cursor:
        return []
    try:
        places = [_Place(*map(_number, part.split(GIVEN, 1))) for part in cursor.split(".")]
    except ValueError:
        places = []
    if len(places) != count:
        raise _wrong(cursor)
    return places


def _wrong(cursor: str) -> Misconfigured:
    return Misconfigured(f"{cursor!r:.100} is no cursor of this crawl: take `cursor` of the page before, or begin anew")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(text)
    return int(text)


def _cursor(places: dict[int, _Place]) -> str:
    return ".".join(place.text for _, place in sorted(places.items()))
