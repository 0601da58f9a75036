"""Which class writes an output: registered by the suffix of a file's name, or by the scheme of an address.

The built-in classes stand in a table, all others in the entry point group `crawlog.sinks` of installed packages. The
table needs no package metadata: `-o x.jsonl` does not depend on other installed packages, and no plug-in replaces a
built-in format by accident.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.job_orders import NO_LAYOUT, FeedLayout
from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.printable import without_secrets
from crawlog.streams.sink_groups import ARCHIVE, STDOUT, RewoundRange, SinkSpec
from crawlog.streams.stores import KafkaTopic, MongoDB, MySql, Postgres, Redis, Sqlite, Store

from .formats import (
    PACKERS,
    Csv,
    DataSet,
    JsonArray,
    JsonLines,
    Nothing,
    Parquet,
    Sink,
    StandardOutput,
    WarcFolder,
    Xlsx,
    packed,
    remote,
)

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

GROUP = "crawlog.sinks"  # The entry point group; an entry point is named after a suffix with its dot, or a scheme

NOWHERE = "none:"  # The output of a job whose pipelines alone keep its items

_TEXTS: dict[str, type[Sink]] = {".jsonl": JsonLines, ".json": JsonArray, ".csv": Csv}

BUILT_IN: dict[str, type[Sink | Store]] = {
    **_TEXTS,
    **{f"{name}{packer}": packed(kind, packer) for name, kind in _TEXTS.items() for packer in PACKERS},
    ".xlsx": Xlsx,
    ".parquet": Parquet,
    STDOUT: StandardOutput,
    "none": Nothing,
    "/": DataSet,
    "kafka": KafkaTopic,
    "postgresql": Postgres,
    "postgres": Postgres,
    "warc": WarcFolder,
    "mysql": MySql,
    "mariadb": MySql,
    "sqlite": Sqlite,
    "mongodb": MongoDB,
    "mongodb+srv": MongoDB,
    "redis": Redis,
    "rediss": Redis,
}

_scheme = re.compile("([A-Za-z][A-Za-z0-9+.-]*):")


def sink_of(
    job: str,
    output: str,
    epoch: int = 0,
    voids: tuple[RewoundRange, ...] = (),
    *,
    settings: "Settings | None" = None,
    layout: FeedLayout = NO_LAYOUT,
) -> SinkSpec:
    """The sink of `-o OUTPUT`, checked before anything is crawled.

    Args:
        settings: Whose `results` say how rows are written; None for the defaults.

    Raises: Misconfigured: no such format or store, or no place where it can write.
    """
    kind, names_a_file = _found(output, layout.format)
    place = str(Path(output).absolute()) if names_a_file else output
    if issubclass(kind, WarcFolder):
        place = f"{ARCHIVE}{Path(output.removeprefix(ARCHIVE)).absolute()}"
    if is_store := issubclass(kind, Store):
        place = kind.absolute(output)
    spec = SinkSpec(job, place, epoch, voids, is_store=is_store, layout=layout)
    if settings is not None:
        results = settings.results
        spec = msgspec.structs.replace(spec, formulas=results.csv_formulas, on_gone=results.on_gone)
    sink_for(spec, checks=True)
    return spec


def sink_for(spec: SinkSpec, *, checks: bool = False) -> Sink | Store:
    """The object that writes. Raises: Misconfigured: its class is not installed, or does not accept the output.

    Args:
        checks: Whether a format looks at its place, too. `Store.check` looks at a store: a worker goes on without it.
    """
    kind = sink_class(spec.output, spec.layout.format)
    try:
        made = kind(spec)
        if checks and isinstance(made, Sink):
            made.check()
    except CrawlError:
        raise
    except Exception as error:
        raise failed(kind, spec.output, error) from error
    return made


def sink_class(output: str, suffix: str = "") -> type[Sink | Store]:
    """The class that writes an output. Raises: Misconfigured: none is installed, or it cannot be loaded.

    Args:
        suffix: That of the format, where it is not that of the output.
    """
    return _found(output, suffix)[0]


def is_file(output: str, suffix: str = "") -> bool:
    """Whether an output is a file, not standard output or a store. Raises: Misconfigured: as `sink_class`."""
    return _found(output, suffix)[1]


def failed(kind: type[Sink | Store], output: str, error: Exception) -> Misconfigured:
    """What the user is told of an error in a sink's own code."""
    return Misconfigured(
        f"{output}: its sink, {kind.__module__}:{kind.__qualname__}, failed: {type(error).__name__}: {error}\n"
        "The rows do not fit it, or it has a bug. Nothing is lost: all rows are in the log. Update its package and run "
        "the same command again, or name another output (-o FILE.jsonl)."
    )


