"""Seeds a job: first its record or its new scope names, then, after their acknowledgement, the URLs.

The seeds are read twice: for the scope names of the job's record, then to be sent.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from crawlog.schemas.control import NO_EPOCH, JobCopy, Join
from crawlog.schemas.urls import DEFAULT_JOB, UrlsRecord, decode
from crawlog.streams.cluster import Admin, log_bounds
from crawlog.streams.control import (
    end_closing,
    read_control,
    remove_notes,
    write_control,
    write_job,
    write_joins,
    write_names,
)
from crawlog.streams.errors import InvalidState, Misconfigured
from crawlog.streams.job_spec import NO_SPIDER, JobSpider, kept_settings, resolve_spec
from crawlog.streams.log import Topics, partition_count, partition_count_if_any, read_records
from crawlog.streams.timing import iso
from crawlog.streams.url import Places, fingerprint, scope_name, serialise

if TYPE_CHECKING:
    from crawlog.schemas.urls import RequestRules
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings
from .line import COMMENT, Seed, origin_on, why_not
from .source import Source
from .sower import MAX_NAMES, Look, Report, Seeded, Sower

FIRST_REVISION = 1  # Of a job's record when the job is created; that record is in each partition before any seed


def plant(  # noqa: PLR0913  # all inputs of a crawl
    settings: "Settings",
    producer: "Producer",
    job: str,
    source: Source,
    *,
    spider: JobSpider = NO_SPIDER,
    requests: "RequestRules | None" = None,
    report: Report,
    look: Look | None = None,
    begun: JobCopy | None = None,
) -> Seeded:
    """Seed a new or known job: first its record or its new names, then, after their acknowledgement, the URLs.

    Args:
        requests: Request rules of a new job; None for those in the settings.
        look: Reads the workers' progress, to keep their pace; None without workers.
        begun: The job that the seeds are for; None to begin a new one if there is none.

    Raises: Misconfigured: `source` has no URL; nothing was written. InvalidState: `begun` is deleted or began again.
    """
    topics = Topics(settings.kafka.prefix)
    control = read_control(settings, topics, joins=True)
    copy = _job_of(control.job(job), job, begun)
    epoch, after = 0, NO_EPOCH
    if copy is not None and copy.spec.state == "deleted":  # a new job of the name has a later epoch
        epoch, after = copy.epoch + 1, copy.epoch
        copy = None
        remove_notes(settings, producer, topics, job)
        control = read_control(settings, topics, joins=True)
    kind = copy.spec.scope.kind if copy is not None else settings.scope.kind
    names = scope_names(source, kind)
    if copy is None:
        listed = sorted(names)[:MAX_NAMES]
        end_closing(producer, topics, control, job)
        spec = msgspec.structs.replace(resolve_spec(settings, spider, listed, requests), at=time.time())
        copy = write_job(settings, producer, topics, job, spec, epoch, after)
    elif line := kept_settings(job, copy.spec, settings, requests):
        report(line)
    if control.has_ended_once(job):
        write_control(producer, topics, [copy])  # workers then report the counts of this finished job again
    count = partition_count(settings)
    if kind != "any":
        names.difference_update(copy.spec.scope.names)
        write_names(producer, topics, copy, names, count)
        joins = (entry for entry in control.of(Join) if entry.job == job)
        write_joins(producer, topics, job, names.difference(*(entry.names for entry in joins)))
    sower = Sower(producer, topics, count, copy, report, look)
    try:
        for part, lines in source.parts():
            sower.sow(part, lines)
        return sower.finish()
    except KeyboardInterrupt:
        report(
            f"interrupted: {sower.count:,} URLs are read, some not sent; the same command again adds what is missing"
        )
        raise


def _job_of(known: JobCopy | None, job: str, begun: JobCopy | None) -> JobCopy | None:
    """The job's record; None without one. `begun` may be newer than its copy.

    Raises: InvalidState: `begun` is deleted, or began again.
    """
    if begun is None:
        return known
    if known is None or known.spec.state == "deleted" or known.epoch != begun.epoch:
        raise InvalidState(f"job {job} was deleted or began again meanwhile, and got none of these URLs: try again")
    return max(known, begun, key=lambda one: one.spec.rev)


class KeptSeeds:
    """All seeds of a job in the log, in a file; those of a deleted job of the same name are left out.

    Attributes:
        path: The file.
    """

    def __init__(self, settings: "Settings", topics: Topics, job: str, file: IO[bytes]) -> None:
        self.path = Path(file.name)
        self.known: set[int] = set()
        self._settings = settings
        self._topic = topics.urls
        self._job = job
        self._file = file
        self._ends: dict[int, int] = {}

    def read_on(self) -> None:
        """Add the seeds that the log has got since the last call.

        Raises: Misconfigured: the log was trimmed, and may have lost some of them.
        """
        every = log_bounds(self._settings, self._topic, list(range(partition_count_if_any(self._settings))))
        for partition, (low, end) in every.items():
            start = self._ends.get(partition, low)
            with closing(read_records(self._settings, self._topic, partition, start, end)) as records:
                values: Iterator[bytes | None] = (record.value() for record in records)
                if low and partition not in self._ends:
                    values = self._whole(values, partition, low)
                self.known |= keep_seeds(values, self._job, self._file, self.known)
            self._ends[partition] = end
        self._file.flush()

    def _whole(self, values: Iterator[bytes | None], partition: int, low: int) -> Iterator[bytes | None]:
        """The records of a trimmed partition, which has all of a job that was created there, or after a deletion there.

        Raises: Misconfigured: at their end, if it has not.
        """
        is_whole: bool | None = None
        for value in values:
            if not is_whole and (record := next(_records_of([value], self._job), None)) is not None:
                spec = record.spec
                is_created = is_whole is None and spec is not None and spec.rev == FIRST_REVISION
                is_whole = is_created or (spec is not None and spec.state == "deleted")
            yield value
        if not is_whole:
            raise Misconfigured(
                f"{self._topic}[{partition}] begins at offset {low}: seeds of job {self._job} before it may be gone;"
                " give the URLs that it starts with."
            )


@contextmanager
def kept_seeds(settings: "Settings", topics: Topics, job: str) -> Iterator[KeptSeeds]:
    """All seeds of a job in the log, in a temporary file; it is deleted at the end of the `with`.

    Raises: Misconfigured: the log has none, or may have lost some.
    """
    with tempfile.NamedTemporaryFile(prefix="seeds-", suffix=".jsonl") as file:
        seeds = KeptSeeds(settings, topics, job, file)
        seeds.read_on()
        if not seeds.known:
            raise Misconfigured(f"the log holds no seeds of job {job}; give the URLs that it starts with.")
        yield seeds


def old_seeds(settings: "Settings", prefix: str, job: str) -> AbstractContextManager[KeptSeeds]:
    """`kept_seeds` of the log under another prefix; its number of partitions may differ.

    Raises: Misconfigured: it is the log that the settings name, or it does not exist.
    """
    if prefix == settings.kafka.prefix:
        raise Misconfigured(f"--from-log {prefix} is the log that the seeds would go to: give -s kafka.prefix=NEW.")
    old = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"prefix": prefix})})
    if not partition_count_if_any(old):
        named = [name.removesuffix("urls") for name in Admin(old).metadata().topics if name.endswith(".urls")]
        there = f"the logs there are {', '.join(sorted(named)) or 'none'}"
        raise Misconfigured(f"--from-log {prefix}: there is no topic {Topics(prefix).urls}; {there}")
    return kept_seeds(old, Topics(prefix), job)


def keep_seeds(values: Iterable[bytes | None], job: str, file: IO[bytes], known: set[int]) -> set[int]:
    """Write the seeds of a job in one partition to a file, each once; returns their names.

    Args:
        values: All records of the partition. A deletion takes back the seeds before it.
        known: Names of seeds that are not written again.
    """
    begin, names, deleted = file.tell(), set[int](), -1
    for record in _records_of(values, job):
        if record.spec is not None and record.spec.state == "deleted" and record.epoch > deleted:
            deleted = record.epoch
            names.clear()
            file.seek(begin)
            file.truncate()
        if record.epoch <= deleted and record.url is None:  # other clients do not know the epoch
            continue
        for found in record.urls or ():
            name = found.id or fingerprint(found.url)
            if found.source == "seed" and name not in known and name not in names:
                names.add(name)
                seed = Seed(found.url, found.depth, found.priority, record=found.request, id=found.id)
                times = {"eta": iso(found.eta), "expires": iso(found.expires)}
                seed = msgspec.structs.replace(seed, **times, age=found.age or None, itag=found.itag or None)
                file.write(msgspec.json.encode(seed) + b"\n")
    return names


def _records_of(values: Iterable[bytes | None], job: str) -> Iterator[UrlsRecord]:
    for value in values:
        try:
            record = decode(value)
        except ValueError:
            continue
        if (record.job or DEFAULT_JOB) == job:
            yield record


def scope_names(source: Source, kind: str) -> set[str]:
    """The scope names of all seeds. Only origins are parsed, each once, so a million lines take a second.

    Raises: Misconfigured: no line has a URL; the message says why the first bad line has none.
    """
    names: set[str] = set()
    known_origins: set[bytes] = set()
    place = Places(1).of
    first = ""
    for part, lines in source.parts():
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text[0] == COMMENT:
                continue
            try:
                origin = origin_on(text)
                if origin not in known_origins:
                    names.add(scope_name(kind, place(serialise(origin.decode()))))
                    known_origins.add(origin)
            except ValueError as error:
                first = first or f"{part}:{number}: {why_not(text, error)}"
    if not names:
        raise Misconfigured(f"no URL in {source}" + (f": {first}" if first else ""))
    return names
