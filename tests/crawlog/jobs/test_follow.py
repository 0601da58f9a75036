"""Following a job of a fleet: what signals do, and when the job has ended."""

import json
import os
import signal
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from crawlog.cli import summary_text
from crawlog.commands import export
from crawlog.jobs import changes, follow, joined
from crawlog.jobs.follow import Before
from crawlog.jobs.job_outputs import JobOutputs
from crawlog.jobs.live import Pace
from crawlog.jobs.summary import Summary
from crawlog.schemas import control
from crawlog.schemas.control import Command, Control, Finished, JobCopy, OutputNote, Rewound
from crawlog.schemas.job_orders import PIPELINES_ALONE, OutputSpec
from crawlog.schemas.progress import IDLE, JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.dead_letters import LetterTally
from crawlog.streams.errors import EngineError, InvalidState
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.jobs import EndSteps
from crawlog.streams.settings import Settings
from tests.support.finalizing import signal_in_a_finalizer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_came_in_a_finalizer_detaches_at_the_next_look() -> None:
    """Python drops what a finalizer raises: the command would follow the job to its end, whatever comes then."""
    signals = joined.Signals()
    with signals.heard():
        signals.look()
        signal_in_a_finalizer(signal.SIGTERM)
        with pytest.raises(joined.Detach) as detach:
            signals.look()
        assert detach.value.number == signal.SIGTERM
        assert not signals.is_again
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.is_again


@pytest.mark.parametrize(
    ("times", "output", "told", "files"),
    [
        (1, "rows.csv", (130, "detached", None), []),
        (2, "rows.csv", (7, "cancelled", "rows.csv.partial"), ["rows.csv"]),
        (3, "rows.csv", (7, "cancelled", None), ["rows.csv"]),
        (2, "-", (7, "cancelled", None), []),
    ],
)
def test_ctrl_c_leaves_the_counts_and_cancelled_jobs_their_rows(
    monkeypatch: pytest.MonkeyPatch, times: int, output: str, told: tuple[int, str, str | None], files: list[str]
) -> None:
    """A third Ctrl-C ends the writing of FILE.partial; the summary then says how to get the rows."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the suite itself may run under `nohup`
    follower, written = a_follower(fetched=19), []
    follower.until_ended = lambda: os.kill(os.getpid(), signal.SIGINT)
    follower._view = SimpleNamespace(look=lambda ask: ask(follower.state))
    follower.close = lambda: None

    def following(_fleet: object, summary: Summary, *_: object) -> Any:
        follower._summary = summary
        return follower

    def say(line: str) -> None:
        if times > 1 and "detached" in line:
            os.kill(os.getpid(), signal.SIGINT)

    def export_job(_settings: Settings, job: str, output: str) -> export.Exported:
        written.append(output)
        if times > 2:
            os.kill(os.getpid(), signal.SIGINT)
        return export.Exported(job, f"{output}.partial", 19, is_complete=False, state="cancelled")

    monkeypatch.setattr(joined, "JobFollower", following)
    monkeypatch.setattr(joined, "AGAIN_S", 0.01)
    monkeypatch.setattr(changes, "cancel_job", lambda *_: None)
    monkeypatch.setattr(export, "export_job", export_job)
    shown: Any = SimpleNamespace(say=say, close=lambda: None)
    summary = joined.follow(Settings(), JobView("shop", "running"), Before(), shown, began=0.0, outputs=(output,))
    said = json.loads(summary_text.as_json(summary))
    assert (summary_text.exit_code(summary), said["reason"], said["partial"]) == told
    assert (said["fetched"], said["pages"], written) == (19, 19, files)
    names_export = "`crawlog export --job shop -o FILE`" in "".join(summary_text.lines(summary))
    assert names_export == (told[1:] == ("cancelled", None))


@pytest.mark.parametrize(
    ("reason", "output", "told"),
    [
        ("finished", "rows.csv", "interrupted"),
        ("cancelled", "rows.csv", "cancelled"),
        ("finished", None, "finished"),
    ],
)
def test_ctrl_c_behind_the_end_of_a_job_does_not_say_that_it_goes_on(
    reason: str, output: str | None, told: str
) -> None:
    """The same command writes FILE. Nor is it an offer to cancel the job."""
    summary = Summary("shop", reason=reason, output=output, signal=signal.SIGINT)
    shown = SimpleNamespace(say=pytest.fail)
    joined._leave_off(Settings(), summary, joined.Signals(), cast("Any", shown))
    assert (summary.reason, summary_text.exit_code(summary)) == (told, 130)


def test_two_ctrl_c_on_a_job_that_has_ended_meanwhile_leave_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, for its rows are whole; the command ends as with one Ctrl-C."""
    said: list[str] = []
    monkeypatch.setattr(changes, "cancel_job", Mock(side_effect=InvalidState("job shop has ended")))
    summary, shown = Summary("shop", reason="detached", signal=signal.SIGINT), SimpleNamespace(say=said.append)
    joined._cancel(Settings(), summary, cast("Any", shown))
    assert (summary.reason, summary_text.exit_code(summary), said) == ("detached", 130, ["job shop has ended"])


