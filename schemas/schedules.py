"""Schedules: rules by which jobs are submitted again and again. Parts of crawl.control.

    schedule/NAME ─► JobSchedule: the rule, and the jobs of a run as `submit` resolved them
    planned/NAME ──► Planned: which planned times were decided, and the run of the last one

The planned time stands in the log before a job of its run is created. A job's name is made of schedule and time, so
whoever goes on creates the same job.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from .urls import JobSpec

VERSION = 1

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["skip", "queue", "replace"]

SCHEDULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")  # with time and suffix it is the name of a job
_SUFFIX = re.compile(r"[A-Za-z0-9._-]{0,30}")

Seconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 36)]  # UTC epoch seconds


class RunJob(msgspec.Struct, omit_defaults=True, frozen=True):
    """One job of each run.

    Attributes:
        spec: Its record. Times, state and offsets are those of the run.
        suffix: Of the job's name, where a run has several jobs; else empty.
        seeds: Lines of seeds, and `sitemap:URL`, which is read at each run.
    """

    spec: JobSpec
    suffix: str = ""
    seeds: tuple[str, ...] = ()


class JobSchedule(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A rule, and what is submitted at each of its times. Of `cron` and `every_s` exactly one is given.

    Attributes:
        since: When it was added: `every_s` counts from here, and no earlier time is planned. It tells two schedules of
            one name apart.
        jobs: Of each run.
        request: The submission, for people, and for a new version of the project (`crawlog.jobs`).
        base: The submitter's settings of jobs that differ from the defaults; the request's own are stronger.
        cron: Five fields, in local time of `zone`.
        catch_up: Which times that nobody was there for are made up for: none, the last one, or all of them.
        overlap: What becomes of a time at which the former run still goes on.
        paused: Whether only `run_at` counts.
        after: No time up to this one is planned: those of a pause are not made up for.
        run_at: A time that the operator adds to those of the rule.
        removed: Whether it is gone. No tombstone, which followers of crawl.control would not hear.
    """

    name: str
    since: Seconds
    jobs: tuple[RunJob, ...] = ()
    request: dict[str, Any] = {}
    base: dict[str, Any] = {}
    cron: Annotated[str, msgspec.Meta(max_length=200)] = ""
    zone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    every_s: Seconds = 0
    catch_up: CatchUp = "none"
    overlap: Overlap = "skip"
    paused: bool = False
    after: Seconds = 0
    run_at: Seconds = 0
    removed: bool = False
    by: str = ""

    def check(self) -> "JobSchedule":
        """The schedule, if jobs can be named after it. Raises: ValueError: they cannot."""
        if not SCHEDULE_NAME.fullmatch(self.name) or not all(_SUFFIX.fullmatch(job.suffix) for job in self.jobs):
            raise ValueError(f"no schedule can be named {self.name!r:.100}, or its jobs")
        if bool(self.cron) == bool(self.every_s) and not self.removed:
            raise ValueError(f"the schedule {self.name} has not exactly one of cron and every_s")
        return self


class Planned(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """How far a schedule has come; written by the coordinator alone.

    Attributes:
        since: Of the schedule that it is about; a note about another one of the name does not count.
        upto: The newest planned time that was decided.
        run: The planned time of the last run; 0 before the first.
        jobs: Names of its jobs.
        begun: Whether all of them are in the log, with their seeds.
        waiting: Planned times whose runs begin when this one has ended.
        skipped: Times that overlap left out, over the schedule's life.
        error: Why a job of the run could not be created, one line; empty if all is well.
    """

    schedule: str
    since: Seconds
    upto: Seconds = 0
    run: Seconds = 0
    jobs: tuple[str, ...] = ()
    begun: bool = False
    waiting: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=1_000)] = ()
    skipped: int = 0
    error: str = ""
