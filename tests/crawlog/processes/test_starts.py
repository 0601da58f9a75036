"""Which jobs' `start` runs, and when."""

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents.job_lines import JobLines
from crawlog.processes import starts
from crawlog.processes.starts import Starts
from crawlog.schemas.control import Command, JobCopy, StartEnded, key_of
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import JobSpec
from crawlog.streams.jobs import ControlState
from crawlog.streams.settings.settings import Settings
from tests.support.control_records import control_of


def test_the_start_of_a_former_epoch_ends_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests would be taken for seeds of the new epoch, which may have other arguments."""
    events: list[tuple[str, int]] = []
    state = ControlState()

    def begun(copy: JobCopy, *_: object) -> Any:
        events.append(("begins", copy.epoch))

        def event(what: str) -> Callable[[], None]:
            return lambda: events.append((what, copy.epoch))

        return SimpleNamespace(is_running=True, is_loading=False, look=event("gives"), close=event("ends"))

    ends = iter(range(9))
    monkeypatch.setattr(starts, "Starting", begun)
    monkeypatch.setattr(starts, "JOBS_LOOK_S", 0.0)
    monkeypatch.setattr("crawlog.streams.control.read_control", lambda *_: state)
    watch = SimpleNamespace(control_end=lambda: next(ends))
    looks = Starts(SimpleNamespace(settings=Settings(), watch=watch), list[str]().append)
    spec = JobSpec(starts=True, code=CodeRef("shop", "1", "00" * 32))
    for epoch in (0, 1):
        state.take(key_of("job", "j"), JobCopy("j", spec, epoch))
        looks.look()
    state.take(key_of("job", "j"), JobCopy("j", msgspec.structs.replace(spec, state="stopped"), 1))
    looks.look()
    assert events == [("begins", 0), ("gives", 0), ("ends", 0), ("begins", 1), ("gives", 1), ("ends", 1)]


def test_a_start_with_every_waits_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record comes meanwhile. A stop while it waits holds."""
    begun: list[float] = []
    now = [100.0]

    def begin(copy: JobCopy, follower: object, say: object, after: float) -> Any:
        begun.append(after)
        return SimpleNamespace(is_running=False, is_loading=False, look=lambda: None, close=lambda: None)

    spec = JobSpec(starts=True, every=60.0, code=CodeRef("shop", "1", "00" * 32))
    state = control_of(JobCopy("j", spec), StartEnded("j", 90.0))
    monkeypatch.setattr(starts, "Starting", begin)
    monkeypatch.setattr(starts, "JOBS_LOOK_S", 0.0)
    monkeypatch.setattr("crawlog.streams.control.read_control", lambda *_: state)
    watch = SimpleNamespace(control_end=lambda: len(state.records))
    looks = Starts(SimpleNamespace(settings=Settings(), watch=watch), print, clock=lambda: now[0])
    looks.look()
    now[0] = 149.0
    looks.look()
    assert not begun
    now[0] = 151.0
    looks.look()
    looks.look()
    assert begun == [90.0]
    state.take(key_of("start", "j"), StartEnded("j", 152.0))
    state.take(key_of("command", "job", "j"), Command("stop", job="j"))
    now[0] = 999.0
    looks.look()
    assert begun == [90.0]


class Begun:
    """A `start` that goes on."""

    is_running, is_loading = True, False

    def __init__(self, copy: JobCopy, *_: object) -> None:
        self.job = copy.job

    def look(self) -> None:
        """Nothing."""


class Waiting:
    """Six jobs, the last one submitted first, and which of them have begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int = 32) -> None:
        self.begun, self.told, self.lines = list[Begun](), list[str](), JobLines("host", "start")
        spec = JobSpec(starts=True, code=CodeRef("shop", "1", "00" * 32))
        copies = [JobCopy(f"j{n}", msgspec.structs.replace(spec, at=10.0 - n)) for n in range(6)]
        state = control_of(*copies)
        monkeypatch.setattr(starts, "Starting", self._begin)
        monkeypatch.setattr(starts, "JOBS_LOOK_S", 0.0)
        monkeypatch.setattr(starts, "start_lines", lambda: self.lines)
        monkeypatch.setattr("crawlog.streams.control.read_control", lambda *_: state)
        settings = Settings.model_validate({"spider": {"starts": most}})
        watch = SimpleNamespace(control_end=lambda: 1)
        self._starts = Starts(SimpleNamespace(settings=settings, watch=watch), self.told.append)

    def _begin(self, copy: JobCopy, *_: object) -> Begun:
        self.begun.append(Begun(copy))
        return self.begun[-1]

    def look(self) -> list[str]:
        """Looks; the jobs that have begun so far."""
        self._starts.look()
        return [one.job for one in self.begun]


def test_no_more_begin_than_may_run_in_the_order_in_which_they_were_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a process: a hundred jobs that are submitted at once would take the machine's memory."""
    jobs = Waiting(monkeypatch, most=2)
    assert jobs.look() == ["j5", "j4"]
    assert jobs.look() == ["j5", "j4"]
    jobs.begun[0].is_running = False
    jobs.look()
    assert jobs.look() == ["j5", "j4", "j3"]


def test_few_spiders_are_loaded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them would come to the limit of time for loading, and take the CPU of the workers."""
    monkeypatch.setattr(Begun, "is_loading", True)
    jobs = Waiting(monkeypatch)
    assert jobs.look() == ["j5", "j4", "j3", "j2"]
    jobs.begun[1].is_loading = False
    assert jobs.look() == ["j5", "j4", "j3", "j2", "j1"]
    assert not jobs.told


def test_a_job_whose_start_waits_for_another_one_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may be endless."""
    jobs = Waiting(monkeypatch, most=5)
    jobs.look()
    jobs.look()
    assert jobs.told == ["`start` of job j0 waits until one of 5 others here has ended (spider.starts)"]
    [record] = jobs.lines.take()
    assert record.job == "j0"
    assert [line.source for line in record.lines] == ["start_waits"]


def test_jobs_that_cannot_be_looked_at_end_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """`crawlog up` goes on, says the error, and looks again."""
    monkeypatch.setattr(starts, "BROKEN_S", 0.0)
    ends: list[Any] = []
    said: list[str] = []

    def control_end() -> int:
        ends.append(None)
        if len(ends) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return -1  # as before: nothing to begin

    looks = Starts(SimpleNamespace(settings=Settings(), watch=SimpleNamespace(control_end=control_end)), said.append)
    looks.look()
    looks.look()
    assert len(ends) == 2
    assert "Too many open files" in said[-1]
