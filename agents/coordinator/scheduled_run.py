"""Creates the jobs of a schedule's run, and sends their seeds: what `submit` does, without a user's code."""

import io
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
import structlog

from crawlog.agents.seed import Source, collect, plant, scope_names
from crawlog.schemas.control import JobCopy
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds, log_end
from crawlog.streams.control import create_job
from crawlog.streams.errors import CrawlError, EngineError, InvalidState, Misconfigured
from crawlog.streams.log import CommandProducer, Producer, Topics, partition_count
from crawlog.streams.schedules import NO_TIME, run_names, stamp

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

SITEMAP = "sitemap:"  # Prefix of a seed that stands for the URLs of a sitemap

FIRST_REVISION = 1


class RunCreator:
    """Creates the jobs of runs; used by one thread."""

    def __init__(self, settings: "Settings", topics: Topics) -> None:
        self._settings = settings
        self._topics = topics
        self._producer: Producer | None = None

    def create(self, schedule: JobSchedule, planned: Planned, known: dict[str, JobCopy | None]) -> str:
        """Creates those that are not there, and sends the seeds of all; returns why one could not be created, or empty.

        Raises: EngineError: the log does not answer.
        """
        crash_points.point("schedule.planned")
        self._producer = self._producer or CommandProducer(self._settings, "crawlog-schedules")
        errors = []
        for name, job in zip(run_names(schedule, planned.run), schedule.jobs, strict=True):
            if name not in planned.jobs:
                continue  # a new version of the project has brought the spider since
            try:
                self._begin(self._producer, schedule.name, name, job, known.get(name), stamp(schedule, planned.run))
            except EngineError:
                self._producer = None
                raise
            except (CrawlError, ValueError) as error:  # anybody may have written the schedule
                errors.append(f"{name}: {error}")
        return "; ".join(errors)

    def _begin(self, producer: Producer, schedule: str, name: str, job: RunJob, copy: JobCopy | None, at: str) -> None:
        by = f"schedule {schedule}"
        with ExitStack() as opened:
            source = None
            if job.seeds and (copy is None or copy.spec.state not in ("deleted", "cancelled")):
                source = self._source(opened, name, job, is_created=copy is not None)
            if copy is None:
                since = log_end(self._settings, self._topics.control)
                copy = create_job(self._settings, producer, self._topics, name, self._spec(job, by, at), 0, since)
            if copy.spec.by != by:
                raise InvalidState(f"there is such a job already, which {copy.spec.by or 'somebody'} has submitted")
            if source is not None:
                plant(self._settings, producer, name, source, report=_said(name), begun=copy)

    def _source(self, opened: ExitStack, name: str, job: RunJob, *, is_created: bool) -> Source:
        """The seeds, read before the job is created: without any it would wait for ever.

        Raises: Misconfigured: there are none. EngineError: the same, of a job that is there: it gets them later.
        """
        # As lines: an argument of a source might name a file of this machine.
        lines = "".join(f"{seed}\n" for seed in job.seeds if not seed.startswith(SITEMAP)).encode()
        sitemaps = [seed for seed in job.seeds if seed.startswith(SITEMAP)]
        given = [*(["-"] if lines else []), *sitemaps]
        say = _said(name)
        try:
            source = opened.enter_context(
                Source(given, io.BytesIO(lines), lambda url: collect(self._settings, url, say))
            )
            scope_names(source, job.spec.scope.kind)
        except Misconfigured as error:
            if is_created:
                raise EngineError(str(error)) from None
            raise
        return source

    def _spec(self, job: RunJob, by: str, at: str) -> JobSpec:
        now, settings = time.time(), self._settings
        ends = log_bounds(settings, self._topics.items, list(range(partition_count(settings)))).values()
        outputs = (msgspec.structs.replace(one, name=one.name.replace(NO_TIME, at)) for one in job.spec.outputs)
        return msgspec.structs.replace(
            job.spec,
            rev=FIRST_REVISION,
            state="waiting" if job.spec.flow is not None and job.spec.flow.after else "running",
            reason="",
            by=by,
            at=now,
            changed_at=now,
            items=tuple(end for _, end in ends),
            outputs=tuple(one.check() for one in outputs),
        )


def _said(job: str) -> Callable[[str], None]:
    """Takes lines about the seeds of a job."""
    return lambda line: log.info("schedule_seeds", job=job, line=line)