def a_follower(*commands: Command, **counts: Any) -> Any:
    """A follower of a job of one partition, whose reports have these counts."""
    follower: Any = object.__new__(follow.JobFollower)
    state = FleetState()
    state.hear(b"job/shop", JobCopy("shop", JobSpec()))
    for command in commands:
        state.hear(control.key(command), command)
    state.report(Progress("fetch-0", "fetch", 0, 1.0, offset=5, jobs={"shop": JobCounts(**counts)}), 1.0)
    state.report(Progress("parse-0", "parse", 0, 1.0, offset=5), 1.0)
    follower._summary, follower._is_left_open, follower._is_own = Summary("shop"), False, False
    follower._before, follower._unreported, follower._settings = None, 0, Settings()
    follower._seeded, follower._finish = (5,), EndSteps("shop", (5,))
    follower._ends = lambda _: (5,)
    follower._letters = SimpleNamespace(tally=LetterTally("shop"))
    follower.state = state
    return follower


BLOCK = Command("block", host="a.test")
PAUSE = Command("pause", job="shop")


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
    assert not follower._has_ended(follower.state)
    follower.state.hear(b"finished/shop", Finished("shop", 1.0, reason="enough"))
    assert follower._has_ended(follower.state)
    assert not follower._is_left_open


def test_a_job_whose_record_is_not_read_yet_has_not_ended() -> None:
    """A `run` follows its job from before it writes the record. A deleted job has ended."""
    follower = a_follower()
    follower._summary = Summary("new")
    assert not follower._has_ended(follower.state)
    follower.state.hear(b"job/new", JobCopy("new", JobSpec(state="deleted")))
    assert follower._has_ended(follower.state)


def test_a_job_at_its_limit_has_ended_when_parse_has_caught_up() -> None:
    """The coordinator stops it first, and notes its end when the rows of all pages are in the log."""
    follower = a_follower(held=2, fetched=12)
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=9, state="stopped", reason="max_pages")))
    assert not follower._has_ended(follower.state)
    follower.state.hear(b"finished/shop", Finished("shop", 1.0, reason="max_pages", rev=9))
    assert follower._has_ended(follower.state)


@pytest.mark.parametrize(("spec", "commands"), [(JobSpec(rev=9, state="paused"), ()), (JobSpec(), (PAUSE,))])
def test_progress_tells_a_paused_job_from_one_that_a_command_pauses(
    spec: JobSpec, commands: tuple[Command, ...]
) -> None:
    """Another command lets it go on."""
    follower = a_follower(*commands, queued=2, paused=2)
    follower.state.hear(b"job/shop", JobCopy("shop", spec))
    follower._pace, follower._began = Pace(), 0.0
    frame = follower._frame(follower.state, {}, 1.0)
    assert (frame.paused, frame.state) == ("paused", spec.state)


def test_following_a_job_ends_when_it_is_deleted() -> None:
    """Nothing is left that could be exported."""
    follower = a_follower(queued=2)
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=9, state="deleted")))
    assert follower._has_ended(follower.state)
    follower._sum_up(follower.state)
    assert follower._summary.reason == "deleted"


def test_following_a_job_ends_when_another_command_begins_it_again() -> None:
    """FILE would have the rows of that one's seeds; a rewind of the crawl has the job go on."""
    follower, rewound = a_follower(queued=2), Rewound(1, start={0: 0}, before={"shop": 0})
    follower.state.hear(control.key(rewound), rewound)
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=2), epoch=1))
    assert not follower._has_ended(follower.state)
    follower._view, follower.outputs = SimpleNamespace(has_fleet=lambda _: True), JobOutputs("shop", print)
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=3, outputs=(ROWS,)), epoch=2))
    assert follower._is_through(follower.state)
    follower._sum_up(follower.state)
    assert follower._summary.reason == "begun_again"


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
    follower._before, follower._summary.epoch = known, 1
    follower.state.hear(b"job/shop", JobCopy("shop", JobSpec(rev=9, state="finished"), epoch=1))
    end = Finished("shop", 1.0, counts=JobCounts(fetched=7), epoch=1, rev=9)
    follower.state.hear(b"finished/shop", end)
    follower._sum_up(follower.state)
    assert (follower._summary.pages, follower._summary.reason) == (pages, told)
    assert follower._summary.known == ("finished" if told == "already_finished" else "")


ROWS = OutputSpec("rows.jsonl")
SINK = Progress("sink-0", "sink", 0, 1.0, pid=1, supervisor="up")
IDLE_SINK = Progress("sink-1", IDLE, -1, 1.0, pid=2, supervisor="up", idle_stage="sink")
SINK_OF_A_RUN = Progress("sink-0", "sink", 0, 1.0, pid=1, supervisor="run")


