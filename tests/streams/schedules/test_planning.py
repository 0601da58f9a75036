"""What a schedule does: catch-up, overlap, pauses; and years in which the coordinator dies between any two writes."""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.streams.schedules import LATE_S, MOST, Decision, decide, is_newer, rule_of, run_names, times

JOB = RunJob(JobSpec())
NOW = 1_000_000
EVERY = JobSchedule("s", NOW, (JOB,), every_s=60)


def schedule(**change: Any) -> JobSchedule:
    """One that runs each minute, with other fields."""
    return msgspec.structs.replace(EVERY, **change)


def note(*, run: int = 0, upto: int = 0, waiting: tuple[int, ...] = ()) -> Planned:
    """The note of a run that has begun."""
    return Planned("s", NOW, upto or run, run, ("s-1",) * bool(run), begun=True, waiting=waiting)


def after(minutes: float) -> int:
    """So long after the schedule was added."""
    return NOW + int(60 * minutes)


def ran(decision: Decision) -> tuple[int, tuple[int, ...], int]:
    """The run that begins, those that wait, and how many were left out; times as minutes."""
    planned = decision.planned
    assert planned is not None
    return (
        (planned.run - NOW) // 60 if decision.begins else 0,
        tuple((one - NOW) // 60 for one in planned.waiting),
        planned.skipped,
    )


def test_a_time_that_has_come_is_planned_before_its_run_begins() -> None:
    """Its job is named after schedule and time; the next decision is due a minute later."""
    decision = decide(EVERY, None, after(1) + 0.4, is_open=False)
    planned = Planned("s", NOW, after(1), after(1), ("s-19700112T134740Z",))
    assert decision == Decision(planned, begins=True, next_at=after(2))


def test_nothing_is_decided_before_its_time_and_after_its_run() -> None:
    """A coordinator that begins runs nothing that was run already (celery/celery#2746)."""
    assert decide(EVERY, None, after(0.9), is_open=False) == Decision(None, next_at=after(1))
    assert decide(EVERY, note(run=after(1)), after(1.5), is_open=False) == Decision(None, next_at=after(2))


def test_a_run_that_was_planned_and_not_begun_begins_before_anything_else() -> None:
    """Its coordinator has died."""
    planned = msgspec.structs.replace(note(run=after(1)), begun=False)
    assert decide(EVERY, planned, after(9), is_open=False) == Decision(None, begins=True)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("none", (0, (), 0)), ("last", (600, (), 0)), ("all", (501, tuple(range(502, 601)), 0))],
    ids=["none", "last", "all"],
)
def test_catch_up_after_a_standstill(catch_up: str, expected: tuple[int, tuple[int, ...], int]) -> None:
    """None, the last, or all, at most 100 and one after the other: not all at once (celery/django-celery-beat#459)."""
    daily = schedule(catch_up=catch_up)
    late = after(600) + (LATE_S - 300) + 59
    if catch_up == "none":
        daily = msgspec.structs.replace(daily, every_s=36_000)
        assert decide(daily, None, after(600) + LATE_S + 1, is_open=False).planned is None
        assert decide(daily, None, after(600) + LATE_S - 1, is_open=False).begins
        return
    assert ran(decide(daily, None, late, is_open=False)) == expected
    assert len(expected[1]) < MOST


def test_without_catch_up_a_failover_costs_no_run_and_makes_no_crowd() -> None:
    """Of the times within five minutes the newest one runs, once."""
    assert ran(decide(EVERY, note(run=after(1)), after(4.5), is_open=False)) == (4, (), 0)


@pytest.mark.parametrize(
    ("overlap", "expected", "cancels"),
    [("skip", (0, (), 1), False), ("queue", (0, (2,), 0), False), ("replace", (0, (2,), 0), True)],
    ids=["skip", "queue", "replace"],
)
def test_overlap_with_a_run_that_goes_on(
    overlap: str, expected: tuple[int, tuple[int, ...], int], *, cancels: bool
) -> None:
    """The time is left out, waits, or waits for the end of the run, which is cancelled."""
    one = schedule(overlap=overlap)
    decision = decide(one, note(run=after(1)), after(2), is_open=True)
    assert ran(decision) == expected
    assert decide(one, decision.planned, after(2.2), is_open=True).cancels == cancels


def test_a_run_that_waits_begins_when_the_one_before_has_ended() -> None:
    """In the order of their times, and one at a time."""
    waits = note(run=after(1), upto=after(3), waiting=(after(2), after(3)))
    assert ran(decide(schedule(overlap="queue"), waits, after(3.5), is_open=False)) == (2, (3,), 0)


