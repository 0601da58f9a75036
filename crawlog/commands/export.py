"""`crawlog export`: the rows of a job so far, at any time, in any format; made by this command from crawl.items.

    crawl.control ─► the job, its epoch, its end            crawl.items ─► state in a folder beside FILE ─► FILE
                                                                             └ the job goes on: FILE.partial

No worker is needed. Rows are the newest ones of each URL, as in the file of `run -o`. Items of a job with pipelines are
exported as they were scraped.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec
import xxhash

from crawlog.schemas import control, items
from crawlog.schemas.control import Finished, JobCopy, Rewound
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams.cluster import log_bounds, log_identity
from crawlog.streams.control import counting_epochs, read_control
from crawlog.streams.dead_letters import LetterChoice
from crawlog.streams.errors import EngineError, Misconfigured, RetryLater, UnknownName, Unusable
from crawlog.streams.fleet import DEFAULT_COPY, FleetState
from crawlog.streams.jobs import is_final, traits
from crawlog.streams.log import Topics, partition_count, read_partitions
from crawlog.streams.sink import (
    Entry,
    SinkState,
    entry,
    lines,
    places_of,
    plain_row,
    sink_for,
    sink_of,
    write_rows,
)
from crawlog.streams.sink_groups import STDOUT, SinkSpec
from crawlog.terminal import rows as standard_output

from .dead import Dead

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

BATCH = 2_000  # Records folded at a time

LOOK_S = 1.0  # Time between two looks at a job that is followed, seconds

NOTICE_AFTER_S = 5.0  # Time between two lines about it, seconds

END_S = 15.0  # How long to wait for the note about the end of a job that has just ended, seconds

# In the text of an error, also of RocksDB's: nothing more can be written there.
FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))

Say = Callable[[str], None]


class Exported(msgspec.Struct):
    """What was written.

    Attributes:
        output: The file, `-`, or the address of a store.
        rows: Rows in it.
        is_complete: Whether the job has ended and all its rows are in it. If not, `output` names FILE.partial.
        state: Of the job: `running`, `finished` …
        reason: Why it is so, if there is more to say.
        dead: Open dead letters of a job whose rows are complete: what they would have given is not in it.
    """

    job: str
    output: str
    rows: int
    is_complete: bool
    state: str
    reason: str = ""
    dead: int = 0


class JobNow(msgspec.Struct):
    """A job, as crawl.control has it at one moment.

    Attributes:
        since, voids: Which item records are its rows.
        end: How it ended; None while it goes on.
    """

    copy: JobCopy
    spec: SinkSpec
    state: str
    reason: str
    end: Finished | None


def export_job(
    settings: "Settings",
    job: str,
    output: str,
    *,
    follow: bool = False,
    say: Say = lambda _: None,
    left: Callable[[Exported], None] = lambda _: None,
) -> Exported:
    """Writes the rows of a job so far: FILE if the job has ended and all is in, else FILE.partial.

    Args:
        output: As `-o` of `run`: a file, `-`, or the address of a store.
        follow: Whether to wait for the job's end. Ctrl-C, a SIGTERM or the job's deletion then leaves FILE.partial.
        say: Is told how the job goes on.
        left: Is told what was written so, before the signal or the error is raised.

    Raises: Misconfigured: no such job, or an output that cannot be written. EngineError: the log cannot be read, or the
        disk is full.
    """
    now = job_now(settings, job, output)
    with _room(now.spec.output if now.spec.is_file else tempfile.gettempdir()), _folder(now.spec) as folder:
        export = _Export(settings, now, folder, say)
        try:
            return export.run(left, follow=follow)
        finally:
            export.close()


def job_now(settings: "Settings", job: str, output: str) -> JobNow:
    """The job, and the sink that its rows are for.

    Raises: UnknownName: there is no such job. Misconfigured: the output cannot be written.
    """
    state = FleetState()
    state.control = read_control(settings, Topics(settings.kafka.prefix))
    if job == DEFAULT_JOB:
        state.hear(control.key(DEFAULT_COPY), DEFAULT_COPY)
    copy, view = state.copy(job), state.job(job)
    if copy is None or view is None:
        known = ", ".join(sorted(state.names())[:20]) or "none"
        raise UnknownName(f"there is no job {job} in the log; there are: {known}")
    since, voids = counting_epochs(state.control.of(Rewound), job, copy)
    spec = sink_of(job, output, since, voids, formulas=settings.results.csv_formulas)
    is_open = view.state == "pending"  # crawl.control does not tell whether a page has come
    return JobNow(copy, spec, "running" if is_open else view.state, view.reason, state.end(copy))


class _Read(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class _Export:
    """One export under way: its state is a fold of crawl.items that only this command sees."""

    def __init__(self, settings: "Settings", now: JobNow, folder: Path, say: Say) -> None:
        self._settings = settings
        self._now = now
        self._say = say
        self._topic = Topics(settings.kafka.prefix).items
        self._own = msgspec.structs.replace(now.spec, output=str(folder / "rows.jsonl"))
        self._state = _opened(folder, self._own, settings, self._topic)
        self._count = partition_count(settings)
        self._starts_at = places_of(now.copy.spec)
        self._told_at = 0.0
        self._ended_at: float | None = None

    def close(self) -> None:
        self._state.close()

    def run(self, left: Callable[[Exported], None], *, follow: bool) -> Exported:
        try:
            is_in = self._read()
            while not is_in and self._goes_on(follow=follow):
                self._tell()
                time.sleep(LOOK_S)
                self._look()
                is_in = self._read()
        except (KeyboardInterrupt, SystemExit, Misconfigured):
            # SystemExit is how SIGTERM and SIGHUP end a command; the job was deleted if it is Misconfigured
            if follow:
                left(self._write(is_complete=False))
            raise
        now = self._now
        made = self._write(is_complete=is_in and now.end is not None and is_final(now.state, now.reason))
        if made.is_complete:
            made.dead = len(Dead(self._settings).chosen(LetterChoice(job=made.job)))
        return made

    def _goes_on(self, *, follow: bool) -> bool:
        """Whether to wait for the job's end: at a limit its note comes when parse has caught up, else at once."""
        is_made = is_final(self._now.state, self._now.reason)
        if not traits(self._now.state).ended or (follow and is_made and self._now.end is None):
            self._ended_at = None
            return follow
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        return (follow or is_made) and now < self._ended_at + END_S

    def _look(self) -> None:
        """Reads the job again; if it began again meanwhile, so does its state."""
        now = job_now(self._settings, self._now.copy.job, self._now.spec.output)
        if (now.spec.epoch, now.spec.voids) != (self._now.spec.epoch, self._now.spec.voids):
            self._own = msgspec.structs.replace(self._own, epoch=now.spec.epoch, voids=now.spec.voids)
            self._state.sink = self._own
            self._state.begin_again()
        self._now = now

    def _read(self) -> bool:
        """Folds crawl.items up to its end; whether all rows of the job's end are in."""
        bounds = log_bounds(self._settings, self._topic, list(range(self._count)))
        at = self._state.meta.offsets
        behind = {number for number, offset in at.items() if number in bounds and offset > bounds[number][1]}
        if behind:
            raise EngineError(f"{self._topic} was cut while it was read (partitions {sorted(behind)}); run this again")
        ranges = {
            number: (max(first, at.get(number, self._starts_at(number, first, end))), end)
            for number, (first, end) in bounds.items()
        }
        batch: list[_Read] = []
        for record in read_partitions(self._settings, self._topic, ranges):
            batch.append(_Read(record.partition() or 0, record.offset() or 0, record.key(), record.value()))
            if len(batch) >= BATCH:
                self._fold(batch)
                self._tell()
        self._fold(batch)
        self._state.fold([(number, end - 1, None) for number, (_, end) in ranges.items() if end])
        end = self._now.end
        passed = self._state.meta.offsets
        return end is not None and all(passed.get(number, 0) >= until for number, until in enumerate(end.items))

    def _fold(self, batch: list[_Read]) -> None:
        self._state.fold([(one.partition, one.offset, self._entry(one)) for one in batch])
        batch.clear()

    def _entry(self, record: _Read) -> Entry | None:
        """The rows of a record, as scraped; None for another job's. Garbage is left out: the sink buries it."""
        named, space, _ = (record.key or b"").partition(b" ")
        if space and named != self._own.job.encode():
            return None
        try:
            found = entry(record.value, self._own, raw=True)
            if found is None or not (decoded := items.decode(record.value)).raw:
                return found and _unmarked(found, decoded.items)
            return _unmarked(found, [msgspec.Raw(plain_row(bytes(item))) for item in decoded.items])
        except ValueError:
            return None

    def _tell(self) -> None:
        if time.monotonic() < self._told_at + NOTICE_AFTER_S:
            return
        self._told_at = time.monotonic()
        self._say(f"{self._now.copy.job} is {self._now.state}: {self._state.rows:,} rows so far")

    def _write(self, *, is_complete: bool) -> Exported:
        spec, rows = self._now.spec, self._state.rows
        if spec.is_file:
            path = Path(spec.output if is_complete else f"{spec.output}.partial")
            self._write_file(path)
            if is_complete:
                _remove_partial(Path(f"{spec.output}.partial"))
            output = str(path)
        else:
            with _room("standard output" if spec.output == STDOUT else spec.output):
                self._pour(standard_output())
            output = spec.output
        return Exported(spec.job, output, rows, is_complete, self._now.state, self._now.reason)

    def _write_file(self, path: Path) -> None:
        """Makes the file, whole or not at all."""
        made = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            with made.open("wb") as file:
                self._pour(file)
                file.flush()
                os.fsync(file.fileno())
            with _unheld(Path(f"{self._now.spec.output}.partial")):
                made.replace(path)
        finally:
            made.unlink(missing_ok=True)

    def _pour(self, out: BinaryIO) -> None:
        write_rows(self._state, sink_for(self._now.spec), out)