def an_ended(output: OutputSpec, *notes: OutputNote, workers: tuple[Progress, ...] = (SINK,), **how: Any) -> Any:
    """A follower of a job that has ended, by default finished, with this output."""
    follower = a_follower()
    said: list[str] = []
    for report in workers:
        follower.state.report(report, 1.0)
    follower._view = SimpleNamespace(has_fleet=lambda stage: follower.state.supervisors(stage, 1.0) - {"run"})
    follower.outputs, follower.said = JobOutputs("shop", said.append), said
    spec = JobSpec(rev=9, outputs=(output,), **{"state": "finished", **how})
    records: tuple[Control, ...] = JobCopy("shop", spec), Finished("shop", 1.0, urls=(5,), rev=9), *notes
    for record in records:
        follower.state.hear(control.key(record), record)
    return follower


@pytest.mark.parametrize(
    ("follower", "is_through"),
    [
        (an_ended(ROWS), False),
        (an_ended(ROWS, workers=()), False),
        (an_ended(ROWS, OutputNote("shop", "rows.jsonl", 1.0, rev=9)), True),
        (an_ended(ROWS, OutputNote("shop", "rows.jsonl", 1.0, rev=7)), False),  # of an earlier end
        (an_ended(ROWS, OutputNote("shop", "rows.jsonl", 1.0, rev=9, error="full")), True),
        (an_ended(ROWS, state="stopped", reason="max_pages"), False),
        (an_ended(ROWS, state="stopped", reason="operator"), True),
        (an_ended(ROWS, state="cancelled"), True),
        (an_ended(PIPELINES_ALONE), False),
        (an_ended(PIPELINES_ALONE, workers=()), True),
        (an_ended(PIPELINES_ALONE, workers=(SINK_OF_A_RUN,)), True),
        (an_ended(PIPELINES_ALONE, workers=(IDLE_SINK,)), True),
        (an_ended(PIPELINES_ALONE, OutputNote("shop", "none", 1.0, rev=9)), True),
    ],
)
def test_following_ends_when_the_outputs_are_made(follower: Any, is_through: bool) -> None:
    """FILE is made, and pipelines are closed, after the job's end; their dead letters come until then."""
    assert follower._is_through(follower.state) == is_through


@pytest.mark.parametrize(
    ("output", "workers", "told"),
    [
        (ROWS, (SINK,), "the sink worker is not through with rows.jsonl yet"),
        (ROWS, (), "no sink worker runs: rows.jsonl must wait for one"),
        (PIPELINES_ALONE, (SINK,), "the sink worker is not through with the pipelines yet"),
    ],
)
def test_a_long_wait_for_outputs_is_told_once(output: OutputSpec, workers: tuple[Progress, ...], told: str) -> None:
    """The job has ended, and the progress shows nothing."""
    follower = an_ended(output, workers=workers)
    follower.outputs.tell_wait(0.0)
    follower._is_through(follower.state)
    for now in (1.0, 11.0, 22.0, 33.0):
        follower.outputs.tell_wait(now)
    assert [line.partition(";")[0] for line in follower.said] == [told]


def test_an_output_that_fails_while_the_job_goes_on_is_told_once_and_waited_for() -> None:
    """A job waits for its outputs, so its end does not come; a worker may declare this one, or the disk be freed."""
    follower = an_ended(ROWS, state="running")
    follower.state.hear(b"finished/shop", None)
    told: list[str] = []
    for error in ("full", "full", "", "full"):
        note = OutputNote("shop", "rows.jsonl", 1.0, rev=9 if error else 0, error=error)
        follower.state.hear(control.key(note), note)
        assert not follower._is_through(follower.state)
        follower.outputs.tell_failed()
        told.append("; ".join(follower.said))
        follower.said.clear()
    failed = "output rows.jsonl failed: full; it is tried again, and the job may wait for it"
    assert told == [failed, "", "output rows.jsonl is written again", failed]
    follower.outputs.check()


def test_an_output_that_could_not_be_made_is_an_error() -> None:
    """As a FILE that a run cannot make; one of an end that makes none is no matter."""
    note = OutputNote("shop", "rows.jsonl", 1.0, rev=9, error="the disk is full")
    cancelled, finished = an_ended(ROWS, note, state="cancelled"), an_ended(ROWS, note)
    for follower in (cancelled, finished):
        follower._is_through(follower.state)
    cancelled.outputs.check()
    with pytest.raises(EngineError, match=r"output rows\.jsonl of job shop: the disk is full"):
        finished.outputs.check()


def test_dead_letters_count_from_before_the_job_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pages fail before this command begins to follow."""
    began: list[int] = []
    monkeypatch.setattr(follow, "partition_count", lambda _: 1)
    monkeypatch.setattr(follow, "Admin", lambda _: SimpleNamespace(ends=lambda topics, _: dict.fromkeys(topics, (5,))))
    monkeypatch.setattr(follow, "FleetView", lambda *_, **__: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(follow, "DeadLetterReader", lambda _settings, _job, start: began.append(start))
    monkeypatch.setattr(follow, "SpiderLines", lambda *_: None)
    before = follow.Before(dead=3)
    follow.JobFollower(
        SimpleNamespace(settings=Settings(), watch=None), Summary("shop"), before, SimpleNamespace(say=print)
    )
    assert began == [3]
