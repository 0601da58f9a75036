"""Jobs in the log: a record in every partition of crawl.urls; its copy, joins and end in crawl.control.

Order of writes: every partition of crawl.urls → acknowledged → crawl.control → acknowledged → the first seed. So a job
in crawl.control is known to every partition. A command that was killed in between writes the record again. Scope
names beyond `sower.MAX_NAMES` have their own records, before the seeds: each name in the partition of its domain only.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import msgspec

from crawlog.schemas import control, urls
from crawlog.schemas.control import NO_EPOCH, Command, Control, Finished, JobCopy, Join, Rewound, StartEnded
from crawlog.schemas.urls import MAX_BATCH_NAMES, JobSpec, RequestRules, Setting, UrlsRecord
from crawlog.streams import crash_points
from crawlog.streams.errors import EngineError
from crawlog.streams.frontier import Commands
from crawlog.streams.http import RequestPolicy, WorkerLimits, within
from crawlog.streams.url import Places

from .client import log_bounds
from .provision import partition_count
from .read import check_readable, read_records

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .producer import Producer
    from .topics import Topics

JOINS = b"join/"
"""Prefix of the keys of joins in crawl.control."""

ACKNOWLEDGED_S = 60.0
"""Timeout of the acknowledgements of a job's records, seconds."""


class JobSpider(NamedTuple):
    """The fields of a job's record about its spider; by default the default spider's."""

    path: str = ""
    args: tuple[tuple[str, str], ...] = ()
    scrapy: tuple[tuple[str, str], ...] = ()
    starts: bool = False
    pipelines: bool = False

    @classmethod
    def of(cls, spec: JobSpec) -> "JobSpider":
        """Those of a job's record."""
        return cls(spec.spider, spec.args, spec.scrapy, spec.starts, spec.pipelines)


NO_SPIDER = JobSpider()
"""The default spider."""


def resolve_spec(
    settings: "Settings",
    spider: JobSpider = NO_SPIDER,
    names: Iterable[str] = (),
    requests: RequestRules | None = None,
) -> JobSpec:
    """The record of a new job. It holds every setting that decides about its URLs; the workers' own do not matter.

    Args:
        names: Scope names of the seeds; see `scope_name`.
        requests: The rules of its requests; None for `request_rules`.
    """
    groups: dict[str, Any] = {name: rules(**_values_of(settings, name, rules)) for name, rules in _groups().items()}
    if settings.scope.kind != "any":
        groups["scope"] = msgspec.structs.replace(groups["scope"], names=tuple(sorted(set(names))))
    return JobSpec(
        spider=spider.path,
        args=spider.args,
        scrapy=spider.scrapy,
        starts=spider.starts,
        pipelines=spider.pipelines,
        requests=requests or request_rules(settings),
        **groups,
        **_values(settings, setting_of(JobSpec)),
    )


@cache
def setting_of(record: type[msgspec.Struct]) -> dict[str, Setting]:
    """The setting of each field of a job's record, from the annotations of the record."""
    fields = get_type_hints(record, include_extras=True).items()
    return {
        field: mark for field, hint in fields for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Setting)
    }


@cache
def _groups() -> dict[str, type[msgspec.Struct]]:
    """The groups of rules in a job's record; a group's fields are the settings of the section of the same name."""
    hints = get_type_hints(JobSpec).items()
    return {field: hint for field, hint in hints if isinstance(hint, type) and issubclass(hint, msgspec.Struct)}


@cache
def unresolved_fields() -> tuple[str, ...]:
    """The fields of a job's record that neither a setting nor its spider decides: `resolve_spec` leaves them unset."""
    resolved = {"spider", *JobSpider._fields, "requests", *_groups(), *setting_of(JobSpec)}
    return tuple(field for field in JobSpec.__struct_fields__ if field not in resolved)


def _values_of(settings: "Settings", section: str, rules: type[msgspec.Struct]) -> dict[str, Any]:
    given = getattr(settings, section)
    return {field: getattr(given, field) for field in rules.__struct_fields__ if (section, field) != ("scope", "names")}


def request_rules(settings: "Settings") -> RequestRules:
    """The rules of requests that these settings give a job."""
    return RequestRules(**_values(settings, setting_of(RequestRules)))


