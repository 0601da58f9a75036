"""The hosts of a fleet as crawl.hosts has them: a table that is searched, sorted and paged without reading all of it.

    crawl.hosts ─► take: a bucket's rows are replaced ─► SQLite ─► page, one

What is searched and sorted is in memory, 160 bytes a host; the figures are in a temporary file that ends with the
process.
"""

import sqlite3
import threading
from typing import Literal, get_args

import msgspec

from crawlog.schemas import hosts as h
from crawlog.schemas.hosts import HostFigures

HostKind = Literal["slow", "failing", "banned"]

KINDS: tuple[HostKind, ...] = get_args(HostKind)

SLOW_S = 60.0  # A host is slow if its queue needs longer than this at its pace, seconds

IN_A_ROW = 3  # Bad results in a row from which a host fails, or bans us; fewer if it had no good one

BANS = frozenset({"401", "403", "407", "429", "451"})  # Results by which a host turns us away

_SORTS = {
    "worst": ("rank", "left_s", "queued"),
    "host": ("host",),
    "queued": ("queued",),
    "left": ("left_s",),
    "rate": ("rate",),
    "asked": ("asked",),
    "bad": ("bad",),
    "delay": ("delay_s",),
    "next": ("next_at",),
    "age": ("at",),
}

# Why a host waits longer than its delay, in words, by `HostFigures.rests`.
HOST_RESTS = {
    "retry_after": "the host asked for it (Retry-After)",
    "backoff": "it failed",
    "exits": "all its exits rest",
    "pause": "paused by a command",
    "block": "blocked by a command",
}

HostSort = Literal["worst", "host", "queued", "left", "rate", "asked", "bad", "delay", "next", "age"]

_COUNTS = "SELECT kinds, count(*) FROM hosts GROUP BY kinds"
_FIT = "FROM hosts WHERE (? = 0 OR kinds & ?) AND (? = '' OR instr(host, ?))"
_ONE = "SELECT id, at, json FROM hosts JOIN figures USING (id) WHERE "

_SCHEMA = """
ATTACH '' AS file;
PRAGMA file.journal_mode = OFF;
PRAGMA file.synchronous = OFF;
CREATE TABLE hosts (id INTEGER PRIMARY KEY, host TEXT, at REAL, kinds INTEGER, rank INTEGER,
    queued INTEGER, left_s REAL, rate REAL, asked INTEGER, bad INTEGER, delay_s REAL, next_at REAL);
CREATE INDEX by_kinds ON hosts (kinds);
CREATE INDEX by_worst ON hosts (rank, left_s, queued, host);
CREATE TABLE file.figures (id INTEGER PRIMARY KEY, json BLOB);
"""


class ListedHost(HostFigures, omit_defaults=False):
    """A host.

    Attributes:
        partition: Of crawl.urls, in which its URLs are.
        kinds: `slow`: its queue needs more than a minute at its pace. `failing`: its last requests had no answer, or an
            error. `banned`: it turned the last ones away, or all its exits rest.
        left_s: Seconds that its queue needs at its pace; 0 if a command holds it.
        reported_at: When these figures last changed, UTC epoch seconds: the broker's time.
    """

    partition: int = 0
    kinds: tuple[HostKind, ...] = ()
    left_s: float = 0.0
    reported_at: float = 0.0


_decoder = msgspec.json.Decoder(ListedHost)


class HostPage(msgspec.Struct, frozen=True):
    """Some hosts of a table.

    Attributes:
        total: Hosts that fit.
        counts: Hosts of each kind, whatever was asked for; `all` counts all.
        is_complete: Whether all records were read that the log had when reading began.
    """

    hosts: list[ListedHost]
    total: int
    counts: dict[str, int]
    is_complete: bool = True


