"""Where the outputs of a job on a fleet lie. The record of a job holds plain names; this machine's settings the places.

    OutputSpec.name ─┬─ a file ──► <sink.folder>/<job>/<name>       in a folder of the job: two jobs may have `rows.csv`
                     └─ declared ► sink.outputs[NAME], as `-o` takes it; `{job}` in it becomes the job's name; `none` is
                                   built in: pipelines run, and no rows are written

Any client that can write to the log can write a record. So each name is checked again here, where the file is made: a
name with a slash, and a link that leads out of the folder, are refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.job_orders import PIPELINES_ALONE, OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams import files
from crawlog.streams.errors import Misconfigured, RefusedOutput
from crawlog.streams.sink_groups import STDOUT, RewoundRange, SinkSpec

from .registry import NOWHERE, is_file, sink_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def outputs_folder(settings: "Settings") -> Path:
    """The folder with a folder for each job."""
    return (settings.sink.folder or settings.run.data / "outputs").absolute()


def places_of(spec: JobSpec) -> Callable[[int, int, int], int]:
    """Gives the offset where the rows of a job begin, of (partition of crawl.items, its first offset, its end)."""

    def place(partition: int, first: int, end: int) -> int:
        noted = spec.items[partition] if partition < len(spec.items) else 0
        return noted if noted <= end else first  # the log was made again, or cut, since

    return place


def fleet_sink_of(
    settings: "Settings", job: str, output: OutputSpec, epoch: int, voids: tuple[RewoundRange, ...], *, pipelines: bool
) -> SinkSpec:
    """The sink of an output; makes the folder of the job.

    Raises: RefusedOutput: the name is not plain, or leads out of the folder. Misconfigured: it is not declared here, or
        of no format that is installed, or its place cannot be written.
    """
    place = _declared(settings, job, output) if output.declared else _file(settings, job, output)
    if place == STDOUT:
        raise Misconfigured(f"the declared output {output.name} is standard output, which a worker does not have")
    made = sink_of(job, place, epoch, voids, settings=settings, layout=output.layout)
    return msgspec.structs.replace(made, pipelines=pipelines, is_fleet=True, fill=output.fill)


def check_names(job: str, output: OutputSpec) -> None:
    """Refuses a job or an output whose name is not plain. Raises: RefusedOutput: the reason."""
    try:
        output.check()
        OutputSpec(job).check()
    except ValueError as error:
        raise RefusedOutput(str(error)) from None


def _declared(settings: "Settings", job: str, output: OutputSpec) -> str:
    check_names(job, output)
    place = settings.sink.outputs.get(output.name, NOWHERE if output.name == PIPELINES_ALONE.name else None)
    if place is None:
        known = ", ".join(sorted(settings.sink.outputs)) or "none"
        raise Misconfigured(f"no output {output.name} is declared here (sink.outputs); there are: {known}")
    return place.replace("{job}", job)


def _file(settings: "Settings", job: str, output: OutputSpec) -> str:
    check_names(job, output)
    base = outputs_folder(settings)
    path = base / job / output.name
    if not is_file(str(path), output.layout.format):
        raise RefusedOutput(f"{output.name!r} is no name of a file")
    try:
        if settings.sink.folder is None:
            files.own(base)
        base.mkdir(mode=0o777 & ~files.WRITES, parents=True, exist_ok=True)
        files.own(path.parent, files.WRITES)  # whoever else could write there could put links into it, later
        _refuse_links(base, path)
    except OSError as error:
        raise Misconfigured(f"cannot write {path}: {error.strerror}") from None
    return str(path)


def _refuse_links(base: Path, path: Path) -> None:
    """Raises: RefusedOutput: a link in the folder leads elsewhere."""
    real = base.resolve()
    names = (path.name, f"{path.name}.partial", f"{path.name}.new.partial")
    if path.parent.resolve() != real / path.parent.name or any((path.parent / name).is_symlink() for name in names):
        raise RefusedOutput(f"{path} is, or lies behind, a link")