def said_rules(settings: "Settings") -> RequestRules:
    """Like `request_rules`, only for settings that a flag, the environment or a file gives; other fields are unset."""
    given = _given(settings)
    said = {field: setting for field, setting in setting_of(RequestRules).items() if setting.key in given}
    return RequestRules(**_values(settings, said))


def own_manner(settings: "Settings") -> RequestPolicy:
    """A worker's own request policy, for the fields that a job's record leaves unset."""
    return within(request_rules(settings), settings.robots.token, limits_of(settings))


def limits_of(settings: "Settings") -> WorkerLimits:
    """A worker's limits, `limits.*` and `network.*`; no job's record can exceed them."""
    limits, network = settings.limits, settings.network
    return WorkerLimits(
        delay_s=limits.delay_s,
        per_host=limits.per_host,
        robots=limits.robots,
        attempts=limits.attempts,
        timeout_s=limits.timeout_s,
        max_body_bytes=min(settings.body_room, limits.max_body_bytes or settings.body_room),
        allow_private=network.allow_private,
        verify_tls=network.verify_tls,
        min_tls=network.min_tls,
        tls=network.tls,
        has_proxies=bool(settings.fetch.proxies),
    )


def job_keys() -> set[str]:
    """The keys of the settings that a job has: its record holds them, and workers of any settings obey them."""
    from crawlog.streams.settings import Settings

    return {*_settings_of(resolve_spec(Settings())), "scope.kind"} - {"scope.names"}


def _given(settings: "Settings") -> set[str]:
    """The keys of the settings that a flag, the environment or a file gives."""
    return {f"{name}.{field}" for name, section in settings for field in section.model_fields_set}


def _values(settings: "Settings", fields: Mapping[str, Setting]) -> dict[str, Any]:
    """The values of fields of a record, from their settings."""
    values = {}
    for field, setting in fields.items():
        section, _, name = setting.key.partition(".")
        value = getattr(getattr(settings, section), name)
        if setting.true_if:
            value = value == setting.true_if
        values[field] = bool(value) if setting.is_secret else value
    return values


def kept_settings(job: str, spec: JobSpec, settings: "Settings", requests: RequestRules | None = None) -> str:
    """A note for the user: which settings of the command have no effect, since the job has other ones. Empty for none.

    Args:
        spec: The job's record in the log.
        requests: The rules that a command without workers gives. None for a command with workers: their settings decide
            where the job's record sets none.
    """
    wanted = _settings_of(resolve_spec(settings, JobSpider.of(spec), spec.scope.names, requests))
    own = _settings_of(spec)
    compared = _given(settings) & (wanted.keys() if requests else own.keys())
    others = sorted(key for key in compared if key not in own or own[key] != wanted[key])
    if not others:
        return ""
    for_life = {setting.key for setting in setting_of(JobSpec).values() if setting.is_fixed}
    fixed = [key for key in others if key in for_life]
    hint = f"`crawlog run URL… --job {job}` changes them, given with all the job's settings"
    if fixed:
        hint = f"{', '.join(fixed)} cannot change" + (f"; {hint} (the others)" if len(fixed) < len(others) else "")
    return f"job {job} is there already and keeps its own {', '.join(others)}: {hint}"


def _settings_of(spec: JobSpec) -> dict[str, object]:
    """The values in a job's record, by the keys of their settings."""
    fields: dict[str, object] = {}
    for name in spec.__struct_fields__:
        value = getattr(spec, name)
        if isinstance(value, RequestRules):
            said = {setting.key: getattr(value, inner) for inner, setting in setting_of(RequestRules).items()}
            fields |= {key: value for key, value in said.items() if value is not None}
        elif isinstance(value, msgspec.Struct):
            fields |= {f"{name}.{inner}": getattr(value, inner) for inner in value.__struct_fields__}
        elif setting := setting_of(JobSpec).get(name):
            fields[setting.key] = value
    return fields


