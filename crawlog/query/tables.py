"""The tables: what a record of the log gives, and the view that SQL sees.

A kept file has all that the log had, of every epoch. The views leave out what no longer counts, as the outputs do:
items of a page that was parsed again (the newer page counts, then the later record), results before a job began again,
pages that a rewind of the crawl cancels. A place is one number: partition << OFFSET_BITS | offset.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from crawlog.schemas import dead, items, pages, urls
from crawlog.streams.dead_letters import Letters
from crawlog.streams.log import Topics, record_headers
from crawlog.streams.sink import plain_rows

from .kept_table import KeptSource, Row

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.fleet import JobView
    from crawlog.streams.fold import rows as r

OFFSET_BITS = 44

MOST_COLUMNS = 1_000  # Columns of a file of rows; what further keys have is left out

QUEUES = "queues"  # The queued URLs, beside the table `urls`

AGAIN = " again"  # Behind the name of a table: its keys that several records have

NAMES = ("rows", "pages", "urls", "dead", "jobs")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def sources(topics: Topics, partitions: int) -> dict[str, KeptSource]:
    """What each kept table is made of."""
    return {
        "rows": KeptSource(topics.items, partitions, _item_rows, _items_table),
        "pages": KeptSource(topics.pages, partitions, _page_rows, partial(_fixed, _PAGES)),
        "urls": KeptSource(topics.urls, partitions, _result_rows, results_table),
        "dead": KeptSource(topics.dead, 1, _letter_rows, partial(_fixed, _LETTERS)),
    }


def place(partition: int, offset: int) -> int:
    return partition << OFFSET_BITS | offset


def _at(record: "Message") -> int:
    return place(record.partition() or 0, record.offset() or 0)


def _key(text: bytes) -> int:
    """64 bits of a key, as DuckDB's BIGINT."""
    return xxhash.xxh3_64_intdigest(text) - (1 << 63)


def microseconds(at: float) -> int | None:
    """A time as TIMESTAMP; NULL for none, and for one behind the year 9999, which no client can show."""
    return round(at * 1e6) if 0 < at < 253_402_300_800 else None


# ------------------------------------------------------------------ rows

_OF_RECORD = {
    "$key": "int64", "$page": "int64", "$at": "int64", "$epoch": "int64", "$job": "string", "$url": "string",
    "$is_row": "bool_",
}  # fmt: skip


def _item_rows(record: "Message") -> Iterator[tuple[str, Row]]:
    """A record's rows; one without an item if it has none, since it replaces those of an older page."""
    try:
        found = items.decode(record.value())
        rows = [_decode(row) for row in (plain_rows(found) if found.raw else found.items)]
    except (ValueError, TypeError, RecursionError):
        return  # garbage of another client
    about = (
        url_key(found.job, found.url, found.id),
        place(*found.page),
        _at(record),
        found.epoch,
        found.job,
        found.url,
    )
    for row in rows or [{}]:
        yield found.job, (*about, bool(rows), row)


def _items_table(rows: list[Row]) -> Any:
    """Columns typed from the items: BOOLEAN, BIGINT, DOUBLE, VARCHAR, JSON for lists and objects."""
    import pyarrow as pa

    found = [row[-1] for row in rows]
    names = list(dict.fromkeys(key for row in found for key in row if key not in _OF_RECORD))[:MOST_COLUMNS]
    columns = {name: column([row.get(name) for row in found]) for name in names}
    return pa.table(columns | _columns(_OF_RECORD, [row[:-1] for row in rows]))


def made_table(job: str, epoch: int, rows: list[dict[str, Any]]) -> Any:
    """Rows that pipelines made: none replaces another one, and none has a page."""
    return _items_table([(0, 0, -1, epoch, job, None, True, row) for row in rows])


def column(values: list[Any]) -> Any:
    """Values of JSON as an Arrow array. Where types are mixed, a text is itself and everything else is JSON."""
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {bool} or kinds == {str}:
        return pa.array(values)
    if kinds <= {bool, int}:
        if all(-1 << 63 <= one < 1 << 63 for one in values if one is not None):
            return pa.array(values, pa.int64()) if bool not in kinds else pa.array(map(_int, values), pa.int64())
    elif kinds <= {bool, int, float}:
        with suppress(OverflowError):  # an integer of 400 digits
            return pa.array([None if one is None else float(one) for one in values], pa.float64())
    texts = pa.array(
        [one if one is None or isinstance(one, str) else _encode(one).decode() for one in values], pa.string()
    )
    return pa.ExtensionArray.from_storage(pa.json_(), texts) if kinds <= {dict, list} else texts


