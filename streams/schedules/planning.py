"""Decides what a schedule does now. Pure: the clock is an argument, and the state is what crawl.control holds.

times since the last decided one ─► catch-up: which of them count ─► overlap: begin, wait, or leave out ─► Planned
"""

from math import inf
from typing import NamedTuple

import msgspec

from crawlog.schemas.schedules import JobSchedule, Planned

from .times import newest, rule_of, stamp

# A time is on time for so long, seconds: a coordinator that dies is replaced meanwhile. Later it was missed.
LATE_S = 300

MOST = 100  # Times that are made up for, or wait, at most


class Decision(NamedTuple):
    """What a schedule does.

    Attributes:
        planned: The note to write before anything else; None if it stays as it is.
        begins: Whether the jobs of `planned.run` are to be created.
        cancels: Whether the jobs of the run that goes on are to be cancelled.
        next_at: When to decide again at the latest, UTC epoch seconds.
    """

    planned: Planned | None
    begins: bool = False
    cancels: bool = False
    next_at: float = inf


def decide(schedule: JobSchedule, noted: Planned | None, now: float, *, is_open: bool) -> Decision:
    """Decide about one schedule.

    Args:
        noted: The newest note.
        is_open: Whether a job of the noted run has not ended.

    Raises: Misconfigured: its rule cannot be read here.
    """
    if schedule.removed:
        return Decision(None)
    was = noted if noted is not None and noted.since == schedule.since else Planned(schedule.name, schedule.since)
    if was.run and not was.begun:
        return Decision(None, begins=True)  # `begun` has it decided again
    planned, cancels = _after(schedule, was, _due(schedule, was, int(now)), is_open=is_open)
    next_at = None if schedule.paused else rule_of(schedule).after(max(int(now), planned.upto, schedule.after))
    is_new = planned != was
    return Decision(planned if is_new else None, planned.run != was.run, cancels, inf if next_at is None else next_at)


def _after(schedule: JobSchedule, was: Planned, due: list[int], *, is_open: bool) -> tuple[Planned, bool]:
    """The note after these times, and whether the run that goes on is to be cancelled."""
    waiting, skipped = list(was.waiting), was.skipped
    queues = schedule.overlap == "queue" or (schedule.catch_up == "all" and len(due) > 1)
    for at in due:
        if not is_open and not waiting:
            waiting = [at]
        elif schedule.overlap == "replace":
            skipped += len(waiting)
            waiting = [at]
        elif queues and len(waiting) < MOST:
            waiting.append(at)
        else:
            skipped += 1
    change = {"upto": max(due, default=was.upto), "skipped": skipped}
    if is_open or not waiting:
        planned = msgspec.structs.replace(was, waiting=tuple(waiting), **change)
        return planned, bool(waiting) and schedule.overlap == "replace"
    run, *rest = waiting
    jobs = run_names(schedule, run)
    return msgspec.structs.replace(was, run=run, jobs=jobs, begun=False, error="", waiting=tuple(rest), **change), False


def _due(schedule: JobSchedule, was: Planned, now: int) -> list[int]:
    """The times to decide about, the oldest first."""
    begin = max(was.upto, schedule.after, schedule.since)
    due: list[int] = []
    if not schedule.paused:
        begin = max(begin, now - LATE_S) if schedule.catch_up == "none" else begin
        due = newest(rule_of(schedule), begin, now, MOST if schedule.catch_up == "all" else 1)
    return sorted({*due, *([schedule.run_at] if was.upto < schedule.run_at <= now else [])})


def run_names(schedule: JobSchedule, at: int) -> tuple[str, ...]:
    """The names of the jobs of a run: one instant gives the same jobs, whoever creates them."""
    return tuple("-".join(filter(None, (schedule.name, stamp(schedule, at), job.suffix))) for job in schedule.jobs)


def is_newer(planned: Planned, known: Planned | None) -> bool:
    """Whether a note is not older than another one: a coordinator that was stopped may write an old one late."""
    return known is None or _place(planned) >= _place(known)


def _place(planned: Planned) -> tuple[int, int, int, bool]:
    return planned.since, planned.upto, planned.run, planned.begun
