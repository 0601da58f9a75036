"""The jobs of a run: what is created, what is sent to it, and what is left alone."""

from typing import Any

import msgspec
import pytest

from crawlog.agents.coordinator import scheduled_run
from crawlog.agents.coordinator.scheduled_run import RunCreator
from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import JobFlow, OutputSpec
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.log import Topics
from crawlog.streams.schedules import NO_TIME, run_names
from crawlog.streams.settings.settings import Settings

AT = 1_795_932_000  # 2026-11-29T06:00Z
SEEDED = RunJob(JobSpec(outputs=(OutputSpec(f"rows-{NO_TIME}.csv"),)), "a", ("http://a.test/", "/etc/passwd", "-"))
ONE = JobSchedule("s", 1, (SEEDED, RunJob(JobSpec(starts=True), "b")), every_s=60)
NAMES = run_names(ONE, AT)
BY = "schedule s"


class Log:
    """What is written to a log without a broker."""

    def __init__(self) -> None:
        self.created: list[tuple[str, JobSpec]] = []
        self.sent: list[tuple[str, list[bytes]]] = []
        self.first: JobSpec | None = None  # of another command that has created the job meanwhile

    def create(self, _settings: Any, _producer: Any, _topics: Any, name: str, spec: JobSpec, *_: Any) -> JobCopy:
        """As `create_job`."""
        self.created.append((name, spec))
        return JobCopy(name, self.first or spec)

    def plant(self, _settings: Any, _producer: Any, name: str, source: Any, **_: Any) -> None:
        """As `plant`."""
        self.sent.append((name, [line for _, part in source.parts() for line in part]))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log whose partitions of crawl.items end at 7."""
    made = Log()
    monkeypatch.setattr(scheduled_run, "CommandProducer", lambda *_: None)
    monkeypatch.setattr(scheduled_run, "log_end", lambda *_: 5)
    monkeypatch.setattr(scheduled_run, "partition_count", lambda _: 2)
    monkeypatch.setattr(scheduled_run, "log_bounds", lambda *_: {0: (0, 7), 1: (0, 7)})
    monkeypatch.setattr(scheduled_run, "create_job", made.create)
    monkeypatch.setattr(scheduled_run, "plant", made.plant)
    return made


def create(**known: JobCopy) -> str:
    """Creates the run's jobs."""
    copies = {name: known.get(name[-1]) for name in NAMES}
    return RunCreator(Settings(), Topics("crawl.")).create(ONE, Planned("s", 1, AT, AT, NAMES), copies)


def test_each_job_is_created_with_the_offsets_of_its_run_and_gets_its_seeds(log: Log) -> None:
    """A seed is a line: one that is written as a path, by whoever wrote the record, names no file of the worker."""
    assert create() == ""
    assert [name for name, _ in log.created] == ["s-20261129T060000Z-a", "s-20261129T060000Z-b"]
    spec = log.created[0][1]
    assert (spec.by, spec.items, spec.rev) == (BY, (7, 7), 1)
    assert spec.at == spec.changed_at > 0
    assert [one.name for one in spec.outputs] == ["rows-20261129T060000Z.csv"]
    assert log.sent == [(NAMES[0], [b"http://a.test/\n", b"/etc/passwd\n", b"-\n"])]


def test_a_job_of_a_run_waits_for_those_that_its_submission_names(log: Log) -> None:
    """As one that a command submits."""
    job = RunJob(JobSpec(flow=JobFlow(("group:night",))), "a", ("http://a.test/",))
    schedule = JobSchedule("s", 1, (job,), every_s=60)
    RunCreator(Settings(), Topics("crawl.")).create(schedule, Planned("s", 1, AT, AT, run_names(schedule, AT)), {})
    assert [spec.state for _, spec in log.created] == ["waiting"]


def test_a_job_of_a_run_that_waits_for_another_job_is_created_so(log: Log) -> None:
    """`submit --after` in a schedule."""
    waits = msgspec.structs.replace(ONE, jobs=(RunJob(JobSpec(flow=JobFlow(after=("other",)))),))
    names = run_names(waits, AT)
    assert RunCreator(Settings(), Topics("crawl.")).create(waits, Planned("s", 1, AT, AT, names), {}) == ""
    assert [spec.state for _, spec in log.created] == ["waiting"]


def test_a_job_that_is_there_gets_its_seeds_once_more(log: Log) -> None:
    """A coordinator was killed between the two; known URLs change nothing."""
    copy = JobCopy(NAMES[0], JobSpec(by=BY))
    assert create(a=copy, b=JobCopy(NAMES[1], JobSpec(by=BY))) == ""
    assert log.created == []
    assert [name for name, _ in log.sent] == [NAMES[0]]


@pytest.mark.parametrize("state", ["deleted", "cancelled"])
def test_a_job_that_the_operator_has_ended_is_left_alone(log: Log, state: Any) -> None:
    """Its run has begun once."""
    create(a=JobCopy(NAMES[0], JobSpec(by=BY, state=state)), b=JobCopy(NAMES[1], JobSpec(by=BY)))
    assert (log.created, log.sent) == ([], [])


def test_a_job_of_somebody_else_is_not_touched_and_holds_up_no_other(log: Log) -> None:
    """Neither one that was there, nor one that came at the same instant."""
    error = create(a=JobCopy(NAMES[0], JobSpec(by="me@host")))
    assert error == f"{NAMES[0]}: there is such a job already, which me@host has submitted"
    assert [name for name, _ in log.created] == [NAMES[1]]
    log.first = JobSpec(by="you")
    assert "which you has submitted" in create()
    assert log.sent == []


def test_an_output_that_names_a_path_is_an_error_of_its_job(log: Log) -> None:
    """Whoever may write to crawl.control may have written it."""
    bad = msgspec.structs.replace(ONE, jobs=(RunJob(JobSpec(outputs=(OutputSpec("../x.csv"),))),))
    names = run_names(bad, AT)
    error = RunCreator(Settings(), Topics("crawl.")).create(bad, Planned("s", 1, AT, AT, names), {})
    assert "no plain name" in error
    assert log.created == []


def test_a_job_whose_seeds_cannot_be_read_is_not_created(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever, and hold up its schedule. One that is there already gets them later."""

    def collect(*_: Any) -> Any:
        raise Misconfigured("sitemap:http://a.test/map.xml lists no URL of a.test: HTTP 404")

    monkeypatch.setattr(scheduled_run, "collect", collect)
    mapped = msgspec.structs.replace(ONE, jobs=(RunJob(JobSpec(), "", ("sitemap:http://a.test/map.xml",)),))
    names = run_names(mapped, AT)
    creator = RunCreator(Settings(), Topics("crawl."))
    assert "HTTP 404" in creator.create(mapped, Planned("s", 1, AT, AT, names), {})
    assert log.created == []
    with pytest.raises(EngineError, match="HTTP 404"):
        creator.create(mapped, Planned("s", 1, AT, AT, names), {names[0]: JobCopy(names[0], JobSpec(by=BY))})
    unread = msgspec.structs.replace(ONE, jobs=(RunJob(JobSpec(), "", ("no url",)),))
    assert "no URL in" in creator.create(unread, Planned("s", 1, AT, AT, run_names(unread, AT)), {})
