"""What a run counts of its job, and when; how it says that the job ended."""

import os
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog import outcome
from crawlog.agents.seed import source
from crawlog.cli import summary_text
from crawlog.jobs import run as run_module
from crawlog.jobs.record import Wanted
from crawlog.jobs.request import JobRequest, LocalParts
from crawlog.jobs.run import PrivateFleet
from crawlog.jobs.run_checks import Trouble
from crawlog.jobs.summary import UNFINISHED, Summary
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.fleet import OutputView
from crawlog.streams.job_spec import NO_SPIDER
from crawlog.streams.jobs import FleetReports
from crawlog.streams.settings import Settings


def test_a_run_tells_of_a_pipe_of_seeds_that_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seeds name the job, so nothing begins before their end: `tail -f urls.txt | crawlog run --seeds -`."""
    monkeypatch.setattr(source, "OPEN_S", 0.05)
    supervisor = SimpleNamespace(launch=lambda: None, picture=FleetReports(), settings=Settings())
    monkeypatch.setattr(run_module, "Supervisor", lambda *_: nullcontext(supervisor))
    monkeypatch.setattr(run_module, "_crawl", lambda *_, **__: None)
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
    summary = run_module.run(Settings(), JobRequest(), LocalParts((str(pipe),)), SimpleNamespace(say=say))
    writer.join()
    assert [line.partition(": ")[0] for line in told] == [f"{pipe} is open still", f"job {summary.job}"]


def a_fleet(**parts: Any) -> Any:
    """A run whose workers answer at once, and whose job has ended with one dead letter."""
    fleet = object.__new__(PrivateFleet)
    fleet.summary = Summary("shop", reason="finished", counts=JobCounts(fetched=2), dead=1, output="rows.jsonl")
    fleet.supervisor = SimpleNamespace(ends=lambda _: (2,), lost_founds=())  # type: ignore[assignment]  # all that is asked
    fleet.outputs, fleet._vain_checks = None, 0
    fleet._wanted, fleet._dumps_stats = Wanted(JobRequest(outputs=("rows.jsonl",)), "shop", NO_SPIDER), False
    fleet._losses = SimpleNamespace(missing=(), was_damaged=False, holds=lambda *_: True)  # type: ignore[assignment]  # as above
    fleet._shown = SimpleNamespace(say=lambda _: None, close=lambda: None)
    for name, part in parts.items():
        setattr(fleet, name, part)
    return fleet


END = Finished("shop", 1.0, reason="finished", rev=4)


def following(end: Finished | None = END) -> Any:
    """A follower of a job that has ended so."""

    def until_made(views: Any) -> bool:
        while any(view.state == "writing" for view in views()):
            pass
        return True

    return SimpleNamespace(end=end, until_ended=lambda: None, until_made=until_made, count_letters=lambda _: None)


@pytest.mark.parametrize(("failing", "ends"), [(0, True), (2, True), (3, False)])
def test_a_broker_that_dies_in_the_check_of_the_log_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, failing: int, *, ends: bool
) -> None:
    """1 the crawl is done → 2 the log is checked → 3 the broker's disk is full → 4 it is started again, and checked."""
    answers = [EngineError("it gives no answer")] * failing
    settled: list[object] = []

    def holds(*_: object) -> bool:
        if answers:
            raise answers.pop()
        return True

    fleet = a_fleet(_losses=SimpleNamespace(holds=holds, missing=()), _settle=settled.append)
    fleet.job = SimpleNamespace(end=None, was_back=0, plan=None)
    monkeypatch.setattr(run_module, "amend_end", lambda *_, **__: None)
    with nullcontext() if ends else pytest.raises(EngineError):
        fleet._follow(following())
    assert len(settled) == min(failing, 2)


class Broker:
    """A broker that dies, or gives no answer for a while."""

    def __init__(self, *, dies: bool) -> None:
        self.dies = dies

    def alive(self) -> bool:
        return not self.dies


@pytest.mark.parametrize(
    ("brokers", "stalled_s", "ends"),
    [
        ([True] * 5, 0.0, True),  # each of five dies
        ([True, False, False], 0.0, True),  # one dies, and its leaders do not answer yet
        ([False] * 2, 60.0, True),  # it stands still for a while
        ([False], 0.0, False),
        ([None], 60.0, False),  # a cluster that others run
    ],
)
def test_a_broker_that_dies_while_the_job_is_written_does_not_end_the_run(
    brokers: list[bool | None], stalled_s: float, *, ends: bool
) -> None:
    """1 the record is sent → 2 the broker dies → 3 it is started again → 4 the job is read, and written, again."""
    left = [None if dies is None else Broker(dies=dies) for dies in brokers]
    done: list[str] = []

    def write() -> None:
        done.append("write")
        if left:
            raise EngineError("it gives no answer")

    def look(_: float) -> None:
        done.append("look")
        del left[0]
        supervisor.engine = left[0] if left else Broker(dies=False)

    supervisor = SimpleNamespace(
        engine=left[0], look=look, lost_founds=(), has_lost_founds=False, go=lambda *_: None, picture=FleetReports()
    )
    fleet = a_fleet(supervisor=supervisor)
    job = SimpleNamespace(write=write, recall=lambda **_: done.append("recall"))
    fleet.job = job
    with nullcontext() if ends else pytest.raises(EngineError):
        fleet._until_answered(job.write, fleet._write_again, stalled_s)
    assert done[:4] == ["write", "look", "recall", "write"] or (not ends and done == ["write"])
    assert done.count("write") == (len(brokers) + 1 if ends else len(brokers))


