"""Schedules at work: decides about those that are due, and creates the jobs of their runs.

    crawl.control: JobSchedule, Planned, jobs ─► heap by time ─► `decide` ─┬─► Planned ─► crawl.control, read back
                                                                           ├─► a thread: jobs, seeds ─► begun
                                                                           └─► orders: cancel

Rules

    1  What is known is what crawl.control holds: a note that was sent counts when it is read back. Jobs stand there
       before the note that they have begun, so the run goes on for all who read that note.
    2  The planned time stands in the log before the first job is created. A successor finds it, and creates the same
       jobs by the same names: those that are there get their seeds once more, which changes nothing.
    3  A note that is older than the known one comes from a coordinator that was stopped; the known one is sent again.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from queue import SimpleQueue

import msgspec
import structlog

from crawlog.schemas.control import Control, Finished, JobCopy
from crawlog.schemas.schedules import JobSchedule, Planned
from crawlog.streams import crash_points
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import DueOrder, FollowedJobs, JobRevision
from crawlog.streams.schedules import decide, is_newer

log = structlog.get_logger()

LOOK_S = 0.5  # Time between two looks at what is due, seconds

SLICE_S = 0.02  # How long one look holds up the event loop, seconds: ten thousand schedules may be due at once

AGAIN_S = 5.0  # Pause after an error of the cluster, or of a schedule, seconds

MAX_ERROR = 500  # Characters of an error in a note

REPLACED = "replaced"  # Reason of a job that the next run has cancelled

# Creates the jobs of a run, in a thread; returns why one could not be created, or empty.
Create = Callable[[JobSchedule, Planned, dict[str, JobCopy | None]], str]


class Schedules:
    """The schedules of the coordinator.

    Args:
        jobs: Those of crawl.control.
        create: See `Create`. Raises: EngineError: it is tried again.
        clock: Returns UTC epoch seconds.
    """

    def __init__(self, jobs: FollowedJobs, create: Create, clock: Callable[[], float] = time.time) -> None:
        self._jobs = jobs
        self._create = create
        self._clock = clock
        self._schedules: dict[str, JobSchedule] = {}
        self._planned: dict[str, Planned] = {}
        self._of_job: dict[str, str] = {}
        self._heap: list[tuple[float, str]] = []
        self._next: dict[str, float] = {}
        self._sent: dict[str, Planned] = {}  # not read back yet
        self._creating: set[str] = set()
        self._cancelled: dict[str, JobRevision] = {}
        self._work: tuple[Callable[[Planned], None], Callable[[DueOrder], None], Callable[[], bool]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._runs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, record: Control) -> None:
        """Takes a record of crawl.control."""
        if isinstance(record, JobSchedule):
            self._schedules[record.name] = record
            self._look_at(record.name, 0.0)
        elif isinstance(record, Planned):
            self._take_note(record)
        elif isinstance(record, JobCopy | Finished) and record.job in self._of_job:
            self._look_at(self._of_job[record.job], 0.0)

    def _take_note(self, note: Planned) -> None:
        name, known = note.schedule, self._planned.get(note.schedule)
        if self._sent.get(name) == note:
            del self._sent[name]
        if is_newer(note, known):
            for job in known.jobs if known is not None else ():
                self._of_job.pop(job, None)
            self._of_job |= dict.fromkeys(note.jobs, name)
            self._planned[name] = note
        elif self._work is not None and known is not None:
            self._work[0](known)
        self._look_at(name, 0.0)

    def begin(
        self, note: Callable[[Planned], None], order: Callable[[DueOrder], None], may_act: Callable[[], bool]
    ) -> None:
        """Begins the duty. The callbacks write to the log; nothing is decided while `may_act` is false."""
        self._work = note, order, may_act
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)
            self._thread.start()
        self._tick()

    def _run(self) -> None:
        while True:
            self._runs.get()()

    def end(self) -> None:
        """Ends the duty: another worker may have it."""
        self._work = None
        self._sent.clear()
        self._cancelled.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, name: str, at: float) -> None:
        if self._next.get(name) != at:
            self._next[name] = at
            heappush(self._heap, (at, name))

    def _tick(self) -> None:
        if self._work is None:
            return
        now, end, may_act = self._clock(), time.monotonic() + SLICE_S, self._work[2]()
        while may_act and self._heap and self._heap[0][0] <= now and time.monotonic() < end:
            at, name = heappop(self._heap)
            if self._next.get(name) == at:
                del self._next[name]
                self._step(name, now)
        is_more = may_act and bool(self._heap) and self._heap[0][0] <= now
        self._timer = asyncio.get_running_loop().call_later(SLICE_S if is_more else LOOK_S, self._tick)

    def _step(self, name: str, now: float) -> None:
        schedule = self._schedules.get(name)
        if schedule is None or name in self._sent or name in self._creating or self._work is None:
            return  # it is looked at again when the note is read back, and when the jobs are there
        try:
            self._act(schedule, now)
        except Exception as error:  # noqa: BLE001  # anybody may have written it; the others go on
            log.warning("schedule_broken", schedule=name, error=str(error)[:MAX_ERROR])

    def _act(self, schedule: JobSchedule, now: float) -> None:
        assert self._work is not None
        note, order, _ = self._work
        planned, name = self._planned.get(schedule.name), schedule.name
        jobs = planned.jobs if planned is not None and planned.since == schedule.since else ()
        going_on = [job for job in jobs if job in self._jobs.open]
        decision = decide(schedule, planned, now, is_open=bool(going_on))
        if decision.planned is not None:
            crash_points.point("schedule.planning")
            self._sent[name] = decision.planned
            note(decision.planned)
            return
        self._look_at(name, decision.next_at)
        if decision.begins and planned is not None:
            self._creating.add(name)
            known = {job: self._jobs.copy(job) for job in planned.jobs}
            log.info("schedule_runs", schedule=name, jobs=list(planned.jobs))
            loop = asyncio.get_running_loop()
            self._runs.put(partial(self._created, loop, schedule, planned, known))
        for job in going_on if decision.cancels else ():
            mark = self._jobs.open[job].mark
            if self._cancelled.get(job) != mark:
                self._cancelled[job] = mark
                order(DueOrder(job, mark, "cancelled", REPLACED))

    def _created(
        self, loop: asyncio.AbstractEventLoop, schedule: JobSchedule, planned: Planned, known: dict[str, JobCopy | None]
    ) -> None:
        """Creates the jobs, in the thread."""
        error: str | None
        try:
            error = self._create(schedule, planned, known)
        except EngineError as away:
            log.warning("schedule_waits", schedule=schedule.name, error=str(away))
            error = None
        except Exception as failed:
            log.exception("schedule_failed", schedule=schedule.name)
            error = str(failed) or repr(failed)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._note_begun, planned, error)

    def _note_begun(self, planned: Planned, error: str | None) -> None:
        name = planned.schedule
        self._creating.discard(name)
        if error is None or self._work is None or not self._work[2]():
            self._look_at(name, self._clock() + AGAIN_S)
            return
        crash_points.point("schedule.created")
        begun = msgspec.structs.replace(planned, begun=True, error=error[:MAX_ERROR])
        self._sent[name] = begun
        self._work[0](begun)
