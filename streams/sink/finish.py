"""The end of a sink: its newest rows become FILE, whole or not at all, or go to standard output or a store."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from crawlog.streams import crash_points
from crawlog.streams.errors import CrawlError, SinkBehind
from crawlog.streams.log import SinkSpec

from .base import ResultRows, Sink
from .made import MadeRows
from .registry import failed, sink_class, sink_for
from .state import SinkState, final_of


def finalise(data: Path, spec: SinkSpec, ends: Mapping[int, int], out: BinaryIO) -> int:
    """Let the sink's class write the newest rows. A FILE that is complete stays, unless a worker has gone on since.

    Args:
        ends: Offsets of crawl.items, by partition, up to which the state must have folded.
        out: Standard output.

    Returns: The number of rows.

    Raises: SinkBehind: the state is behind `ends`. Unusable: it is damaged. RetryLater: a worker has it. OSError: the
        disk is full, `out` is closed. Misconfigured: the class is not installed, or has a bug.
    """
    final = final_of(spec.folder(data))
    if final is not None and is_complete(data, spec, ends) and not spec.partial(data).exists():
        return final.rows
    with SinkState(data, spec, None) as results:
        behind = {at: end for at, end in ends.items() if results.meta.offsets.get(at, 0) < end}
        if behind:
            raise SinkBehind(f"the sink has not passed {behind} yet, it is at {results.meta.offsets}")
        if results.made and not results.made.is_done:
            raise SinkBehind("the job's pipelines have not made all rows yet, or were not closed")
        sink, source = sink_for(spec), results.made or results
        if spec.is_file:
            _make(results, source, sink, Path(spec.output))
        else:
            write_rows(source, sink, out)
        return source.rows


def is_complete(data: Path, spec: SinkSpec, ends: Mapping[int, int]) -> bool:
    """Whether FILE is unchanged since it was made, and holds all up to `ends`; never for other outputs."""
    final = final_of(spec.folder(data))
    if final is None or not spec.is_file or not final.is_at(Path(spec.output)):
        return False
    if any(getattr(final, name) != getattr(spec, name) for name in sink_class(spec.output).depends_on):
        return False
    return all(final.offsets.get(at, 0) >= end for at, end in ends.items())


def _make(results: SinkState, source: SinkState | MadeRows, sink: Sink, path: Path) -> None:
    if sink.as_kept and source.is_whole:
        source.sync()
        _replace(results, source.path, path)
        return
    made = path.with_name(f"{path.name}.new.partial")
    try:
        with made.open("wb") as file:
            write_rows(source, sink, file)
            file.flush()
            os.fsync(file.fileno())
    except CrawlError:
        made.unlink(missing_ok=True)
        raise
    except OSError as error:
        made.unlink(missing_ok=True)  # half a file is of no use, and the disk may be full
        then = "nothing is lost, and the same command makes it once it can be written"
        raise OSError(error.errno, f"{error.strerror}; {then}", str(path)) from error
    _replace(results, made, path)
    source.path.unlink()


def write_rows(source: SinkState | MadeRows, sink: Sink, out: BinaryIO) -> None:
    """Let the sink's class write all rows. Raises: Misconfigured: it failed. Else as `chunks`, and its own OSError."""
    try:
        sink.write(ResultRows(source.chunks), out)
    except (CrawlError, OSError):
        raise
    except Exception as error:
        raise failed(type(sink), sink.spec.output, error) from error


def _replace(results: SinkState, made: Path, path: Path) -> None:
    results.note_final(made)
    crash_points.point("finish.noted")
    made.replace(path)
    crash_points.point("finish.renamed")
