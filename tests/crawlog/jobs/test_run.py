"""What a run counts of its job, and when; how it says that the job ended."""

import os
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents.seed import source
from crawlog.cli import summary_text
from crawlog.jobs import run as run_module
from crawlog.jobs.order import Order
from crawlog.jobs.run import JobGone, Run
from crawlog.jobs.summary import UNFINISHED, Summary
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.jobs import Finish
from crawlog.streams.settings import Settings


def test_a_run_tells_of_a_pipe_of_seeds_that_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seeds name the job, so nothing begins before their end: `tail -f urls.txt | crawlog run --seeds -`."""
    monkeypatch.setattr(source, "OPEN_S", 0.05)
    monkeypatch.setattr(run_module, "Supervisor", lambda *_: nullcontext())
    monkeypatch.setattr(run_module, "_crawl", lambda order, *_: order.source.__exit__())
    told, pipe, is_told = list[str](), tmp_path / "pipe", threading.Event()
    os.mkfifo(pipe)

    def say(line: str) -> None:
        told.append(line)
        is_told.set()

    def write() -> None:
        with pipe.open("wb") as end:
            end.write(b"http://f.example/\n")
            is_told.wait(10)

    writer = threading.Thread(target=write)
    writer.start()
    summary = run_module.run(Settings(), Order(seeds_file=pipe), SimpleNamespace(say=say))
    writer.join()
    assert [line.partition(": ")[0] for line in told] == [f"{pipe} is open still", f"job {summary.job}"]


def a_run(amended: list[int]) -> Any:
    """A run whose job has ended with one dead letter; `amended` gets the numbers that the end is recorded with."""
    run = object.__new__(Run)
    run.summary = Summary("shop", dead=1)
    run._lines = None
    run._amended = "the end"  # type: ignore[assignment]  # passed on alone
    run.job = SimpleNamespace(amend_end=lambda _, dead: amended.append(dead))  # type: ignore[assignment]  # as above
    run.file = SimpleNamespace(has_all_rows=lambda: True, missing=())  # type: ignore[assignment]  # as above
    return run


def gains_of(dead: int) -> Any:
    """Gains with so many dead letters at the end of crawl.dead."""
    tally = SimpleNamespace(count=dead, items=0, commonest=("KeyError", dead, ""))
    return SimpleNamespace(tally=tally, count_losses=lambda _: None)


def test_dead_letters_of_the_last_items_are_counted_when_the_file_is_made() -> None:
    """They go through their pipelines only then: a job with such an error is not one without."""
    amended: list[int] = []
    run = a_run(amended)
    run._count_late_losses(gains_of(1))
    assert (run.summary.dead, amended) == (1, [])
    run._count_late_losses(gains_of(3))
    assert (run.summary.dead, run.summary.commonest_error, amended) == (3, "KeyError", [3])


def test_a_run_without_a_file_has_no_such_items() -> None:
    """Nothing is read again."""
    run = a_run([])
    run.file = None
    run._count_late_losses(gains_of(3))
    assert run.summary.dead == 1


@pytest.mark.parametrize(("failing", "ends"), [(0, True), (2, True), (3, False)])
def test_a_broker_that_dies_in_the_check_of_the_log_does_not_end_the_run(failing: int, *, ends: bool) -> None:
    """1 the crawl is done → 2 the log is checked → 3 the broker's disk is full → 4 it is started again, and checked."""
    answers = [EngineError("it gives no answer")] * failing
    followed: list[object] = []

    def holds(_: object) -> bool:
        if answers:
            raise answers.pop()
        return True

    def follow(*given: object) -> Finish:
        followed.append(given)
        return Finish("shop", (1,), with_sink=False)

    run: Any = a_run([])
    run.whole, run._vain_checks, run._said = SimpleNamespace(holds=holds, missing=()), 0, ""
    run._shown = SimpleNamespace(say=lambda _: None)
    run._seeded, run.planting = (1,), SimpleNamespace(lost=tuple)
    run._follow = follow
    for name in ("_count_losses", "_await_end", "_record", "_sum_stats", "_write_file", "_count_late_losses"):
        setattr(run, name, lambda *_: None)
    with nullcontext() if ends else pytest.raises(EngineError):
        run._end(None, None)
    assert len(followed) == min(failing + 1, 3)


@pytest.mark.parametrize(
    ("state", "reason", "told", "again", "line"),
    [
        ("finished", "", "finished", "already_finished", "was finished already; --fresh crawls it again"),
        ("stopped", "max_pages", "max_pages", "already_finished", "is reached; a larger --max-pages lets it go on"),
        ("stopped", "enough", "closed", "already_finished", "its spider already: enough; --fresh crawls it again"),
        ("stopped", "operator", "stopped", "stopped", "the same command goes on"),
        ("cancelled", "", "cancelled", "cancelled", "--fresh crawls it again from its seeds"),
    ],
)
@pytest.mark.parametrize("is_at_once", [False, True])
def test_a_run_says_how_its_job_ended_and_so_does_the_next_one(
    state: Any, reason: str, told: str, again: str, line: str, *, is_at_once: bool
) -> None:
    """A job that `jobs stop` stopped has not ended for a run: it makes no file, then or later."""
    end, copy = Finished("shop", 1.0, reason=reason or state), JobCopy("shop", JobSpec(state=state, reason=reason))
    for known, expected in ((None, told), (end, again)):
        run = a_run([])
        run.file = None
        run.job = SimpleNamespace(end=known, copy=copy, amend_end=lambda *_: None, note_new_spider=lambda: None)
        if known and is_at_once:
            run._end_at_once()
        else:
            run._record(SimpleNamespace(end=end, copy=copy), SimpleNamespace(pages=lambda: 0))
        assert run.summary.reason == expected
        assert (run.summary.reason in UNFINISHED) == (expected in ("stopped", "cancelled"))
        said, *_ = summary_text.lines(run.summary)
        assert said.endswith(line) or known is None


@pytest.mark.parametrize(
    ("is_deleted", "begun_again", "told"),
    [(True, False, "deleted"), (False, True, "begun_again"), (True, True, "deleted")],
)
def test_a_run_whose_job_is_gone_makes_no_file(told: str, *, is_deleted: bool, begun_again: bool) -> None:
    """Rows of what another command began would be in it, too."""
    run = a_run([])
    run.summary.epoch = 3
    tail: Any = SimpleNamespace(poll=list, is_deleted=is_deleted, has_begun_again=lambda epoch: begun_again and epoch)
    with pytest.raises(JobGone) as gone:
        run._hear(tail)
    assert str(gone.value) == told
    assert told in UNFINISHED
    tail.is_deleted, run.summary.epoch = False, 0
    run._hear(tail)


def test_a_run_of_a_failed_job_says_why_it_failed() -> None:
    """No summary tells that."""
    with pytest.raises(Misconfigured, match="job shop failed: spider_broken"):
        Summary("shop").tell_end("failed", "spider_broken")