@contextmanager
def _room(place: str) -> Iterator[None]:
    """Names what is written where the disk is full. Raises: EngineError: it is."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # RocksDB's have no class of their own
        if (full := next((words for words in FULL if words in str(error)), None)) is None:
            raise
        then = "Free some room there, and run the same command again: all rows are in the log."
        raise EngineError(f"{place}: {full}\n{then}") from error


@contextmanager
def _folder(spec: SinkSpec) -> Iterator[Path]:
    """A folder for the state, beside FILE: the disk that the rows go to. It is removed afterwards."""
    if not spec.is_file:
        with tempfile.TemporaryDirectory(prefix="crawlog-export-") as made:
            yield Path(made)
        return
    with _unheld(Path(f"{spec.output}.partial")):
        pass
    path = Path(spec.output)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.export-", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _unheld(partial: Path) -> Iterator[None]:
    """Refuses a FILE.partial that a sink's worker writes now.

    Raises: Misconfigured: it does.
    """
    try:
        file = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise Misconfigured(f"cannot write {partial}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Misconfigured(f"a crawl writes {partial} now: name another file with -o") from None
    finally:
        os.close(file)


def _remove_partial(partial: Path) -> None:
    with suppress(OSError):
        partial.unlink()


def _opened(folder: Path, spec: SinkSpec, settings: "Settings", topic: str) -> SinkState:
    try:
        return SinkState(folder, spec, log_identity(settings, topic))
    except (RetryLater, Unusable) as error:
        raise EngineError(f"the rows cannot be gathered in {folder}: {error}") from error


def _unmarked(found: Entry, rows: list[msgspec.Raw]) -> Entry:
    """The entry with rows instead of marked raw items."""
    block = lines(rows)
    return found._replace(block=block, digest=xxhash.xxh3_64_intdigest(block))
