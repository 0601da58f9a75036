"""`crawlog export`: the rows of a job so far, at any time, in any format; made by this command from crawl.items.

    crawl.control ─► the job, its epoch, its end            crawl.items ─► state in a folder beside FILE ─► FILE
                                                                             └ the job goes on: FILE.partial

No worker is needed. Rows are the newest ones of each URL, as in the file of `run -o`. Of a job with pipelines they are
those that a sink worker has kept in this data folder, once the job has ended; else the items as they were scraped.
"""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import control
from crawlog.schemas.control import Finished, JobCopy, Rewound
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams.cluster import LogIdentity, log_bounds, log_identity
from crawlog.streams.control import counting_epochs, read_control
from crawlog.streams.dead_letters import LetterChoice
from crawlog.streams.errors import EngineError, Misconfigured, RetryLater, UnknownName, Unusable
from crawlog.streams.fleet import DEFAULT_COPY, FleetState
from crawlog.streams.jobs import is_final, traits
from crawlog.streams.log import Topics, partition_count, read_partitions
from crawlog.streams.sink import (
    Entry,
    RowSource,
    SinkState,
    entry,
    pipeline_rows,
    places_of,
    sink_for,
    sink_of,
    write_file,
    write_rows,
)
from crawlog.streams.sink_groups import STDOUT, SinkSpec
from crawlog.streams.stores import Store, fill
from crawlog.streams.warc import PageArchiver
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
        as_scraped: Whether they are the items of a job with pipelines as they were scraped.
    """

    job: str
    output: str
    rows: int
    is_complete: bool
    state: str
    reason: str = ""
    dead: int = 0
    as_scraped: bool = False


class ExportedJob(msgspec.Struct):
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

    @property
    def ends(self) -> dict[int, int]:
        """The ends of crawl.items behind which it ended, by partition; empty while it goes on."""
        return dict(enumerate(self.end.items)) if self.end is not None else {}


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
    now = exported_job(settings, job, output)
    if now.spec.is_archive:
        return _export_pages(settings, now, say, follow=follow)
    with _room(now.spec.output if now.spec.is_file else tempfile.gettempdir()), _folder(now.spec) as folder:
        export = _Export(settings, now, folder, say)
        try:
            return export.run(left, follow=follow)
        finally:
            export.close()


ADD = "`crawlog outputs add JOB -o NAME` has one fill it"


def as_scraped(made: Exported) -> str:
    """A line for the user about the rows of a job with pipelines."""
    return (
        f"{made.output} has the items of {made.job} as they were scraped: no rows of its pipelines lie in this data"
        " folder. `crawlog submit -o NAME` writes what they give"
    )


def exported_job(settings: "Settings", job: str, output: str) -> ExportedJob:
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
    spec = sink_of(job, output, since, voids, settings=settings)
    is_open = view.state == "pending"  # crawl.control does not tell whether a page has come
    return ExportedJob(copy, spec, "running" if is_open else view.state, view.reason, state.end(copy))


def _export_pages(settings: "Settings", now: ExportedJob, say: Say, *, follow: bool) -> Exported:
    """Writes the WARC files of a job, which are whole whenever this ends: the next export goes on."""
    archiver, output = None, now.spec.output
    try:
        archiver = PageArchiver(settings, now.spec, now.copy.spec)
        with _room(output):
            archiver.fill()
            while follow and now.end is None:
                say(f"{now.copy.job} is {now.state}: {archiver.pages:,} pages so far")
                time.sleep(LOOK_S)
                now = exported_job(settings, now.copy.job, output)
                archiver.fill()
            archiver.finish()
        if archiver.note:
            say(archiver.note)
        is_complete = now.end is not None and is_final(now.state, now.reason)
        return Exported(now.spec.job, output, archiver.pages, is_complete, now.state, now.reason)
    except RetryLater as error:
        raise Misconfigured(f"{error}: name another folder with -o") from None
    finally:
        if archiver is not None:
            archiver.close()


class _Export:
    """One export under way: its state is a fold of crawl.items that only this command sees."""

    def __init__(self, settings: "Settings", now: ExportedJob, folder: Path, say: Say) -> None:
        self._settings = settings
        self._now = now
        self._say = say
        self._topic = Topics(settings.kafka.prefix).items
        self._own = msgspec.structs.replace(now.spec, output=str(folder / "rows.jsonl"))
        self._log = log_identity(settings, self._topic)
        self._state = _opened(folder, self._own, self._log)
        self._count = partition_count(settings)
        self._starts_at = places_of(now.copy.spec)
        self._opened = ExitStack()
        self._made: RowSource | None = None
        self._told_at = 0.0
        self._ended_at: float | None = None

    def close(self) -> None:
        self._opened.close()
        self._state.close()

    def run(self, left: Callable[[Exported], None], *, follow: bool) -> Exported:
        try:
            is_in = self._pipeline_rows() is not None or self._read()
            while not is_in and self._goes_on(follow=follow):
                self._tell()
                time.sleep(LOOK_S)
                self._look()
                is_in = self._pipeline_rows() is not None or self._read()
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
        now = exported_job(self._settings, self._now.copy.job, self._now.spec.output)
        if (now.spec.epoch, now.spec.voids) != (self._now.spec.epoch, self._now.spec.voids):
            self._own = msgspec.structs.replace(self._own, epoch=now.spec.epoch, voids=now.spec.voids)
            self._state.sink = self._own
            self._state.begin_again()
        self._now = now

    def _pipeline_rows(self) -> RowSource | None:
        """All rows that the pipelines of an ended job made, if they lie in this data folder."""
        now = self._now
        if self._made is None and now.copy.spec.pipelines and now.end is not None:
            rows = pipeline_rows(self._settings.run.data, now.spec, self._log, now.ends)
            self._made = self._opened.enter_context(rows)
        return self._made

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
        batch: list[tuple[int, int, Entry | None]] = []
        for record in read_partitions(self._settings, self._topic, ranges):
            batch.append((record.partition() or 0, record.offset() or 0, self._entry(record.key(), record.value())))
            if len(batch) >= BATCH:
                self._state.fold(batch)
                batch.clear()
                self._tell()
        self._state.fold([*batch, *((number, end - 1, None) for number, (_, end) in ranges.items() if end)])
        passed = self._state.meta.offsets
        return self._now.end is not None and all(passed.get(at, 0) >= end for at, end in self._now.ends.items())

    def _entry(self, key: bytes | None, value: bytes | None) -> Entry | None:
        """The rows of a record, as scraped; None for another job's. Garbage is left out: the sink buries it."""
        named, space, _ = (key or b"").partition(b" ")
        if space and named != self._own.job.encode():
            return None
        try:
            return entry(value, self._own, plain=True)
        except ValueError:
            return None

    def _tell(self) -> None:
        if time.monotonic() < self._told_at + NOTICE_AFTER_S:
            return
        self._told_at = time.monotonic()
        self._say(f"{self._now.copy.job} is {self._now.state}: {self._state.rows:,} rows so far")

    def _write(self, *, is_complete: bool) -> Exported:
        now, made = self._now, self._pipeline_rows()
        source = made or self._state
        output = self._write_to(source, is_complete=is_complete)
        as_scraped = now.copy.spec.pipelines and made is None
        return Exported(now.spec.job, output, source.rows, is_complete, now.state, now.reason, as_scraped=as_scraped)

    def _write_to(self, source: RowSource, *, is_complete: bool) -> str:
        """Writes the rows, a file whole or not at all; returns where they are."""
        spec = self._now.spec
        sink, partial = sink_for(spec), Path(f"{spec.output}.partial")
        if isinstance(sink, Store):
            if source is not self._state:
                raise Misconfigured(f"{sink.place}: a store takes the rows of pipelines from a sink worker only: {ADD}")
            fill(sink, self._state)
            return sink.place
        if not spec.is_file:
            with _room("standard output" if spec.output == STDOUT else spec.output):
                write_rows(source, sink, standard_output())
            return spec.output
        path = Path(spec.output) if is_complete else partial
        with _unheld(partial):
            write_file(source, sink, path)
            if is_complete:
                partial.unlink(missing_ok=True)
        return str(path)


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
    path, prefix, parent = Path(spec.output), "crawlog-export-", None
    if spec.is_file:
        prefix, parent = f".{path.name}.export-", path.parent
        with _unheld(Path(f"{path}.partial")):
            pass
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


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


def _opened(folder: Path, spec: SinkSpec, log: LogIdentity) -> SinkState:
    try:
        return SinkState(folder, spec, log)
    except (RetryLater, Unusable) as error:
        raise EngineError(f"the rows cannot be gathered in {folder}: {error}") from error
