"""Schedules at work: notes that are read back, jobs once each note stands in the log, and what a killed one left."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from crawlog.agents.coordinator.schedules import Schedules
from crawlog.schemas.control import Control, Finished, JobCopy
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import DueOrder, FollowedJobs

EVERY = JobSchedule("s", 1_000, (RunJob(JobSpec()),), every_s=60)
FIRST, SECOND = "s-19700101T001740Z", "s-19700101T001840Z"


class Duty:
    """Schedules whose log, clock and jobs are the test's.

    Args:
        at_work: Whether the duty has begun.
    """

    def __init__(self, *records: Control, at_work: bool = True) -> None:
        self.now = 1_000.0
        self.has_lease = True
        self.notes: list[Planned] = []
        self.orders: list[DueOrder] = []
        self.created: list[tuple[str, ...]] = []
        self.fails: Exception | None = None
        self.error = ""
        self.jobs = FollowedJobs()
        self.schedules = Schedules(self.jobs, self._create, lambda: self.now)
        self.hear(*records)
        if at_work:
            self.begin()

    def begin(self) -> None:
        """Another worker had the duty before."""
        self.schedules.begin(self.notes.append, self.orders.append, lambda: self.has_lease)

    def hear(self, *records: Control) -> None:
        """Records of crawl.control."""
        for record in records:
            self.jobs.take(record)
            self.schedules.take(record)

    def _create(self, _schedule: JobSchedule, planned: Planned, _known: Any) -> str:
        if self.fails is not None:
            raise self.fails
        self.created.append(planned.jobs)
        return self.error

    async def until(self, holds: Callable[[], Any], at: float = 0.0) -> None:
        """Waits until something holds, at a time of the test's clock."""
        self.now = at or self.now
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110  # on what the thread does, too
                await asyncio.sleep(0.01)

    async def run(self, at: float, *jobs: str) -> None:
        """Lets a run begin, whose jobs are there then, and read back all that is written."""
        count = len(self.notes)
        await self.until(lambda: len(self.notes) > count, at)
        self.hear(self.notes[-1])
        await self.until(lambda: len(self.notes) > count + 1)
        self.hear(*(JobCopy(job, JobSpec()) for job in jobs), self.notes[-1])


def ended(job: str) -> tuple[Control, Control]:
    """A job that has finished."""
    return JobCopy(job, JobSpec(2, state="finished")), Finished(job, 0.0, rev=2)


async def test_the_planned_time_is_read_back_before_a_job_is_created_and_so_is_the_note_that_it_has_begun() -> None:
    """Each planned time has one run."""
    duty = Duty(EVERY)
    await duty.until(lambda: duty.notes, 1_060.0)
    assert (duty.notes[0].jobs, duty.notes[0].begun, duty.created) == ((FIRST,), False, [])
    duty.hear(duty.notes[0])
    await duty.until(lambda: len(duty.notes) > 1)
    assert (duty.created, duty.notes[1].begun) == ([(FIRST,)], True)
    duty.hear(JobCopy(FIRST, JobSpec()), duty.notes[1], *ended(FIRST))
    await duty.run(1_120.0, SECOND)
    assert duty.created == [(FIRST,), (SECOND,)]


async def test_a_successor_goes_on_with_the_run_that_was_planned() -> None:
    """Whether its jobs are there or not: they have the same names."""
    planned = Planned("s", 1_000, 1_060, 1_060, (FIRST,))
    duty = Duty(EVERY, planned)
    duty.now = 1_300.0
    await duty.until(lambda: duty.notes)
    assert (duty.created, duty.notes) == ([(FIRST,)], [msgspec.structs.replace(planned, begun=True)])


async def test_a_schedule_that_was_added_again_does_not_wait_for_a_run_of_the_former_one() -> None:
    """They share the name alone."""
    former = Planned("s", 500, 560, 560, ("s-old",), begun=True)
    duty = Duty(JobCopy("s-old", JobSpec()), former, EVERY)
    await duty.run(1_060.0, FIRST)
    assert duty.created == [(FIRST,)]


async def test_nothing_is_decided_at_rest_and_without_the_lease() -> None:
    """Another worker may have the duty already."""
    resting, doubting = Duty(EVERY, at_work=False), Duty(EVERY)
    doubting.has_lease = False
    acting = Duty(EVERY)
    resting.now = doubting.now = 2_000.0
    await acting.until(lambda: acting.notes, 2_000.0)
    assert resting.notes == doubting.notes == []


async def test_an_older_note_has_the_known_one_written_again() -> None:
    """Compaction would keep the older one, and a successor would plan from there."""
    old = Planned("s", 1_000, 1_060, 1_060, (FIRST,), begun=True)
    new = Planned("s", 1_000, 1_120, 1_120, (SECOND,), begun=True)
    duty = Duty(EVERY, old, new)
    duty.hear(old)
    assert duty.notes == [new]


async def test_a_log_that_is_away_is_tried_again_and_an_error_is_noted() -> None:
    """The run stays planned until its jobs are there, or cannot be."""
    duty = Duty(EVERY)
    duty.fails = EngineError("away")
    await duty.until(lambda: duty.notes, 1_060.0)
    duty.hear(duty.notes[0])
    await duty.until(lambda: "s" not in duty.schedules._creating)
    assert len(duty.notes) == 1
    duty.fails, duty.error = None, "no such project"
    await duty.until(lambda: len(duty.notes) > 1, 1_070.0)
    assert (duty.notes[1].begun, duty.notes[1].error) == (True, "no such project")


async def test_replace_cancels_the_run_once_and_the_next_one_begins_at_its_end() -> None:
    """The order names the revision that was looked at."""
    duty = Duty(msgspec.structs.replace(EVERY, overlap="replace"))
    await duty.run(1_060.0, FIRST)
    await duty.until(lambda: len(duty.notes) == 3, 1_120.0)
    duty.hear(duty.notes[-1])
    await duty.until(lambda: duty.orders)
    assert [(one.job, one.state) for one in duty.orders] == [(FIRST, "cancelled")]
    duty.hear(JobCopy(FIRST, JobSpec(2, state="cancelled")))
    await duty.until(lambda: len(duty.orders) == 2)  # its end is not noted yet: the order counts for one revision
    duty.hear(Finished(FIRST, 0.0, reason="cancelled", rev=2))
    await duty.run(1_121.0, SECOND)
    assert duty.created == [(FIRST,), (SECOND,)]


@pytest.mark.parametrize("bad", [{"cron": "R * * * *", "every_s": 0}, {"cron": "@daily", "zone": "no", "every_s": 0}])
async def test_a_schedule_that_cannot_be_read_holds_up_no_other(bad: dict[str, Any]) -> None:
    """Anybody who may write to crawl.control may have written it."""
    duty = Duty(msgspec.structs.replace(EVERY, name="a", **bad), EVERY)
    await duty.run(1_060.0, FIRST)
    assert duty.created == [(FIRST,)]
