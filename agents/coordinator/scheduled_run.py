"""Creates the jobs of a schedule's run, and sends their seeds: what `submit` does, without a user's code."""

import io
import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from crawlog.agents.seed import Source, collect, plant
from crawlog.schemas.control import JobCopy
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds, log_end
from crawlog.streams.control import create_job
from crawlog.streams.errors import CrawlError, EngineError, InvalidState
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
        if copy is None:
            since = log_end(self._settings, self._topics.control)
            copy = create_job(self._settings, producer, self._topics, name, self._spec(job, by, at), 0, since)
        if copy.spec.by != by:
            raise InvalidState(f"there is such a job already, which {copy.spec.by or 'somebody else'} has submitted")
        if not job.seeds or copy.spec.state in ("deleted", "cancelled"):
            return
        # As lines: an argument of a source might name a file of this machine.
        lines = "".join(f"{seed}\n" for seed in job.seeds if not seed.startswith(SITEMAP)).encode()
        sitemaps = [seed for seed in job.seeds if seed.startswith(SITEMAP)]
        given = [*(["-"] if lines else []), *sitemaps]

        def say(line: str) -> None:
            log.info("schedule_seeds", job=name, line=line)

        with Source(given, io.BytesIO(lines), lambda url: collect(self._settings, url, say)) as source:
            plant(self._settings, producer, name, source, report=say, begun=copy)

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
