"""Jobs that wait for others, or get their seeds: what becomes of them, and whether they wait for each other. Pure.

    JobFlow.after: jobs, `group:NAME` ─► all have ended well ───► release: it runs
                                         one did not end well ──► fail, unless any end will do
                                         else ──────────────────► it waits; so it does for a job that was stopped
    JobFlow.feeds: jobs ───────────────► all have ended, and their rows are seeds by then: the job may finish

A job has ended well when it is finished, has reached its limit of pages, or was closed by its spider, and that end is
noted: its outputs are complete. A group counts with the jobs that it has at that moment, once it has any.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import GROUP, NO_FLOW, JobFlow, feed_name

from .control_state import ControlState, FollowedJobs, JobRevision
from .states import is_final, traits

SHOWN = 3  # Names of jobs in words, at most


class Predecessors(NamedTuple):
    """The jobs that a waiting job waits for.

    Attributes:
        pending: Jobs that have not ended, and groups that have no job yet.
        broken: The first job that did not end well, and how it ended: `shop: cancelled`; empty for none.
    """

    pending: tuple[str, ...] = ()
    broken: str = ""


class Flow:
    """The jobs of a log at one moment, as they are connected."""

    def __init__(self, control: ControlState) -> None:
        self._control = control

    @cached_property
    def _groups(self) -> dict[str, list[str]]:
        """The jobs of each group; most jobs ask for none."""
        groups: dict[str, list[str]] = defaultdict(list)
        for copy in self._control.of(JobCopy):
            if copy.spec.flow is not None and copy.spec.flow.group and copy.spec.state != "deleted":
                groups[GROUP + copy.spec.flow.group].append(copy.job)
        return groups

    def predecessors(self, flow: JobFlow) -> Predecessors:
        """Those of a job of this flow, as they are now."""
        pending, broken = list[str](), ""
        for name in flow.after:
            jobs = self._jobs(name)
            for job in jobs:
                is_over, how = self._end(job, any_end=flow.after_any)
                if not is_over:
                    pending.append(job)
                elif how and not broken:
                    broken = f"{job}: {how}"
            if not jobs:
                pending.append(name)
        return Predecessors(tuple(pending), broken)

    def is_feeding(self, job: str, epoch: int, flow: JobFlow) -> bool:
        """Whether a job may still get seeds of other jobs' rows. It gets no more of one that failed or is gone."""
        return any(self._feeds(source, feed_name(job, epoch)) for source in flow.sources)

    def _feeds(self, source: str, feed: str) -> bool:
        copy, note = self._control.job(source), self._control.output(source, feed)
        if copy is None or copy.spec.state in ("cancelled", "failed", "deleted"):
            return False
        is_passed = note is not None and not note.error and (note.epoch, note.rev) == JobRevision.of(copy)
        return not (is_passed and is_final(copy.spec.state, copy.spec.reason) and self._control.end(source) is not None)

    def shown(self, flow: JobFlow) -> str:
        """What a job of this flow waits for, in words; empty for nothing."""
        pending = self.predecessors(flow).pending
        more = f" and {len(pending) - SHOWN} more" if len(pending) > SHOWN else ""
        return f"after {', '.join(pending[:SHOWN])}{more}" if pending else ""

    def cycle(self, job: str, flow: JobFlow) -> tuple[str, ...]:
        """The jobs through which a job would wait for itself, from it to it; empty if it would not."""
        self._groups[GROUP + flow.group].append(job)
        came_from, open_jobs = dict.fromkeys(self._needed(flow), job), list(self._needed(flow))
        while open_jobs and job not in came_from:
            at = open_jobs.pop()
            copy = self._control.job(at)
            for needed in self._needed(copy.spec.flow or NO_FLOW) if copy is not None else ():
                if needed not in came_from:
                    came_from[needed] = at
                    open_jobs.append(needed)
        if job not in came_from:
            return ()
        path = [job]
        while (at := came_from[path[-1]]) != job:
            path.append(at)
        return (job, *reversed(path))

    def _needed(self, flow: JobFlow) -> Iterator[str]:
        """The jobs that must end before one of this flow can."""
        yield from flow.sources
        for name in flow.after:
            yield from self._jobs(name)

    def _jobs(self, name: str) -> list[str]:
        return self._groups.get(name, []) if name.startswith(GROUP) else [name]

    def _end(self, job: str, *, any_end: bool) -> tuple[bool, str]:
        """Whether a job has ended, and how, if it did not end well."""
        copy = self._control.job(job)
        state = copy.spec.state if copy is not None else "deleted"
        if copy is None or state == "deleted":
            return True, "" if any_end else "deleted"
        if any_end or is_final(state, copy.spec.reason):
            return traits(state).ended and self._control.complete_end(job) is not None, ""
        return state in ("failed", "cancelled"), state


class FollowedFlow:
    """What other jobs let a job do, look by look; jobs are compared again when a record has come."""

    def __init__(self, jobs: FollowedJobs) -> None:
        self._jobs = jobs
        self._taken = -1
        self._flow = Flow(jobs.control)
        self._held = set[str]()

    def release(self, job: str) -> str | None:
        """How a waiting job goes on: empty if it runs, else why it cannot; None while it waits."""
        copy = self._to_compare(job)
        if copy is None:
            return None
        pending, broken = self._flow.predecessors(copy.spec.flow or NO_FLOW)
        if pending and not broken:
            self._held.add(job)
            return None
        return broken

    def is_feeding(self, job: str) -> bool:
        """Whether a job may still get seeds of other jobs' rows."""
        copy = self._to_compare(job)
        if copy is not None and self._flow.is_feeding(job, copy.epoch, copy.spec.flow or NO_FLOW):
            self._held.add(job)
        return job in self._held

    def _to_compare(self, job: str) -> JobCopy | None:
        """A job's record, unless the job was held at the last look and no record has come since."""
        if self._taken != (taken := self._jobs.taken):
            self._taken, self._flow, self._held = taken, Flow(self._jobs.control), set()
        return None if job in self._held else self._jobs.copy(job)