class HostTable:
    """All hosts. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._base.executescript(_SCHEMA)
        self.is_complete = False

    def take(self, key: bytes | None, value: bytes | None, at: float) -> None:
        """Replace the hosts of a bucket; what is no record of crawl.hosts is left out.

        Args:
            at: Its time in the log, UTC epoch seconds.
        """
        place = h.read_key(key)
        record = h.decode(value) if value else h.HostBucket([])
        if place is None or record is None:
            return
        first = (place[0] * h.BUCKETS + place[1]) * h.MAX_HOSTS
        ids, hosts = range(first, first + h.MAX_HOSTS), record.hosts[: h.MAX_HOSTS]
        with self._lock:
            self._base.execute("BEGIN")
            self._base.execute("DELETE FROM hosts WHERE id BETWEEN ? AND ?", (ids[0], ids[-1]))
            self._base.execute("DELETE FROM figures WHERE id BETWEEN ? AND ?", (ids[0], ids[-1]))
            columns = ((id_, *_columns(one, at)) for id_, one in zip(ids, hosts, strict=False))
            self._base.executemany("INSERT INTO hosts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", columns)
            figures = ((id_, msgspec.json.encode(one)) for id_, one in zip(ids, hosts, strict=False))
            self._base.executemany("INSERT INTO figures VALUES (?, ?)", figures)
            self._base.execute("COMMIT")

    def page(
        self,
        kind: HostKind | None = None,
        text: str = "",
        sort: HostSort = "worst",
        offset: int = 0,
        limit: int = 50,
        *,
        is_down: bool | None = None,
    ) -> HostPage:
        """Some hosts, by default the worst first.

        Args:
            text: A part of the host's name.
            is_down: Whether the greatest comes first; by default all but names and times of records are sorted so.
        """
        is_down = sort not in ("host", "age") if is_down is None else is_down
        order = ", ".join(f"{column} {'DESC' if is_down else 'ASC'}" for column in _SORTS[sort])
        bit = 1 << KINDS.index(kind) if kind else 0
        given = bit, bit, text.lower(), text.lower()
        with self._lock:
            of_kinds = self._base.execute(_COUNTS).fetchall()
            counts = {"all": sum(count for _, count in of_kinds)}
            for at, name in enumerate(KINDS):
                counts[name] = sum(count for kinds, count in of_kinds if kinds & 1 << at)
            total = counts[kind or "all"]
            if text:
                (total,) = self._base.execute("SELECT count(*) " + _FIT, given).fetchone()
            ids = self._base.execute(
                f"SELECT id {_FIT} ORDER BY {order}, host LIMIT ? OFFSET ?",
                (*given, limit, offset),
            ).fetchall()
            rows = [self._base.execute(_ONE + "id = ?", id_).fetchone() for id_ in ids]
        return HostPage([_row(*row) for row in rows], total, counts, self.is_complete)

    def one(self, host: str) -> ListedHost | None:
        """A host by its key; None if the log has no figures of it."""
        with self._lock:
            row = self._base.execute(_ONE + "host = ? ORDER BY at DESC", (host,)).fetchone()
        return None if row is None else _row(*row)


def _columns(one: HostFigures, at: float) -> tuple[str | float, ...]:
    left_s = left_of(one, at)
    bits = sum(1 << KINDS.index(kind) for kind in kinds_of(one, left_s))
    about = one.queued, left_s, one.rate, one.asked, one.bad_row, one.delay_s, one.next_at
    return (one.host, at, bits, bits.bit_length(), *about)


def _row(id_: int, at: float, figures: bytes) -> ListedHost:
    row = _decoder.decode(figures)
    row.partition, row.reported_at = id_ // h.MAX_HOSTS // h.BUCKETS, at
    row.left_s = left_of(row, at)
    row.kinds = kinds_of(row, row.left_s)
    return row


def left_of(one: HostFigures, at: float) -> float:
    """Seconds that a host's queue needs at its pace; 0 if a command holds it."""
    if not one.queued or one.rests in ("pause", "block"):
        return 0.0
    return round(one.queued * one.delay_s / max(one.per_host, 1) + max(one.next_at - at, 0.0), 1)


def kinds_of(one: HostFigures, left_s: float) -> tuple[HostKind, ...]:
    """What is wrong with a host, whose queue needs so many seconds."""
    is_bad = one.bad_row >= IN_A_ROW or 0 < one.bad_row == sum(one.results.values())
    is_ban = one.rests == "exits" or (is_bad and one.last in BANS)
    fits = {"slow": left_s > SLOW_S, "failing": is_bad and not is_ban, "banned": is_ban}
    return tuple(kind for kind in KINDS if fits[kind])