def test_no_more_than_a_hundred_runs_wait() -> None:
    """Else a run that hangs would fill the record that every worker reads."""
    waits = note(run=after(1), upto=after(200), waiting=tuple(range(after(2), after(2) + MOST)))
    planned = decide(schedule(overlap="queue"), waits, after(201), is_open=True).planned
    assert planned is not None
    assert (len(planned.waiting), planned.skipped) == (MOST, 1)


def test_a_pause_plans_nothing_and_its_times_are_not_made_up_for() -> None:
    """Also with catch-up (celery/celery#370, celery/django-celery-beat#537); `run` works in a pause."""
    paused = schedule(paused=True, catch_up="all")
    assert decide(paused, note(run=after(1)), after(50), is_open=False).planned is None
    resumed = msgspec.structs.replace(paused, paused=False, after=after(50))
    assert decide(resumed, note(run=after(1)), after(50.5), is_open=False) == Decision(None, next_at=after(51))
    asked = msgspec.structs.replace(paused, run_at=after(40) + 7)
    planned = decide(asked, note(run=after(1)), after(41), is_open=False).planned
    assert planned is not None
    assert planned.run == after(40) + 7


def test_a_schedule_that_was_removed_and_added_again_begins_anew() -> None:
    """The note about the former one of the name does not count."""
    again = schedule(since=after(100))
    assert ran(decide(again, note(run=after(99)), after(101), is_open=False))[0] == 101
    assert decide(schedule(removed=True), None, after(5), is_open=False) == Decision(None)


class Sleeper:
    """A log with one schedule, and coordinators that die at random between any two of its writes.

    Args:
        seed: Of what is random: deaths, stops of a zombie, lengths of downtimes.
    """

    def __init__(self, one: JobSchedule, seed: int) -> None:
        self.schedule = one
        self.random = random.Random(seed)
        self.known: Planned | None = None
        self.created: list[str] = []
        self.again = 0
        self.deaths = 0
        self._stale: list[Planned] = []

    def dies(self) -> bool:
        """Whether the coordinator dies here."""
        self.deaths += (is_dead := self.random.random() < 0.1)
        return is_dead

    def write(self, planned: Planned) -> None:
        """A note; that of a coordinator that was stopped may come behind later ones."""
        if self._stale and self.random.random() < 0.5:
            late = self._stale.pop()
            if is_newer(late, self.known):
                self.known = late
        if is_newer(planned, self.known):
            self.known = planned
        if self.random.random() < 0.05:
            self._stale.append(planned)

    def live(self, now: float) -> float:
        """One coordinator's turn, up to its death or to where nothing is due; returns when to decide again."""
        while True:
            decision = decide(self.schedule, self.known, now, is_open=False)
            if self.dies():
                return now + self.random.random() * (LATE_S - 60)
            if decision.planned is not None:
                self.write(decision.planned)
            elif decision.begins and self.known is not None:
                self.create(self.known)
            else:
                return decision.next_at
            if self.dies():
                return now + self.random.random() * (LATE_S - 60)

    def create(self, planned: Planned) -> None:
        """Creates the jobs, each once by its name; the coordinator may die before the note that they have begun."""
        for job in planned.jobs:
            self.again += job in self.created[-3:]
            if job not in self.created[-3:]:
                self.created.append(job)
        if not self.dies():
            self.write(msgspec.structs.replace(planned, begun=True))


@pytest.mark.parametrize(
    ("cron", "zone", "days"),
    [
        ("30 2 * * *", "Europe/Berlin", 2_500),
        ("15 1,2 * * *", "America/New_York", 1_250),
        ("0 0-22/11 * * *", "Australia/Lord_Howe", 834),
        ("0 6 * * 1-5", "Asia/Kolkata", 3_500),
    ],
)
def test_each_planned_time_runs_once_whoever_dies(cron: str, zone: str, days: int) -> None:
    """2,500 times for each zone, over years with changes of the clock, with thousands of deaths."""
    begin = 1_767_225_600  # 2026
    world = Sleeper(JobSchedule("s", begin, (JOB,), cron=cron, zone=zone, catch_up="all", overlap="queue"), seed=days)
    now, end = float(begin), begin + 86_400 * days
    while now < end:
        now = world.live(now)
    expected = list(times(rule_of(world.schedule), begin, end - 1))
    names = [job for one in expected for job in run_names(world.schedule, one)]
    created = world.created[: len(names)]
    assert len(names) >= 2_499
    assert created == names
    assert set(Counter(world.created).values()) == {1}
    assert world.deaths > 500
    assert world.again > 50, "deaths between the jobs and their note were tried"