def write_job(
    settings: "Settings",
    producer: "Producer",
    topics: "Topics",
    job: str,
    spec: JobSpec,
    epoch: int = 0,
    after: int = NO_EPOCH,
) -> JobCopy:
    """Write a job record, new or changed, to every partition, then its copy; wait for the acknowledgements.

    Args:
        after: As in the copy that there is; of a new job, the epoch of the deleted one.

    Raises: EngineError: not acknowledged in time. DamagedLog: as the log cannot be read.
    """
    copy = JobCopy(job, spec, epoch, after=after)
    record = urls.encode(UrlsRecord(job=job, epoch=epoch, spec=spec))
    for partition in range(partition_count(settings)):
        crash_points.point("job.sending")
        producer.send(topics.urls, record, partition=partition)
    try:
        acknowledged(producer, f"the record of job {job}")
    except EngineError:  # a broker that cannot read the first batch of a file appends none to it
        check_readable(settings, topics.urls, dict.fromkeys(range(partition_count(settings)), 0))
        raise
    crash_points.point("job.acknowledged")
    write_control(producer, topics, [copy])
    crash_points.point("job.copied")
    return copy


def write_joins(
    producer: "Producer", topics: "Topics", job: str, names: Iterable[str], within_s: float = ACKNOWLEDGED_S
) -> None:
    """Tell parse about scope names that join a job: names of new seeds, or of a host that a seed led to."""
    joins = (Join(job, name, tuple(more)) for name, *more in _batched(sorted(set(names))))
    write_control(producer, topics, joins, within_s)


def write_names(
    producer: "Producer",
    topics: "Topics",
    copy: JobCopy,
    names: Iterable[str],
    count: int,
    within_s: float = ACKNOWLEDGED_S,
) -> None:
    """Add scope names to a job, each in the partition of its domain; wait for the acknowledgements.

    Args:
        names: Of the job's kind of scope; see `scope_name`.
        count: Partitions of crawl.urls.

    Raises: EngineError: not acknowledged in time.
    """
    by_partition: dict[int, list[str]] = {}
    place = Places(count).of
    for name in sorted(names):
        by_partition.setdefault(place(f"http://{name}/").partition, []).append(name)
    for partition, own in by_partition.items():
        for batch in _batched(own):
            record = UrlsRecord(job=copy.job, epoch=copy.epoch, joins=tuple(batch))
            producer.send(topics.urls, urls.encode(record), partition=partition)
    acknowledged(producer, f"the scope names of job {copy.job}", within_s)


def _batched(names: list[str]) -> Iterator[list[str]]:
    """Batches of names, each for one record."""
    return (names[at : at + MAX_BATCH_NAMES] for at in range(0, len(names), MAX_BATCH_NAMES))


def write_finished(producer: "Producer", topics: "Topics", record: Finished) -> None:
    """Write that a job has ended, and the log's ends at that time."""
    write_control(producer, topics, [record])


def write_command(producer: "Producer", topics: "Topics", command: Command, within_s: float = ACKNOWLEDGED_S) -> None:
    """Write a command. Every worker obeys it until the next command for the same target."""
    write_control(producer, topics, [command.check()], within_s)


def forget_failed_start(producer: "Producer", topics: "Topics", said: Mapping[bytes, Control], copy: JobCopy) -> bool:
    """Replace the note that the `start` of a job ended with an error: a process of the fleet begins it again.

    No tombstone: followers of crawl.control would keep what they heard.

    Args:
        said: The content of crawl.control.

    Returns: Whether there was one.
    """
    note = said.get(f"start/{copy.job}".encode())
    has_failed = isinstance(note, StartEnded) and note.epoch == copy.epoch and bool(note.error) and copy.spec.starts
    if has_failed:
        write_control(producer, topics, [StartEnded(copy.job, time.time(), NO_EPOCH)])
    return has_failed


def end_closing(producer: "Producer", topics: "Topics", said: Mapping[bytes, Control], job: str) -> bool:
    """End the stop with which a spider closed a job that begins again. A command of the operator stays in force.

    Args:
        said: The content of crawl.control.

    Returns: Whether there was one.
    """
    command = said.get(f"command/job/{job}".encode())
    is_closed = isinstance(command, Command) and bool(command.reason)
    if is_closed:
        write_command(producer, topics, Command("resume", job=job))
    return is_closed