@pytest.mark.parametrize(
    ("state", "reason", "told", "line"),
    [
        ("finished", "", "already_finished", "was finished already; --fresh crawls it again"),
        ("watching", "", "already_finished", "the same command goes on later, or `crawlog up` does by itself"),
        ("stopped", "max_pages", "already_finished", "is reached; a larger --max-pages lets it go on"),
        ("stopped", "enough", "already_finished", "its spider already: enough; --fresh crawls it again"),
        ("stopped", "operator", "stopped", "the same command goes on"),
        ("cancelled", "", "cancelled", "--fresh crawls it again from its seeds"),
    ],
)
def test_a_run_of_a_job_that_has_ended_says_how(state: Any, reason: str, told: str, line: str) -> None:
    """A job that `jobs stop` stopped has not ended for a run: it makes no file, then or later."""
    fleet, copy = a_fleet(), JobCopy("shop", JobSpec(state=state, reason=reason))
    fleet.job = SimpleNamespace(end=END)
    fleet._end_at_once(copy)
    assert fleet.summary.reason == told
    assert (told in UNFINISHED) == (told in ("stopped", "cancelled"))
    said, *_ = summary_text.lines(fleet.summary)
    assert said.endswith(line)


@pytest.mark.parametrize("told", ["deleted", "begun_again"])
def test_a_run_whose_job_is_gone_makes_no_file(told: str) -> None:
    """Rows of what another command began would be in it, too."""
    fleet = a_fleet(outputs=object(), job=SimpleNamespace(end=None))
    fleet.summary.reason = told
    fleet._follow(following(None))
    assert told in UNFINISHED


class Outputs:
    """Outputs of a run whose worker has found that two rows lack."""

    def __init__(self, *, are_made_again: bool) -> None:
        self.missing: tuple[str, ...] = ()
        self.released: list[Finished] = []
        self._looks = 0
        self._are_made_again = are_made_again

    def has_rows(self, ends: tuple[int, ...]) -> bool:
        """All are read."""
        return ends == (2,)

    def made_again(self) -> None:
        """Rows were made again."""

    def release(self, end: Finished) -> None:
        """The files may be made."""
        self.released.append(end)

    def lacks_more(self) -> bool:
        """At the first look; at the second one, too, unless they are made again."""
        self._looks += 1
        if self._looks == 2 and not self._are_made_again:
            self.missing = ("crawl.items lost the rows of 2 pages",)
        return self._looks == 1 or bool(self.missing)

    def views(self, _: Finished) -> list[OutputView]:
        """Made at the third look."""
        return [OutputView("rows.jsonl", "writing" if self._looks < 3 else "complete", rows=2)]

    def rows(self, _: Finished) -> int:
        """The rows of FILE."""
        return 2


@pytest.mark.parametrize("are_made_again", [True, False])
def test_a_file_lacks_no_row_whose_record_the_log_lost(*, are_made_again: bool) -> None:
    """The row is made again, or FILE stays partial and the exit code is 5."""
    settled: list[object] = []
    outputs = Outputs(are_made_again=are_made_again)
    fleet = a_fleet(outputs=outputs, _settle=settled.append)
    assert fleet._makes_files(following())
    assert (outputs.released, len(settled)) == ([END], 1)
    assert fleet.summary.rows == (2 if are_made_again else None)
    assert summary_text.exit_code(fleet.summary) == (outcome.DEAD_LETTERS if are_made_again else outcome.DIFFERENT)


@pytest.mark.parametrize(("end", "missing"), [(None, ()), (END, ("crawl.pages[0] 7: gone",))])
def test_a_job_left_open_or_with_losses_has_no_file(end: Finished | None, missing: tuple[str, ...]) -> None:
    """Its rows stay in FILE.partial: the worker is never told to make FILE."""
    outputs = Outputs(are_made_again=True)
    fleet = a_fleet(outputs=outputs)
    fleet.summary.missing = missing
    assert fleet._makes_files(following(end))
    assert (outputs.released, fleet.summary.rows) == ([], None)


def test_a_run_of_a_failed_job_says_why_it_failed() -> None:
    """No summary tells that."""
    with pytest.raises(Misconfigured, match="job shop failed: spider_broken"):
        Summary("shop").tell_end("failed", "spider_broken")


def test_a_setting_that_urls_wait_for_is_named_once() -> None:
    """The run would wait for ever: its job's record has the setting, and its own workers lack it."""
    said: list[str] = []
    trouble = Trouble(FleetReports(), said.append)
    for needs in ({}, {"network.allow_private=true": 2}, {"network.allow_private=true": 1}):
        trouble.tell_needs(needs)
    lacked = "network.allow_private=true"
    assert said == [f"URLs wait for a worker with {lacked}: end this command, and give it -s {lacked}"]
