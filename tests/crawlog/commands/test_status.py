"""`crawlog status`, and the look at a folder's holder that other commands take as well."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from crawlog.cli import fleet_text
from crawlog.commands.up import Status, _jobs, status
from crawlog.processes.hold import Hold, holder
from crawlog.schemas import control, progress
from crawlog.schemas.control import Control, Finished, JobCopy
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_job
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fleet import FleetState
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings

PARTITIONS = 16


@contextmanager
def repeated(act: Callable[[], object], threads: int = 1) -> Iterator[None]:
    """Does something again and again, beside what runs inside."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            act()

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(repeat) for _ in range(threads)]
        try:
            yield
        finally:
            ended.set()
    for future in futures:
        future.result()


@pytest.mark.broker
def test_status_counts_all_partitions_that_the_topic_has(cluster: Settings, tmp_path: Path) -> None:
    """A setting that says less, as by default, leaves none of them out."""
    run = cluster.run.model_copy(update={"data": tmp_path})
    kafka = cluster.kafka.model_copy(update={"partitions": PARTITIONS})
    ensure_topics(cluster.model_copy(update={"kafka": kafka}))
    settings = cluster.model_copy(update={"run": run})
    assert settings.kafka.partitions < PARTITIONS
    topics, producer = Topics(settings.kafka.prefix), Producer(settings, "test")
    write_job(settings, producer, topics, "j", JobSpec())
    reports = [
        Progress("w", "fetch", number, 1.0, jobs={"j": JobCounts(queued=1)}) for number in range(PARTITIONS - 1, -1, -1)
    ]
    pause = threading.Event()

    def report() -> None:
        for one in reports:
            producer.send(topics.progress, progress.encode(one), key=progress.key(one), partition=0)
            pause.wait(0.01)
        producer.flush(5)

    hold = Hold(tmp_path, "up", settings.kafka.bootstrap)
    try:
        with repeated(report):
            found = status(settings)
    finally:
        hold.release()
    [job] = found.jobs
    assert (job["partitions"], job["reported"], job["queued"]) == (PARTITIONS, PARTITIONS, PARTITIONS)


@pytest.mark.broker
def test_status_takes_the_reports_of_just_before(cluster: Settings, tmp_path: Path) -> None:
    """It needs not wait for the next ones."""
    ensure_topics(cluster)
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path})})
    topics, producer = Topics(settings.kafka.prefix), Producer(settings, "test")
    write_job(settings, producer, topics, "j", JobSpec())
    for number in range(settings.kafka.partitions):
        report = Progress("w", "fetch", number, time.time(), jobs={"j": JobCounts(queued=1)})
        producer.send(topics.progress, progress.encode(report), key=progress.key(report), partition=0)
    assert producer.flush(5)
    hold = Hold(tmp_path, "up", settings.kafka.bootstrap)
    try:
        found = status(settings)
    finally:
        hold.release()
    [job] = found.jobs
    assert job.get("queued") == settings.kafka.partitions


def test_status_says_that_counts_are_not_known(tmp_path: Path) -> None:
    """A worker's newest report need not name the job; its sum over the others would be too low."""
    state, copy = FleetState(), JobCopy("j", JobSpec())
    state.hear(control.key(copy), copy)
    state.report(Progress("w", "fetch", 0, 1.0, jobs={"j": JobCounts(fetched=7)}), 1.0)

    def told() -> tuple[bool, bool]:
        found = Status(tmp_path, jobs=_jobs(state, 2))
        return " 7 fetched" in fleet_text.status_lines(found)[-1], found.jobs[0]["is_counted"]

    assert told() == (True, True)
    state.report(Progress("v", "fetch", 1, 1.0, is_partial=True), 1.0)
    assert told() == (False, False)


@pytest.mark.parametrize(
    ("spec", "end", "told"),
    [
        (JobSpec(2, state="stopped", reason="max_pages"), "max_pages", "stopped (max_pages)"),
        (JobSpec(2, state="stopped", reason="cancelled"), "cancelled", "stopped (cancelled)"),
        (JobSpec(2, state="finished"), "finished", "finished"),
        (JobSpec(2, reason="new URLs"), None, "running (new URLs)"),
        (JobSpec(2), None, "running"),
    ],
)
def test_a_job_has_its_state_and_why_as_in_the_list_of_jobs(
    tmp_path: Path, spec: JobSpec, end: str | None, told: str
) -> None:
    """A spider may close its job with a reason that reads as another state."""
    state = FleetState()
    records: list[Control] = [JobCopy("j", spec), *([Finished("j", 1.0, reason=end, rev=2)] if end else [])]
    for record in records:
        state.hear(control.key(record), record)
    found = Status(tmp_path, jobs=_jobs(state, 1))
    assert fleet_text.status_lines(found)[-1] == f"job      j: {told}"
    assert (found.jobs[0]["state"], found.jobs[0]["reason"]) == (spec.state, spec.reason)


def test_a_look_at_the_holder_keeps_nobody_from_holding(tmp_path: Path) -> None:
    """A `status` beside the start of a `run` is none that holds the folder."""
    Hold(tmp_path, "run").release()
    with repeated(lambda: holder(tmp_path), threads=2):
        for _ in range(300):
            Hold(tmp_path, "run").release()


def test_two_looks_do_not_take_each_other_for_a_holder(tmp_path: Path) -> None:
    """Nobody holds the folder, so each says so."""
    Hold(tmp_path, "run").release()
    with repeated(lambda: holder(tmp_path), threads=2):
        assert not any(holder(tmp_path) for _ in range(1000))


def test_a_file_is_no_folder_that_somebody_holds(tmp_path: Path) -> None:
    """The user has named a wrong one."""
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match="cannot use the data folder"):
        holder(tmp_path / "file")


def test_a_held_folder_is_refused_and_tells_its_holder(tmp_path: Path) -> None:
    """Also while others look."""
    held = Hold(tmp_path, "run")
    with repeated(lambda: holder(tmp_path)):
        with pytest.raises(Misconfigured, match=r"in use by `crawlog run` \(pid"):
            Hold(tmp_path, "up")
        found = holder(tmp_path)
    held.release()
    assert found is not None
    assert found.what == "run"
    assert holder(tmp_path) is None
