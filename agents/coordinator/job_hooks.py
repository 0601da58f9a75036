"""Calls what jobs name for their ends, as long as this worker is the coordinator.

crawl.control: JobCopy, Finished, OutputNote, HookNote ─► `hook_calls` ─► a task a target ─► HookCaller ─► HookNote

A task asks `hook_calls` before each call, so it ends with its duty, with the end that it is about, and with the note.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from crawlog.agents.hooks import HookCaller, call_in_time
from crawlog.schemas.control import Control, HookNote
from crawlog.schemas.job_orders import NO_FLOW
from crawlog.streams import crash_points
from crawlog.streams.hooks import HookCall, hook_calls
from crawlog.streams.jobs import FollowedJobs

log = structlog.get_logger()

MOST_AT_ONCE = 8  # Calls at a time

LOOK_S = 5.0  # Longest time until a task sees that its job has ended anew, seconds

LEASE_S = 1.0  # Pause of a worker that has lost its lease, seconds


class JobHooks:
    """The calls of all jobs.

    Args:
        jobs: Those of crawl.control.
        send: Writes a note to crawl.control.
    """

    def __init__(self, jobs: FollowedJobs, caller: HookCaller) -> None:
        self._jobs = jobs
        self._caller = caller
        self._send: Callable[[Control], None] | None = None
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)

    def begin(self, send: Callable[[Control], None]) -> None:
        """The duty begins: calls that are not over are made, those of a former coordinator too."""
        self._send = send
        for copy in self._jobs.copies():
            self.look(copy.job)

    def end(self) -> None:
        """The duty ends. A call that is under way is given up; its successor makes it again."""
        self._send = None
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def look(self, job: str) -> None:
        """Something was heard of a job: begins the calls of its end."""
        copy = self._jobs.copy(job)
        if self._send is None or copy is None or not (copy.spec.flow or NO_FLOW).on_finish:
            return
        for call in hook_calls(self._jobs.control, job):
            task = self._tasks.get((job, call.target))
            if task is None or task.done():
                self._tasks[job, call.target] = asyncio.create_task(self._keep_calling(job, call.target))

    async def _keep_calling(self, job: str, target: str) -> None:
        while (call := self._call_of(job, target)) is not None:
            if (wait_s := call.at - time.time()) > 0:
                await asyncio.sleep(min(wait_s, LOOK_S))
                continue
            async with self._turn:
                crash_points.point("hook.calling")
                error = await call_in_time(self._caller, call)
                crash_points.point("hook.called")
            if error is None:
                await asyncio.sleep(LEASE_S)
            else:
                self._note(call.note(error, time.time()))

    def _call_of(self, job: str, target: str) -> HookCall | None:
        return next((one for one in hook_calls(self._jobs.control, job) if one.target == target), None)

    def _note(self, note: HookNote) -> None:
        """Writes a note, and takes it at once: the tail of crawl.control has it later."""
        if self._send is not None:
            log.info("hook_called", job=note.job, target=note.target, tries=note.tries, error=note.error)
            self._jobs.take(note)
            self._send(note)