def _int(value: int | None) -> int | None:
    return None if value is None else int(value)


ROWS = """
    SELECT * EXCLUDE ("$key", "$page", "$at", "$epoch", "$job", "$url", "$is_row"), "$job" AS _job, "$url" AS _url
    FROM ({kept}) r WHERE "$is_row" {newest}
"""

# Of keys that several records have, only the newest one counts; without such keys a million rows cost nothing.
NEWEST_ITEMS = """AND ("$key" NOT IN ({again}) OR ("$key", "$at") IN (
    SELECT ("$key", arg_max("$at", ("$page", "$at"))) FROM ({kept}) WHERE "$key" IN ({again}) GROUP BY "$key"))
"""

# ------------------------------------------------------------------ the others

_PAGES = {
    "url": "string", "job": "string", "status": "int64", "reason": "string", "bytes": "int64", "type": "string",
    "fetched_at": "time", "took_s": "float64", "attempt": "int64", "worker": "string", "exit": "string",
    "offset": "int64", "partition": "int64", "depth": "int64", "location": "string", "$epoch": "int64",
    "$page": "int64",
}  # fmt: skip


def _page_rows(record: "Message") -> Iterator[tuple[str, Row]]:
    """A page, redirect, sitemap or failure; a robots.txt is none."""
    try:
        meta = pages.meta_in(record_headers(record))
    except ValueError:
        return
    if meta.kind == "robots":
        return
    partition, offset = record.partition() or 0, record.offset() or 0
    by = meta.worker or None, meta.exit or None
    kind = meta.content_type.partition(";")[0].strip().lower() or meta.sniffed
    yield "", (
        meta.url, meta.job, meta.http, meta.error or None, len(record.value() or b""), kind or None,
        microseconds(meta.fetched_at), meta.took_s, meta.attempt, *by, offset, partition, meta.depth,
        meta.location or None, meta.epoch, place(partition, offset),
    )  # fmt: skip


PAGES = 'SELECT * EXCLUDE ("$epoch", "$page") FROM ({kept}) p'

_RESULTS = {
    "$key": "int64", "$at": "int64", "$epoch": "int64", "url": "string", "job": "string", "state": "string",
    "depth": "int64", "status": "int64", "reason": "string", "attempt": "int64",
    "done_at": "time", "next_at": "time",
}  # fmt: skip


def url_key(job: str, url: str, request_id: int) -> int:
    """Identifies a URL of a job among its results and queues."""
    return _key(items.key(job, url, request_id))


def queued_row(job: str, row: "r.QueueRow", state: str) -> Row:
    """A URL in a queue, as a row of the kept results."""
    key = url_key(job, row.url, row.id)
    return (key, 0, 0, row.url, job, state, row.depth, None, None, row.attempt, None, microseconds(row.due_ms / 1000))


def results_table(rows: list[Row]) -> Any:
    """Results or queued URLs as an Arrow table."""
    return _fixed(_RESULTS, rows)


def _result_rows(record: "Message") -> Iterator[tuple[str, Row]]:
    """The results of a done; `began` is none."""
    value = record.value()
    if not value or b'"results"' not in value:
        return
    try:
        found = urls.decode(value)
    except ValueError:
        return
    job = found.job or urls.DEFAULT_JOB
    for one in found.results or ():
        if one.status != "began":
            yield "", (
                url_key(job, one.url, one.id), _at(record), found.epoch, one.url, job, one.status, one.depth, one.http,
                one.rule or one.reason or None, one.attempt, microseconds(one.at), microseconds(one.next_at),
            )  # fmt: skip


URLS = """
    WITH queued AS (FROM ({queues})), done AS (FROM ({kept}) WHERE "$key" NOT IN (SELECT "$key" FROM queued))
    SELECT url, job, state, depth, split_part(url, '/', 3) AS host, status, reason, attempt, done_at, next_at
    FROM (FROM queued UNION ALL BY NAME FROM done WHERE true {newest})
"""

