"""The end of a sink: its newest rows become FILE, whole or not at all, or go to standard output or a store.

No FILE is made while rows lack whose records crawl.items lost (`lacking`).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from crawlog.schemas import dead, items
from crawlog.streams import crash_points
from crawlog.streams.cluster import LogIdentity, log_bounds
from crawlog.streams.errors import CrawlError, SinkBehind
from crawlog.streams.log import Topics, partition_count, read_records, record_headers
from crawlog.streams.recovery import LostPage, newest_pages
from crawlog.streams.sink_groups import SinkSpec, known_sinks, ordered_again
from crawlog.streams.stores import Store
from crawlog.streams.url import fingerprint, hashed_to

from .formats import ResultRows, Sink, laid_out
from .made import PipelineRows, pieces
from .registry import failed, sink_for
from .state import SinkState
from .state_folder import final_of, has_pipelines, meta_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class RowSource(Protocol):
    """Rows of a job, to be written in any format."""

    @property
    def rows(self) -> int:
        """Their number."""

    def chunks(self) -> Iterator[bytes]:
        """The rows, JSON lines, in pieces that end with a row."""


def finalise(data: Path, spec: SinkSpec, ends: Mapping[int, int], out: BinaryIO, *, keeps: bool = False) -> int:
    """Let the sink's class write the newest rows. A FILE that is complete stays, unless a worker has gone on since.

    Args:
        ends: Offsets of crawl.items, by partition, up to which the state must have folded.
        out: Standard output.
        keeps: Whether the rows stay in FILE.partial, for other outputs that are to be written with them.

    Returns: The number of rows.

    Raises: SinkBehind: the state is behind `ends`. Unusable: it is damaged. RetryLater: a worker has it. OSError: the
        disk is full, `out` is closed. Misconfigured: the class is not installed, or has a bug.
    """
    final = final_of(spec.folder(data))
    if final is not None and is_complete(data, spec, ends) and not spec.partial(data).exists():
        return final.rows
    with _whole(data, spec, ends) as results:
        source = results.made or results
        if spec.is_store:
            return source.rows  # its feeder has written them
        sink = sink_for(spec)
        assert isinstance(sink, Sink)
        if spec.is_file:
            _make(results, source, sink, Path(spec.output), keeps=keeps)
        else:
            write_rows(source, sink, out)
        return source.rows


def nowhere() -> BinaryIO:
    """In place of standard output, which a worker does not have: a store writes to itself."""
    return open(os.devnull, "wb")  # noqa: PTH123  # the null device is no path of a user


def write_other(data: Path, spec: SinkSpec, other: SinkSpec, ends: Mapping[int, int]) -> int:
    """Let the class of another output, which has no state, write the newest rows of a sink.

    Args and Returns: as `finalise`, which must not have taken the rows yet. Raises: as it does.
    """
    with _whole(data, spec, ends) as results:
        sink, source = sink_for(other), results.made or results
        assert isinstance(sink, Sink)
        if other.is_file:
            path = Path(other.output)
            results.note_final(made := _written(source, sink, path), other)
            made.replace(path)
        else:
            with nowhere() as out:
                write_rows(source, sink, out)
        return source.rows


@contextmanager
def pipeline_rows(data: Path, job: SinkSpec, log: LogIdentity, ends: Mapping[int, int]) -> Iterator[RowSource | None]:
    """The rows that pipelines made of all items up to `ends`, for an output of the job with its state in this folder.

    They lie in FILE.partial, or in a FILE that has them as they were kept. None if there are none here, or a worker has
    them.

    Args:
        job: With the name of the job, its epoch and its voids.
        log: The crawl.items that they must be of.
    """
    with ExitStack() as opened:
        found = None
        for sink in known_sinks(data):
            if (sink.job, sink.epoch, sink.voids) == (job.job, job.epoch, job.voids) and has_pipelines(data, sink):
                with suppress(CrawlError, OSError):
                    found = found or _kept_rows(opened, data, sink, log, ends)
        yield found


def _kept_rows(
    opened: ExitStack, data: Path, sink: SinkSpec, log: LogIdentity, ends: Mapping[int, int]
) -> RowSource | None:
    if meta_of(data, sink).log != log or ordered_again(sink.folder(data)) is not None:
        return None
    if sink.partial(data).exists():  # a state is emptied when it is opened without its rows
        return opened.enter_context(_whole(data, sink, ends)).made
    final = final_of(sink.folder(data))
    is_there = final is not None and _is_as_kept(sink_for(sink)) and is_complete(data, sink, ends)
    return _FileRows(Path(sink.output), final.rows) if final is not None and is_there else None


class _FileRows:
    """The rows in a FILE of JSON lines."""

    def __init__(self, path: Path, rows: int) -> None:
        self.rows = rows
        self.path = path

    def chunks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from pieces(file.fileno(), 0, os.fstat(file.fileno()).st_size)


@contextmanager
def _whole(data: Path, spec: SinkSpec, ends: Mapping[int, int]) -> Iterator[SinkState]:
    """The state of a sink, with all rows up to `ends`. Raises: as `finalise`."""
    with SinkState(data, spec, None) as results:
        behind = {at: end for at, end in ends.items() if results.meta.offsets.get(at, 0) < end}
        if behind:
            raise SinkBehind(f"the sink has not passed {behind} yet, it is at {results.meta.offsets}")
        if results.made and not results.made.is_done:
            raise SinkBehind("the job's pipelines have not made all rows yet, or were not closed")
        yield results


def is_complete(data: Path, spec: SinkSpec, ends: Mapping[int, int], source: SinkSpec | None = None) -> bool:
    """Whether FILE is unchanged since it was made, and holds all up to `ends`; never for other outputs.

    Args:
        source: The sink with whose rows it was made; None for its own.
    """
    final = final_of((source or spec).folder(data), spec if source else None)
    if final is None or not spec.is_file or not final.is_at(Path(spec.output)):
        return False
    if ordered_again((source or spec).folder(data)) is not None:
        return False
    depends_on = ("layout", *sink_for(spec).depends_on)
    if any(getattr(final, name) != getattr(spec, name) for name in depends_on):
        return False
    return all(final.offsets.get(at, 0) >= end for at, end in ends.items())


def _make(results: SinkState, source: SinkState | PipelineRows, sink: Sink, path: Path, *, keeps: bool) -> None:
    if _is_as_kept(sink) and source.is_whole and not keeps:
        source.sync()
        _replace(results, source.path, path)
        return
    _replace(results, _written(source, sink, path), path)
    if not keeps:
        source.path.unlink()


def _is_as_kept(sink: Sink | Store) -> bool:
    """Whether FILE has the very bytes of the kept rows."""
    return sink.as_kept and sink.spec.layout.keeps_rows


def _written(source: RowSource, sink: Sink, path: Path) -> Path:
    """A new file beside FILE, with all rows."""
    made = path.with_name(f"{path.name}.new.partial")
    try:
        with made.open("wb") as file:
            write_rows(source, sink, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        made.unlink(missing_ok=True)  # half a file is of no use, and the disk may be full
        if not isinstance(error, OSError):
            raise
        then = "nothing is lost, and the same command makes it once it can be written"
        raise OSError(error.errno, f"{error.strerror}; {then}", str(path)) from error
    return made


def write_file(source: RowSource, sink: Sink, path: Path) -> None:
    """Let the sink's class make a file, whole or not at all. Raises: as `write_rows`; OSError: as on a full disk."""
    _written(source, sink, path).replace(path)


