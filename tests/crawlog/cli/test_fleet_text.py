"""Jobs and workers of a fleet as text."""

from typing import Literal

import pytest

from crawlog.cli.fleet_text import changed, job_details, job_lines, ordered_line, output_text, worker_lines
from crawlog.streams.fleet import JobView, OutputView, WorkerView


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (
            OutputView("a.csv", "complete", 2, "/x/a.csv", worker="sink-0-m1-af0912"),
            "a.csv: complete, 2 rows in /x/a.csv, by worker sink-0-m1-af0912",
        ),
        (OutputView("shop", "complete", 2, "shop", worker="sink-0"), "shop: complete, 2 rows, by worker sink-0"),
        (
            OutputView("a.csv", "failed", error="the disk is full", worker="sink-0"),
            "a.csv: failed, 0 rows, by worker sink-0; the disk is full",
        ),
        (OutputView("a.csv", "writing", worker="sink-0"), "a.csv: writing, 0 rows"),
        (OutputView("a.csv", "complete", 1, "/x/a.csv"), "a.csv: complete, 1 row in /x/a.csv"),
        (
            OutputView("a.csv", "complete", 1, "/x/a.csv", worker="mine", machine="m2"),
            "a.csv: complete, 1 row in /x/a.csv on m2, by worker mine",
        ),
        (OutputView("shop", "complete", 2, "shop", machine="m2"), "shop: complete, 2 rows"),
    ],
)
def test_an_output_names_its_machine_and_worker_with_its_place_or_its_error(view: OutputView, told: str) -> None:
    """Another machine may have a FILE at the same path. An output that is being written may be another worker's."""
    assert output_text(view) == told


def test_an_output_whose_job_has_open_letters_is_not_called_complete() -> None:
    """Their rows are missing. In the list of jobs they have a column."""
    view = OutputView("a.csv", "complete", 180, "/x/a.csv")
    assert output_text(view, 300) == "a.csv: 180 rows in /x/a.csv; 300 records could not be handled"
    head, job = job_lines([JobView("j", "finished", dead=300)])
    assert head.split().index("dead") == job.split().index("300")


@pytest.mark.parametrize(
    ("action", "supervisor", "is_told"), [("drain", "", True), ("drain", "up", False), ("stop", "", False)]
)
def test_drain_tells_that_a_worker_of_no_up_may_be_started_again(
    action: Literal["drain", "stop"], supervisor: str, is_told: bool
) -> None:
    """Its exit code is 0, and `restart: unless-stopped` of Docker starts another one."""
    line = ordered_line(WorkerView("fetch-0", "fetch", "m1", 7, supervisor=supervisor), action)
    assert line.startswith(f"worker fetch-0 (pid 7) is told to {action}: ")
    assert ("may start another one" in line) == is_told


def test_a_worker_that_lends_its_address_is_listed_with_it() -> None:
    """With the place at which the fleet reaches it; it owns nothing that it could hand over."""
    worker = WorkerView("w", "exit", "m2", 7, exits={"m2": "10.0.0.7:6801"}, tunnels=3)
    assert worker_lines([worker])[1].endswith("lends m2 at 10.0.0.7:6801; 3 tunnels")
    assert "it lets answers under way end and ends" in ordered_line(worker, "stop")


def test_a_paused_worker_is_listed_with_the_command_that_ends_its_pause() -> None:
    """Its own pause and that of its stage are two."""
    held = WorkerView("fetch-0", "fetch", "m", 7, paused=True, is_held=True, is_coordinator=True)
    staged = WorkerView("fetch-1", "fetch", "m", 8, paused=True)
    _, first, second = worker_lines([held, staged])
    assert first.endswith("coordinator; paused: `crawlog workers resume fetch-0`")
    assert second.endswith("paused: `crawlog control resume --stage fetch`")
    assert "`crawlog workers resume fetch-0` lets it go on" in ordered_line(held, "pause")
    assert ordered_line(held, "resume") == "worker fetch-0 (pid 7) goes on within 2 s"
    assert ordered_line(staged, "resume").endswith("its stage is paused too: `crawlog control resume --stage fetch`")


def test_a_job_is_shown_with_the_paused_workers_that_it_waits_for() -> None:
    """And with what to run."""
    lines = job_details(JobView("j", "running", paused_workers=("parse-1",)))
    assert any("worker parse-1, which is paused: `crawlog workers resume parse-1`" in line for line in lines)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("operator", "stopped: its queue stays, `crawlog jobs resume j` lets it go on"),
        ("max_pages", "has ended already (max_pages); nothing was changed"),
        ("enough", "has ended already (enough); nothing was changed"),
    ],
)
def test_stop_does_not_promise_a_resume_of_a_job_that_had_ended(reason: str, told: str) -> None:
    """One at its limit is refused by `resume`."""
    assert changed("stop", JobView("j", "stopped", reason=reason)) == f"job j: {told}"