def commands_in_force(settings: "Settings", topics: "Topics") -> Commands:
    """The newest command for each target."""
    return Commands(entry for entry in control_entries(settings, topics).values() if isinstance(entry, Command))


def control_entries(
    settings: "Settings", topics: "Topics", *, joins: bool = False, times: "JobTimes | None" = None
) -> dict[bytes, Control]:
    """The present content of crawl.control: the newest record of each key.

    Args:
        joins: Whether to include joins; there may be a million.
        times: Takes all records.
    """
    start, end = log_bounds(settings, topics.control, [0])[0]
    said: dict[bytes, Control] = {}
    for record in read_records(settings, topics.control, 0, start, end):
        key = record.key() or b""
        if not joins and key.startswith(JOINS):
            continue
        said.pop(key, None)  # a tombstone removes the key; a newer record moves it to the end
        try:
            entry = control.decode(key, record.value())
        except ValueError:
            continue  # another client wrote it; the live reader of crawl.control sends it to crawl.dead
        if entry is not None:
            said[key] = entry
            if times is not None:
                times.take(entry, record.timestamp()[1] / 1000)
    return said


def known_job(settings: "Settings", topics: "Topics", job: str) -> JobCopy | None:
    """The newest copy of a job's record; None when there is no such job."""
    entry = control_entries(settings, topics).get(f"job/{job}".encode())
    return entry if isinstance(entry, JobCopy) else None


def job_end(said: Mapping[bytes, Control], job: str) -> Finished | None:
    """The end of a job; None while it runs, or when it goes on in a later epoch or revision."""
    copy, end = said.get(f"job/{job}".encode()), said.get(f"finished/{job}".encode())
    if not isinstance(end, Finished) or (isinstance(copy, JobCopy) and not is_end_of(end, copy)):
        return None
    return end


class JobTimes:
    """When the present epoch of each job began, by the broker's time of its earliest record in crawl.control.

    Compaction may leave a later record. The note of `--fresh` stays; it is written before the job's first URL.
    """

    def __init__(self) -> None:
        self._began: dict[str, tuple[int, float]] = {}

    def take(self, record: Control, at: float) -> None:
        """Takes the next record of crawl.control; `at` is its time in the log, UTC epoch seconds."""
        if isinstance(record, JobCopy | Rewound) and record.epoch > self._began.get(record.job, (-1, 0.0))[0]:
            self._began[record.job] = record.epoch, at

    def since(self, copy: JobCopy) -> float:
        """The time from which on what names a job is its own, UTC epoch seconds.

        What is older than the submission is of a deleted job of the name, or of the job before `--fresh`. The clock of
        the submission may be ahead of the broker's. In a first epoch there is nothing to tell apart.
        """
        if not copy.epoch:
            return 0.0
        epoch, at = self._began.get(copy.job, (copy.epoch, inf))
        return min(copy.spec.at, at) if epoch == copy.epoch else copy.spec.at


def is_end_of(end: Finished, copy: JobCopy) -> bool:
    """Whether a job ended so and has not changed since. Older records of ends do not name a revision."""
    return end.epoch >= copy.epoch and (not end.rev or end.rev == copy.spec.rev)


def pages_done(value: bytes | None, job: str) -> int:
    """The number of a job's pages that a record of crawl.urls reports."""
    if not value or b'"results"' not in value:
        return 0
    try:
        record = urls.decode(value)
    except ValueError:
        return 0
    return sum(result.page is not None for result in record.results or ()) if record.job == job else 0


def write_control(
    producer: "Producer", topics: "Topics", records: Iterable[Control], within_s: float = ACKNOWLEDGED_S
) -> None:
    """Write records to crawl.control, which every worker reads; wait for the acknowledgements."""
    for record in records:
        producer.send(topics.control, control.encode(record), key=control.key(record), partition=0)
    acknowledged(producer, topics.control, within_s)


def acknowledged(producer: "Producer", what: str, within_s: float = ACKNOWLEDGED_S) -> None:
    """Wait for all acknowledgements.

    Raises: EngineError: some are missing after `within_s`.
    """
    if not producer.flush(within_s):
        raise EngineError(f"Kafka did not acknowledge {what} within {within_s:.0f} s; see `crawlog doctor`")