NEWEST_RESULTS = """AND ("$key" NOT IN ({again}) OR ("$key", "$at") IN (
    SELECT ("$key", max("$at")) FROM done WHERE "$key" IN ({again}) GROUP BY "$key"))
"""

_LETTERS = {
    "number": "int64", "failed_at": "time", "stage": "string", "job": "string", "url": "string", "error": "string",
    "topic": "string", "partition": "int64", "record_offset": "int64", "bytes": "int64", "$of": "int64",
    "$handled": "string",
}  # fmt: skip


def _letter_rows(record: "Message") -> Iterator[tuple[str, Row]]:
    """A letter, or a row for each letter that a mark closes."""
    offset, headers = record.offset() or 0, record_headers(record)
    if dead.is_mark(headers):
        try:
            mark = dead.decode_mark(record.value())
        except ValueError:
            return
        for of in mark.handled:
            yield "", (*[None] * 10, of, mark.how)
        return
    letters = Letters()
    letters.take(offset, record.timestamp()[1] / 1000, headers, record.value())
    for one in letters.all.values():
        yield "", (
            offset, microseconds(one.at), one.stage, one.job, one.url or None, one.error, *one.place, one.size_bytes,
            None, None,
        )  # fmt: skip


DEAD = """
    SELECT * EXCLUDE ("$of", "$handled", closed, handled), coalesce(handled, 'open') AS state FROM (
        SELECT * FROM ({kept}) WHERE "$of" IS NULL QUALIFY stage <> 'frontier'
            OR row_number() OVER (PARTITION BY topic, partition, record_offset, error ORDER BY number) = 1
    ) LEFT JOIN (SELECT "$of" AS closed, max("$handled") AS handled FROM ({kept}) GROUP BY 1) ON number = closed
"""


_JOBS = {
    "job": "string", "state": "string", "reason": "string", "epoch": "int64", "spider": "string", "project": "string",
    "version": "string", "submitted_by": "string", "submitted_at": "time", "ended_at": "time", "queued": "int64",
    "in_flight": "int64", "fetched": "int64", "redirected": "int64", "failed": "int64", "refused": "int64",
    "retried": "int64", "dropped": "int64", "dead": "int64",
}  # fmt: skip


def jobs_table(jobs: "Sequence[JobView]") -> Any:
    """The jobs and their counts."""
    return _fixed(_JOBS, [_job_row(one) for one in jobs])


def _job_row(one: "JobView") -> Row:
    code, counts = one.code, one.counts
    return (
        one.name, one.state, one.reason or None, one.epoch, one.spider or None, code.project if code else None,
        code.version if code else None, one.by or None, microseconds(one.submitted_at), microseconds(one.ended_at),
        counts.queued, counts.in_flight, counts.fetched, counts.redirected, counts.failed, counts.refused,
        counts.retried, sum(counts.dropped.values()), one.dead,
    )  # fmt: skip


def _fixed(columns: dict[str, str], rows: list[Row]) -> Any:
    """A table whose columns are known."""
    import pyarrow as pa

    return pa.table(_columns(columns, rows))


def _columns(kinds: dict[str, str], rows: list[Row]) -> dict[str, Any]:
    """Arrow arrays. A number beyond 64 bits, of a record that is garbage, becomes NULL."""
    import pyarrow as pa

    made = {}
    of_column = zip(*rows, strict=True) if rows else [()] * len(kinds)
    for (name, kind), values in zip(kinds.items(), of_column, strict=True):
        type_ = pa.timestamp("us") if kind == "time" else getattr(pa, kind)()
        try:
            made[name] = pa.array(values, type_)
        except (OverflowError, pa.ArrowInvalid):
            made[name] = pa.array([None if one is None or abs(one) >= 1 << 63 else one for one in values], type_)
    return made


def empty(name: str) -> Any:
    """A kept table without rows."""
    if name.endswith(AGAIN):
        return _fixed({"$key": "int64"}, [])
    return _fixed(
        {"rows": _OF_RECORD, "pages": _PAGES, "urls": _RESULTS, "queues": _RESULTS, "dead": _LETTERS, "jobs": _JOBS}[
            name
        ],
        [],
    )
