"""Which jobs' `start` runs, and when."""

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.processes import starts
from crawlog.processes.starts import Starts
from crawlog.schemas.control import Control, JobCopy
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import JobSpec
from crawlog.streams.settings.settings import Settings


def test_the_start_of_a_former_epoch_ends_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests would be taken for seeds of the new epoch, which may have other arguments."""
    events: list[tuple[str, int]] = []
    said: dict[bytes, Control] = {}

    def begun(copy: JobCopy, *_: object) -> Any:
        events.append(("begins", copy.epoch))

        def event(what: str) -> Callable[[], None]:
            return lambda: events.append((what, copy.epoch))

        return SimpleNamespace(is_running=True, look=event("gives"), close=event("ends"))

    ends = iter(range(9))
    monkeypatch.setattr(starts, "Starting", begun)
    monkeypatch.setattr(starts, "JOBS_LOOK_S", 0.0)
    monkeypatch.setattr("crawlog.streams.log.control_entries", lambda *_: said)
    watch = SimpleNamespace(control_end=lambda: next(ends))
    looks = Starts(SimpleNamespace(settings=Settings(), watch=watch), list[str]().append)
    spec = JobSpec(starts=True, code=CodeRef("shop", "1", "00" * 32))
    for epoch in (0, 1):
        said[b"job/j"] = JobCopy("j", spec, epoch)
        looks.look()
    said[b"job/j"] = JobCopy("j", msgspec.structs.replace(spec, state="stopped"), 1)
    looks.look()
    assert events == [("begins", 0), ("gives", 0), ("ends", 0), ("begins", 1), ("gives", 1), ("ends", 1)]


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
