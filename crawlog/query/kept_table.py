"""A table that is kept as Parquet below the data folder, and extended from the log by each query that names it.

    1 lock the folder → 2 read the log from the kept offsets, write a file for each CHUNK_ROWS rows → 3 name the files
    and the next offsets in `kept.json`, by rename → 4 unlock; the query reads the files without the lock

Only files that `kept.json` names count. So a query that is killed between 2 and 3 has changed nothing, and the next one
reads these records again. A named file never changes. A file that is not named any more is removed after LEFT_S, since
another query may still read it.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from crawlog.streams import files
from crawlog.streams.cluster import LogIdentity, log_bounds, log_identity
from crawlog.streams.log import read_partitions

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

VERSION = 1  # Counted up when a table's columns change: it is then read from the log again

CHUNK_ROWS = 100_000  # Rows of a file; so many are in memory
CHUNK_BYTES = 64 << 20  # Bytes of records after which a file is written too

SMALL_FILES = 16  # So many files below half of CHUNK_ROWS become one

LEFT_S = 3600.0  # Age at which a file that is not named is removed, seconds

NOTICE_AFTER_S = 5.0  # Time between two lines about the reading, seconds

KEPT = "kept.json"

Row = tuple[Any, ...]
Say = Callable[[str], None]


class KeptSource(NamedTuple):
    """What a table is made of.

    Attributes:
        topic: Full name.
        rows: The rows of a record, each with the name of the job whose file it goes to; empty where all share one.
        table: Rows as an Arrow table.
    """

    topic: str
    partitions: int
    rows: "Callable[[Message], Iterable[tuple[str, Row]]]"
    table: Callable[[list[Row]], Any]


class KeptFile(msgspec.Struct, frozen=True):
    """A file, and the job whose rows it has; empty for all jobs. A power cut may leave it shorter."""

    name: str
    rows: int
    size_bytes: int
    job: str = ""


class Kept(msgspec.Struct):
    """What is kept of a table: `kept.json`.

    Attributes:
        offsets: The next one of each partition.
        again: Name of the file with the keys that several records have, so that a query looks for the newest of these
            alone; empty without one.
    """

    log: LogIdentity
    version: int = VERSION
    offsets: dict[int, int] = {}
    files: list[KeptFile] = []
    again: str = ""


@contextmanager
def locked(folder: Path, say: Say = lambda _: None) -> Iterator[None]:
    """Makes the folder, and waits until no other query extends what is in it."""
    files.own(folder.parent)
    files.own(folder)
    file = files.opened(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another query reads {folder.name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def extended(settings: "Settings", folder: Path, source: KeptSource, say: Say) -> Kept:
    """The table, with all that the log holds now.

    Raises: EngineError: the log cannot be read; what was read before is kept.
    """
    with locked(folder, say):
        bounds = log_bounds(settings, source.topic, list(range(source.partitions)))
        kept = _fitting(folder, log_identity(settings, source.topic), bounds)
        _Extension(settings, folder, source, kept, say).run(bounds)
        _merge_small(folder, kept)
        remove_left(folder, [kept.again, *(one.name for one in kept.files)])
    return kept


def _fitting(folder: Path, log: LogIdentity, bounds: Mapping[int, tuple[int, int]]) -> Kept:
    """What is kept; nothing if it is of another log, or of one that was cut."""
    try:
        kept = msgspec.json.decode((folder / KEPT).read_bytes(), type=Kept)
    except (OSError, ValueError):
        return Kept(log)
    is_whole = all(_size(folder / one.name) == one.size_bytes for one in kept.files) and (folder / kept.again).exists()
    is_within = all(end <= bounds[at][1] for at, end in kept.offsets.items() if at in bounds)
    return kept if (kept.log, kept.version) == (log, VERSION) and is_whole and is_within else Kept(log)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


class _Extension:
    """One reading of the log, from where the table ends."""

    def __init__(self, settings: "Settings", folder: Path, source: KeptSource, kept: Kept, say: Say) -> None:
        self._settings = settings
        self._folder = folder
        self._source = source
        self._kept = kept
        self._say = say
        self._rows: dict[str, list[Row]] = {}
        self._told_at = time.monotonic()

    def run(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        at = self._kept.offsets
        ranges = {number: (max(first, at.get(number, 0)), end) for number, (first, end) in bounds.items()}
        total = sum(max(0, end - start) for start, end in ranges.values())
        count = size = done = 0
        for done, record in enumerate(read_partitions(self._settings, self._source.topic, ranges), 1):
            for job, row in self._source.rows(record):
                self._rows.setdefault(job, []).append(row)
                count += 1
            size += len(record.value() or b"")
            at[record.partition() or 0] = (record.offset() or 0) + 1
            if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
                self._write()
                count = size = 0
            self._tell(done, total)
        if total or not (self._folder / KEPT).exists():
            at.update((number, end) for number, (_, end) in ranges.items())
            self._write()

    def _write(self) -> None:
        for job, rows in self._rows.items():
            table = self._source.table(rows)
            if "$key" in table.column_names:
                self._note_again(table.select(["$key", "$at"]), job)
            self._kept.files.append(write_file(self._folder, table, job))
        self._rows = {}
        _note(self._folder, self._kept)

    def _note_again(self, fresh: Any, job: str) -> None:
        """Adds the keys of new rows that another record has, too."""
        import pyarrow as pa
        from pyarrow import compute, dataset

        old = [self._folder / one.name for one in self._kept.files if one.job == job]
        is_fresh = dataset.field("$key").isin(fresh["$key"].unique())
        known = [dataset.dataset(old).to_table(columns=["$key", "$at"], filter=is_fresh)] if old else []
        places = pa.concat_tables([fresh, *known]).group_by("$key").aggregate([("$at", "min"), ("$at", "max")])
        found = places.filter(compute.not_equal(places["$at_min"], places["$at_max"])).select(["$key"])
        if found.num_rows:
            before = [dataset.dataset(self._folder / self._kept.again).to_table()] if self._kept.again else []
            all_keys = pa.concat_tables([*before, found]).group_by("$key").aggregate([])
            self._kept.again = write_file(self._folder, all_keys).name

    def _tell(self, done: int, total: int) -> None:
        if not done % 1_000 and time.monotonic() > self._told_at + NOTICE_AFTER_S:
            self._told_at = time.monotonic()
            self._say(f"reading {self._source.topic}: {done:,} of {total:,} records")


def write_file(folder: Path, table: Any, job: str = "") -> KeptFile:
    """Writes a file that no one reads yet."""
    from pyarrow import parquet

    path = folder / f"{secrets.token_hex(8)}.parquet"
    parquet.write_table(table, path, compression="zstd")
    return KeptFile(path.name, table.num_rows, _size(path), job)


def _note(folder: Path, kept: Kept) -> None:
    files.write(folder / KEPT, msgspec.json.encode(kept))


def _merge_small(folder: Path, kept: Kept) -> None:
    """Makes one file of many small ones of a job, as far as their columns have the same types."""
    from pyarrow import dataset

    small: dict[str, list[KeptFile]] = {}
    for one in kept.files:
        if one.rows < CHUNK_ROWS // 2:
            small.setdefault(one.job, []).append(one)
    for job, found in small.items():
        if len(found) < SMALL_FILES:
            continue
        for schema, paths in alike([folder / one.name for one in found]):
            if len(paths) == 1:
                continue
            names = {path.name for path in paths}
            made = write_file(folder, dataset.dataset(paths, schema=schema).to_table(), job)
            kept.files = [*(one for one in kept.files if one.name not in names), made]
        _note(folder, kept)


def remove_left(folder: Path, named: Collection[str]) -> None:
    """Removes files that are not named any more, once no query can still read them."""
    for path in folder.glob("*.parquet"):
        if path.name not in named and time.time() - path.stat().st_mtime > LEFT_S:
            path.unlink(missing_ok=True)


def alike(paths: Iterable[Path]) -> list[tuple[Any, list[Path]]]:
    """Files in groups with one schema each: within a group a column has one type, or is missing, or always null."""
    import pyarrow as pa
    from pyarrow import parquet

    groups: list[tuple[dict[str, Any], list[Path]]] = []
    for path in paths:
        fields = {field.name: field.type for field in parquet.read_schema(path)}
        for known, group in groups:
            if all(
                pa.null() in (kind, known.get(name, kind)) or known.get(name, kind) == kind
                for name, kind in fields.items()
            ):
                known.update({name: kind for name, kind in fields.items() if known.get(name, pa.null()) == pa.null()})
                group.append(path)
                break
        else:
            groups.append((fields, [path]))
    return [(pa.schema(list(known.items())), group) for known, group in groups]