def write_rows(source: RowSource, sink: Sink, out: BinaryIO) -> None:
    """Let the sink's class write all rows. Raises: Misconfigured: it failed. Else as `chunks`, and its own OSError."""
    kept: Path | None = getattr(source, "path", None)  # of rows that lie in a file
    try:
        rows = ResultRows(source.chunks, kept.parent if kept is not None else None)
        sink.write(laid_out(rows, sink.spec.layout), out)
    except (CrawlError, OSError):
        raise
    except Exception as error:
        raise failed(type(sink), sink.spec.output, error) from error


def _replace(results: SinkState, made: Path, path: Path) -> None:
    results.note_final(made)
    crash_points.point("finish.noted")
    made.replace(path)
    crash_points.point("finish.renamed")


def lose(results: SinkState, gone: Mapping[int, range]) -> None:
    """Have a sink read on behind records that are gone, by partition, and note the gaps."""
    gaps = [(at, one.start, one.stop) for at, one in gone.items()]
    results.move({at: end for at, _, end in gaps}, [*results.meta.gaps, *gaps])


def lacking(settings: "Settings", results: SinkState) -> list[tuple[LostPage, bool]]:
    """The pages whose items were in the state's gaps, and of which it has nothing yet, by partition of crawl.pages.

    Each is told with whether its URL was asked again since. A page that is a dead letter has no items. Ask when parse
    and the sink have passed all: else pages on their way count, too.

    Raises: EngineError: the cluster does not answer. Unusable: the state is damaged.
    """
    if not results.meta.gaps:
        return []
    names, sink, count = Topics(settings.kafka.prefix), results.sink, partition_count(settings)
    lost = {partition for partition, _, _ in results.meta.gaps}

    def has_lost(one: LostPage) -> bool:
        if not sink.wants(one.job, one.epoch, (one.partition, one.page)):
            return False
        key = _key(one)
        return hashed_to(key, count) in lost and results.page_of(key[len(one.job) + 1 :]) < (one.partition, one.page)

    found = [one for number in range(count) for one in newest_pages(settings, names, number, has_lost)]
    buried = _buried(settings, names) if found else set()
    return [(one, is_asked) for one, is_asked in found if (one.partition, one.page) not in buried]


def _key(one: LostPage) -> bytes:
    """The key of its record in crawl.items. A GET with a callback has its URL's identity, and a record without one."""
    identity = one.result.id
    return items.key(one.job, one.result.url, 0 if identity == fingerprint(one.result.url) else identity)


def _buried(settings: "Settings", names: Topics) -> set[tuple[int, int]]:
    low, end = log_bounds(settings, names.dead, [0])[0]
    letters = (
        dead.from_headers(dead.by_name(record_headers(one)), None, None)
        for one in read_records(settings, names.dead, 0, low, end)
    )
    return {(one.partition, one.offset) for one in letters if one.topic == names.pages}
