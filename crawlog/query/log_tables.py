"""What a query reads of the log: the files of each table, the jobs whose records count, what rewinds cancelled.

While the local engine does not run, its log cannot grow. So `tables.json` keeps all this with the sizes and times of
Kafka's files: if they are the same, a query needs no Kafka.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from crawlog.commands.job_logs import unknown_job
from crawlog.schemas.control import JobCopy, Rewound
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams import engine, files
from crawlog.streams.control import counting_epochs, read_control
from crawlog.streams.fleet import FleetState
from crawlog.streams.log import Topics, partition_count
from crawlog.streams.sink_groups import STDOUT, SinkSpec

from .folded_urls import queues
from .kept_table import VERSION, Say, extended, locked, remove_left, write_file
from .pipeline_tables import made_rows
from .tables import AGAIN, QUEUES, jobs_table, place, sources

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.streams.settings import Settings

TABLES = "tables.json"


class CountingJob(msgspec.Struct, frozen=True):
    """A job, and which of its records count.

    Attributes:
        since: Its first epoch that counts.
        voids: Ranges of places in crawl.pages that rewinds cancelled, and the epoch that each began.
        is_raw: Whether its items pass pipelines before they are rows.
    """

    name: str
    since: int
    voids: list[tuple[int, int, int]]
    is_raw: bool


class LogTables(msgspec.Struct):
    """What was read.

    Attributes:
        kafka: Size and time of each file of the local engine's log before it was read; empty on a cluster.
        tables: By name, the files below the query's folder, each with the job whose rows it has, or an empty name.
        skipped: As in `Queues`.
    """

    kafka: dict[str, list[int]]
    jobs: list[CountingJob]
    version: int = VERSION
    tables: dict[str, list[tuple[str, str]]] = {}
    skipped: list[tuple[int, int, int]] = []

    def check(self, job: str) -> None:
        """Raises: UnknownName: there is no such job."""
        if job and all(one.name != job for one in self.jobs):
            raise unknown_job(job)

    def only(self, names: Collection[str]) -> "LogTables":
        """The same with some of its tables."""
        wanted = {*names, *(f"{name}{AGAIN}" for name in names), *((QUEUES,) if "urls" in names else ())}
        return msgspec.structs.replace(self, tables={name: self.tables[name] for name in self.tables if name in wanted})


def folder_of(settings: "Settings") -> "Path":
    return settings.run.data / "query"


def unchanged(settings: "Settings", names: Collection[str]) -> LogTables | None:
    """What an earlier query read, if the local log has not changed since; None if it may have, or lacks a table."""
    if settings.kafka.bootstrap or engine.is_up(settings.run.data):
        return None
    with suppress(OSError, ValueError):
        known = _known(settings)
        paths = [folder_of(settings) / path for found in known.tables.values() for path, _ in found]
        if known.kafka == _kafka_files(settings) and known.version == VERSION:
            has_all = set(names) <= known.tables.keys() and all(path.exists() for path in paths)
            return known.only(names) if has_all else None
    return None


def read_log(settings: "Settings", names: Collection[str], job: str, say: Say) -> LogTables:
    """Extends tables from the log.

    Args:
        settings: With the address of a running log.
        job: One that there must be; empty for any.

    Raises: UnknownName: there is no such job. EngineError: the log cannot be read.
    """
    topics, folder = Topics(settings.kafka.prefix), folder_of(settings)
    now = LogTables(_kafka_files(settings), [])
    partitions = partition_count(settings)
    state = FleetState()
    state.control = read_control(settings, topics)
    now.jobs = [one for one, _, _ in _jobs(state)]
    now.check(job)
    kept = sources(topics, partitions)
    for name in names:
        if name == "jobs":
            now.tables[name] = [(_jobs_file(settings), "")]
            continue
        found = extended(settings, folder / kept[name].topic, kept[name], say)
        now.tables[name] = [(f"{kept[name].topic}/{one.name}", one.job) for one in found.files]
        if name in ("rows", "urls"):
            now.tables[f"{name}{AGAIN}"] = [(f"{kept[name].topic}/{found.again}", "")] if found.again else []
        if name == "rows":
            _take_made(settings, topics, state, now)
        if name == "urls":
            of_queues = queues(settings, folder / f"{topics.urls}.{QUEUES}", partitions)
            now.tables[QUEUES] = [(f"{topics.urls}.{QUEUES}/{one}", "") for one in of_queues.files]
            now.skipped = of_queues.skipped
    with suppress(OSError, ValueError):
        known = _known(settings)
        if (known.kafka, known.version) == (now.kafka, VERSION):
            now.tables = known.tables | now.tables
            now.skipped = now.skipped if "urls" in names else known.skipped
            now.jobs = now.jobs if "rows" in names else known.jobs  # they tell of which rows pipelines made
    if now.kafka:
        files.own(folder)
        files.write(folder / TABLES, msgspec.json.encode(now))
    return now.only(names)


def _known(settings: "Settings") -> LogTables:
    return msgspec.json.decode((folder_of(settings) / TABLES).read_bytes(), type=LogTables)


def _kafka_files(settings: "Settings") -> dict[str, list[int]]:
    found = engine.record_files(settings.run.data)
    return {name: stat for name, stat in found.items() if name.startswith(settings.kafka.prefix)}


def _jobs(state: FleetState) -> Iterator[tuple[CountingJob, SinkSpec, JobCopy | None]]:
    """All jobs, that of bare records too, without the deleted ones."""
    copies: dict[str, JobCopy | None] = {DEFAULT_JOB: None}
    copies |= {one.job: one for one in state.control.of(JobCopy) if one.spec.state != "deleted"}
    for name, copy in copies.items():
        since, voids = counting_epochs(state.control.of(Rewound), name, copy)
        cancelled = [(place(one.partition, one.page), place(one.partition + 1, 0), one.epoch) for one in voids]
        job = CountingJob(name, since, cancelled, copy is not None and copy.spec.pipelines)
        yield job, SinkSpec(name, STDOUT, since, voids), copy


def _take_made(settings: "Settings", topics: Topics, state: FleetState, now: LogTables) -> None:
    """Puts the rows that pipelines made in the place of the items as scraped, where they lie here."""
    ended = {}
    for job, spec, copy in _jobs(state):
        if job.is_raw and copy is not None and (end := state.end(copy)) is not None:
            ended[job.name] = spec, end
    folder = f"{topics.items}.made"
    made = made_rows(settings, folder_of(settings) / folder, topics.items, ended)
    now.jobs = [msgspec.structs.replace(one, is_raw=one.is_raw and one.name not in made) for one in now.jobs]
    now.tables["rows"] = [(path, job) for path, job in now.tables["rows"] if job not in made]
    now.tables["rows"] += [(f"{folder}/{name}", job) for job, names in made.items() for name in names]


def _jobs_file(settings: "Settings") -> str:
    from crawlog.jobs.changes import list_jobs  # takes half a second to import

    folder = folder_of(settings) / "jobs"
    with locked(folder):
        made = write_file(folder, jobs_table(list_jobs(settings)))
        remove_left(folder, [made.name])
    return f"jobs/{made.name}"
