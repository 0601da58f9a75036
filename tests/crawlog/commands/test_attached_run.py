"""Following a job of a fleet: what signals do, and when the job has ended."""

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.commands import attached_run
from crawlog.commands.summary import Summary
from crawlog.schemas import control
from crawlog.schemas.control import Command, Finished, JobCopy
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams import fleet, log
from crawlog.streams.fleet import Finish, FleetState, JobView
from crawlog.streams.settings import Settings
from tests.support.finalizing import signal_in_a_finalizer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_came_in_a_finalizer_detaches_at_the_next_look() -> None:
    """Python drops what a finalizer raises: the command would follow the job to its end, whatever comes then."""
    signals = attached_run._Signals()
    with signals.heard():
        signals.look()
        signal_in_a_finalizer(signal.SIGTERM)
        with pytest.raises(attached_run.Detach) as detach:
            signals.look()
        assert detach.value.number == signal.SIGTERM
        assert not signals.is_again
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.is_again


def a_follower(*commands: Command, **counts: Any) -> Any:
    """A follower of a job of one partition, whose reports have these counts."""
    follower, state = object.__new__(attached_run.FleetFollower), FleetState()
    state.hear(b"job/shop", JobCopy("shop", JobSpec()))
    for command in commands:
        state.hear(control.key(command), command)
    state.report(Progress("fetch-0", "fetch", 0, 1.0, offset=5, jobs={"shop": JobCounts(**counts)}), 1.0)
    state.report(Progress("parse-0", "parse", 0, 1.0, offset=5), 1.0)
    follower._summary, follower._is_left_open, follower._known = Summary("shop"), False, None
    follower._seeded, follower._finish = (5,), Finish("shop", (5,), with_sink=False)
    follower._ends = SimpleNamespace(ends=lambda _: (5,))  # type: ignore[assignment]  # all that it is asked for
    follower.state = state  # type: ignore[attr-defined]  # for tests
    return follower


BLOCK = Command("block", host="a.test")


@pytest.mark.parametrize(
    ("commands", "counts", "told"),
    [
        ([BLOCK], {"held": 2, "fetched": 1}, ("blocked", "a.test")),
        ([BLOCK, Command("block", host="b.test")], {"held": 2}, ("blocked", "HOST")),
        ([BLOCK], {"held": 2, "queued": 1}, None),
        ([BLOCK], {"held": 2, "in_flight": 1}, None),
        ([], {"held": 2}, None),
        ([Command("stop", job="shop")], {"held": 2}, ("stopped", "HOST")),
        ([Command("stop", job="shop")], {"held": 2, "in_flight": 1}, None),
    ],
)
def test_following_ends_where_commands_hold_all_that_is_left(
    commands: list[Command], counts: dict[str, int], told: tuple[str, str] | None
) -> None:
    """As a run does: such a job has no end that could be waited for."""
    follower = a_follower(*commands, **counts)
    assert follower._has_ended(follower.state) == follower._is_left_open == (told is not None)
    if told is not None:
        follower._sum_up(follower.state)
        assert (follower._summary.reason, follower._summary.blocked) == told
        assert follower._summary.counts.held == 2


def test_the_end_of_a_job_that_its_spider_closed_is_waited_for() -> None:
    """The coordinator records it."""
    follower = a_follower(Command("stop", job="shop", reason="enough"), held=2)
    assert follower._has_ended(follower.state)
    assert not follower._is_left_open


def test_following_a_job_ends_when_it_is_deleted() -> None:
    """Nothing is left that could be exported."""
    follower = a_follower(queued=2)
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=9, state="deleted")))
    assert follower._has_ended(follower.state)
    follower._sum_up(follower.state)
    assert follower._summary.reason == "deleted"


@pytest.mark.parametrize(
    ("known", "pages", "told"),
    [
        (None, 7, "finished"),
        (JobView("shop", "finished", epoch=0, rev=4, counts=JobCounts(fetched=7)), 7, "finished"),  # before --fresh
        (JobView("shop", "running", epoch=1, rev=4, counts=JobCounts(fetched=3)), 4, "finished"),
        (JobView("shop", "finished", epoch=1, rev=4, counts=JobCounts(fetched=3)), 4, "finished"),  # new URLs
        (JobView("shop", "finished", epoch=1, rev=9, counts=JobCounts(fetched=7)), 0, "already_finished"),
    ],
)
def test_pages_count_from_before_the_job_was_submitted(known: JobView | None, pages: int, told: str) -> None:
    """A fleet may have fetched all of them before the first report arrives here."""
    follower = a_follower()
    follower._known = known
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=9, state="finished"), epoch=1))
    end = Finished("shop", 1.0, counts=JobCounts(fetched=7), epoch=1, rev=9)
    follower.state.hear(b"finished/shop", end)
    follower._sum_up(follower.state)
    assert (follower._summary.pages, follower._summary.reason) == (pages, told)


def test_dead_letters_count_from_before_the_job_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pages fail before this command begins to follow."""
    began: list[int] = []
    monkeypatch.setattr(log, "partition_count", lambda _: 1)
    monkeypatch.setattr(
        fleet, "Watch", lambda *_: SimpleNamespace(ends=lambda _: (5,), dead_end=lambda: 9), raising=False
    )
    monkeypatch.setattr(fleet, "FleetView", lambda _: SimpleNamespace(start=lambda: None), raising=False)
    monkeypatch.setattr(fleet, "Losses", lambda _settings, _job, start: began.append(start), raising=False)
    before = attached_run.Before(dead=3)
    attached_run.FleetFollower(Settings(), Summary("shop"), before, SimpleNamespace())
    assert began == [3]
