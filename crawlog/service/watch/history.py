"""The history in SQLite, in the service's folder of the data: samples of 10 s for some hours, of 5 min for a week.

    note ─► samples of 10 s ─► a time of 5 min is over: their means ─► too old ones are dropped

Write-ahead logging lets requests read while the watcher writes. A file that is damaged, or of another version, begins
anew: it only shows what was. With 200 busy jobs all the time it has some 60 MB.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from .samples import EVERY_S, ROLLED_S, FleetSample, SeriesAnswer, joined, rolled

log = structlog.get_logger()

VERSION = 1

FINE_S = 3 * 3_600  # How long samples of 10 s are kept, seconds

KEPT_S = 7 * 86_400  # How long means of 5 min are kept, seconds

BUSY_S = 5.0  # How long one waits for another one's transaction, seconds

FLEET = 0  # Number of the fleet among the names

SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE samples (
    id INTEGER, step INTEGER, at INTEGER, value TEXT NOT NULL, PRIMARY KEY (id, step, at)
) WITHOUT ROWID;
CREATE TABLE alerts (id TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class RateHistory:
    """The history. Any thread may write and read.

    Args:
        folder: Is made if it is not there.

    Raises: OSError: it cannot be made. sqlite3.Error: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / "history.sqlite"
        self._lock = threading.Lock()
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            log.warning("history_begins_anew", path=str(self._path), why=str(error))
            self._remove()
            self._db = self._opened()
        self._ids = self._names()

    def _names(self) -> dict[str, int]:
        return {name: number for number, name in self._db.execute("SELECT id, name FROM names")}

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            database.close()
            raise sqlite3.DatabaseError(f"it is of version {version}")
        if not version:
            database.executescript(SCHEMA)
        return database

    def _remove(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have done so
                    self._db.execute("ROLLBACK")
                self._ids = self._names()
                raise

    def note(self, at: float, sample: FleetSample) -> None:
        """Keeps a sample; the first one behind a time of 5 min has that rolled up.

        Raises: sqlite3.Error: it cannot be written; nothing has changed.
        """
        slot = int(at) // EVERY_S * EVERY_S
        with self._writing():
            self._roll_up(slot)
            self._put(EVERY_S, slot, FLEET, sample.fleet)
            for name, values in sample.jobs.items():
                self._put(EVERY_S, slot, self._id(name), values)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            number = self._db.execute("INSERT INTO names (name) VALUES (?) RETURNING id", (name,)).fetchone()[0]
            self._ids[name] = number
        return self._ids[name]

    def _put(self, step_s: int, at: int, number: int, values: Sequence[float]) -> None:
        row = number, step_s, at, msgspec.json.encode(values).decode()
        self._db.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?)", row)

    def _roll_up(self, now: int) -> None:
        """Rolls up what is over, and drops what is too old."""
        last = self._db.execute("SELECT max(at) FROM samples WHERE id = 0 AND step = ?", (ROLLED_S,)).fetchone()[0]
        since, until = (last or 0) + ROLLED_S if last is not None else 0, now // ROLLED_S * ROLLED_S
        found = self._db.execute(
            "SELECT DISTINCT at / ? * ? FROM samples WHERE id = 0 AND step = ? AND at >= ? AND at < ?",
            (ROLLED_S, ROLLED_S, EVERY_S, since, until),
        ).fetchall()
        for (begin,) in found:
            self._roll_up_one(begin)
        if found:
            self._drop(now)

    def _roll_up_one(self, begin: int) -> None:
        wanted = "SELECT value FROM samples WHERE id = ? AND step = ? AND at >= ? AND at < ?"
        count = 0
        for number in (FLEET, *self._ids.values()):
            rows = self._db.execute(wanted, (number, EVERY_S, begin, begin + ROLLED_S)).fetchall()
            samples = [msgspec.json.decode(value, type=list[float]) for (value,) in rows]
            count = count or len(samples)
            if samples:
                self._put(ROLLED_S, begin, number, rolled(samples, count))

    def _drop(self, now: int) -> None:
        for step_s, kept_s in ((EVERY_S, FINE_S), (ROLLED_S, KEPT_S)):
            for number in (FLEET, *self._ids.values()):
                old = number, step_s, now - kept_s
                self._db.execute("DELETE FROM samples WHERE id = ? AND step = ? AND at < ?", old)
        self._db.execute("DELETE FROM names WHERE NOT EXISTS (SELECT 1 FROM samples WHERE samples.id = names.id)")
        self._ids = self._names()

    def series(self, names: Sequence[str], since: float, now: float, job: str = "") -> SeriesAnswer:
        """Series from a time on, of the fleet or of a job: samples of 10 s if they are still there, else of 5 min.

        Raises: sqlite3.Error: the file cannot be read.
        """
        step_s = EVERY_S if since >= now - FINE_S else ROLLED_S
        with contextlib.closing(sqlite3.connect(self._path, timeout=BUSY_S)) as database:
            rows = database.execute(
                "SELECT f.at, f.value, j.value FROM samples f LEFT JOIN samples j"
                " ON j.id = (SELECT id FROM names WHERE name = ?) AND j.step = f.step AND j.at = f.at"
                " WHERE f.id = 0 AND f.step = ? AND f.at >= ? ORDER BY f.at",
                (job, step_s, since),
            ).fetchall()
        decode = msgspec.json.Decoder(list[float]).decode
        read = ((float(at), decode(fleet), decode(own) if own else None) for at, fleet, own in rows)
        return joined(read, names, step_s, is_of_job=bool(job))

    # ------------------------------------------------------------------ alerts that are raised

    def alerts(self) -> dict[str, str]:
        """What was kept by `keep_alerts`."""
        return dict(self._db.execute("SELECT id, value FROM alerts").fetchall())

    def keep_alerts(self, alerts: dict[str, str]) -> None:
        """Keeps alerts by their ids, in place of those before.

        Raises: sqlite3.Error: they cannot be written.
        """
        with self._writing() as database:
            database.execute("DELETE FROM alerts")
            database.executemany("INSERT INTO alerts VALUES (?, ?)", alerts.items())