def _found(output: str, suffix: str = "") -> tuple[type[Sink | Store], bool]:
    """The class, and whether the output is a file."""
    for name, names_a_file in _names(output, suffix):
        kind = BUILT_IN.get(name)
        registered = [] if kind else [one for one in entry_points(group=GROUP) if one.name.lower() == name]
        if kind := kind or (_loaded(name, registered, output) if registered else None):
            is_at_address = name.startswith(".") and not names_a_file
            return (remote(kind) if is_at_address and issubclass(kind, Sink) else kind), names_a_file
    raise Misconfigured(_unknown(output))


def _names(output: str, suffix: str) -> Iterator[tuple[str, bool]]:
    """The names that a class for this output may be registered by, the longest suffix first, and whether of a file.

    A suffix at an address is that of a file elsewhere; an address that ends in a slash has none.
    """
    if output == STDOUT:
        yield STDOUT, False
        return
    if scheme := _scheme.match(output):
        yield scheme[1].lower(), False
    if "://" in output and output.endswith("/"):
        yield "/", False
    suffixes = [suffix] if suffix else Path(output).suffixes if not output.endswith("/") else []
    yield from (("".join(suffixes[at:]).lower(), "://" not in output) for at in range(len(suffixes)))


def _unknown(output: str) -> str:
    plugins = sorted({one.name.lower() for one in entry_points(group=GROUP)} - BUILT_IN.keys())
    more = "for others install a package that has such a sink; docs/extending.md shows how to write one"
    texts = f"{', '.join(_TEXTS)} (each also {' or '.join(PACKERS)})"
    suffixes = ", ".join([texts, ".xlsx", ".parquet", *(name for name in plugins if name.startswith("."))])
    if "://" in output:
        schemes = ", ".join(name for name in (*BUILT_IN, *plugins) if name.isalnum()) or "none"
        return (
            f"-o {without_secrets(output)}: there is no such store (there are: {schemes}), and a file at an address"
            f" ends in {suffixes}; {more}"
        )
    return f"-o {output}: the name must end in {suffixes}, or be - for standard output; {more}"


def _loaded(name: str, registered: Sequence[EntryPoint], output: str) -> type[Sink | Store]:
    packages = [one.dist.name if one.dist else "?" for one in registered]
    if len(registered) > 1:
        raise Misconfigured(
            f"-o {output}: several packages have a sink for {name}: {', '.join(packages)}."
            f" Keep one: `pip uninstall {packages[-1]}`"
        )
    (entry,), (package,) = registered, packages
    where = f"-o {output}: the sink for {name}, {entry.value} of the package {package},"
    try:
        kind = entry.load()
    except Exception as error:
        raise Misconfigured(
            f"{where} cannot be loaded: {type(error).__name__}: {error}\n"
            "The package is broken, or something that it needs is missing:"
            f" `pip install --upgrade --force-reinstall {package}` installs both again"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, (Sink, Store))) or inspect.isabstract(kind):
        raise Misconfigured(
            f"{where} is not a class derived from crawlog.Sink with a method `write`, or from crawlog.Store. Its author"
            f" must correct it; `pip uninstall {package}` removes it"
        )
    return kind
