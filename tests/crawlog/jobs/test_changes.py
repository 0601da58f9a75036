"""What `crawlog jobs` tells of a job: from a log that no worker reads."""

import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest

from crawlog.agents.seed import Source, plant
from crawlog.commands.control import give
from crawlog.jobs.changes import (
    cancel_job,
    delete_job,
    lacks_start,
    pause_job,
    resume_job,
    show_job,
    stop_job,
)
from crawlog.jobs.request import JobRequest, LocalParts
from crawlog.jobs.submit import submit, wanted_of
from crawlog.jobs.writer import JobWriter
from crawlog.schemas.control import Command, JobCopy, Join
from crawlog.schemas.dead import DeadLetter
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.urls import DEFAULT_JOB, JobSpec
from crawlog.streams.control import known_job, read_control, rewind_crawl, write_command, write_control, write_job
from crawlog.streams.errors import InvalidState, OrderRefused, UnknownName
from crawlog.streams.fleet import JobView, WorkerView
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from tests.support.garbage import uncollected
from tests.support.living_clients import living_clients

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.broker


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


def test_a_job_shows_how_many_of_its_dead_letters_are_open(cluster: Settings) -> None:
    """Also while it goes on; those of other jobs are not its own."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", JobSpec())
    for offset, job in enumerate(("j", "other", "j")):
        letter = DeadLetter(topics.pages, 0, offset, "parse", "ValueError: no", None, b"x", job)
        producer.send(topics.dead, letter.value, headers=letter.headers(), partition=0)
    assert producer.flush(30)
    assert show_job(cluster, "j").dead == 2
    write_job(cluster, producer, topics, "j", JobSpec(2, at=time.time() + 60), 1)
    assert show_job(cluster, "j").dead == 0, "they are of the epoch before"


def test_commands_leave_no_client_behind(cluster: Settings) -> None:
    """Also where cycles are not collected: each client has threads and connections, and the service runs many."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", JobSpec())
    before = living_clients()
    with uncollected():
        show_job(cluster, "j")
        give(cluster, Command("pause", job="j"))
        ensure_topics(cluster)
        assert living_clients().keys() <= before.keys()


def _worker(stage: str, supervisor: str = "") -> WorkerView:
    return WorkerView(stage, stage, "host", 1, supervisor=supervisor)


@pytest.mark.parametrize(
    ("workers", "lacks"),
    [
        ([], False),
        ([_worker("fetch"), _worker("parse")], True),
        ([_worker("fetch"), _worker("start")], False),
        ([_worker("fetch", "up")], False),
    ],
)
def test_a_job_whose_start_nobody_runs_is_told(workers: list[WorkerView], *, lacks: bool) -> None:
    """It stayed pending on standalone workers, and nothing said why."""
    job = JobView("j", "pending", is_starting=True)
    assert lacks_start(job, workers) is lacks
    assert not lacks_start(msgspec.structs.replace(job, is_starting=False), workers)


@pytest.mark.parametrize(("state", "reason"), [("finished", ""), ("stopped", "max_pages"), ("stopped", "enough")])
def test_a_job_whose_rows_are_whole_is_not_cancelled(cluster: Settings, state: JobStateName, reason: str) -> None:
    """Its FILE is made, and would be a partial one from then on."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", msgspec.structs.replace(JobSpec(), state=state, reason=reason))
    with pytest.raises(InvalidState, match="job j has ended, and its rows are whole: there is nothing to cancel"):
        cancel_job(cluster, "j")


def test_a_job_that_finishes_while_it_is_cancelled_stays_finished(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 it runs → 2 it finishes → 3 the order, which names the revision of 1, is refused → 4 it is looked at again."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    known, expected = write_job(cluster, producer, topics, "j", JobSpec()), []

    def refused(*_: object, expects: int | None, **__: object) -> JobCopy:
        expected.append(expects)
        write_job(cluster, producer, topics, "j", msgspec.structs.replace(known.spec, state="finished", rev=7))
        raise OrderRefused("j", "it has revision 7")

    monkeypatch.setattr("crawlog.jobs.changes.apply_change", refused)
    with pytest.raises(InvalidState, match="nothing to cancel"):
        cancel_job(cluster, "j")
    assert expected == [known.spec.rev]


def test_the_job_of_bare_records_takes_no_orders(cluster: Settings) -> None:
    """It has no record that one could change."""
    with pytest.raises(InvalidState, match="`crawlog control` pauses it"):
        pause_job(cluster, DEFAULT_JOB)


def test_a_delete_that_was_killed_is_completed_by_the_next_one(cluster: Settings) -> None:
    """Its stop would stop a new job of the name at once."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_command(producer, topics, Command("stop", job="j", reason="enough"))
    write_job(cluster, producer, topics, "j", JobSpec(state="deleted"))
    delete_job(cluster, "j")
    assert not read_control(cluster, topics).commands.of_job("j").stopped
    with pytest.raises(UnknownName):
        delete_job(cluster, "j")


def test_each_copy_of_a_job_names_the_epoch_of_the_deleted_one_of_its_name(cluster: Settings) -> None:
    """By it parse tells their pages apart once the copy that says `deleted` is compacted away."""
    ensure_topics(cluster)
    wanted = JobRequest(urls=("http://a.test/",), job="j")
    changes: list[Callable[[], object]] = [
        lambda: submit(cluster, wanted),
        lambda: pause_job(cluster, "j"),
        lambda: rewind_crawl(cluster, dict.fromkeys(range(cluster.kafka.partitions), 0)),
        lambda: submit(cluster, msgspec.structs.replace(wanted, fresh=True)),
    ]
    submit(cluster, wanted)
    delete_job(cluster, "j")
    for change in changes:
        change()
        copy = known_job(cluster, Topics(cluster.kafka.prefix), "j")
        assert copy is not None
        assert (copy.spec.state == "deleted", copy.after) == (False, 0)


def submitted(cluster: Settings, producer: Producer) -> None:
    """A submission takes the name."""
    submit(cluster, JobRequest(urls=("http://a.test/",), job="j"))


def seeded(cluster: Settings, producer: Producer) -> None:
    """Seeds take the name."""
    plant(cluster, producer, "j", Source(["http://b.test/"]), report=pytest.fail)


def run(cluster: Settings, producer: Producer) -> None:
    """A run takes the name."""
    with ExitStack() as opened:
        request = JobRequest(urls=("http://a.test/",), job="j")
        wanted = wanted_of(cluster, request, LocalParts(), print, opened, may_change=True)
        writer = JobWriter(SimpleNamespace(settings=cluster, producer=producer), wanted, print)
        writer.recall()
        writer.write()


@pytest.mark.parametrize("take", [submitted, seeded, run])
def test_the_next_job_of_a_name_has_no_notes_of_the_deleted_one(
    cluster: Settings, take: "Callable[[Settings, Producer], None]"
) -> None:
    """1 a delete gives up, as no worker answers → 2 one obeys its order → 3 the name is taken: the notes are there."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", JobSpec())
    write_control(producer, topics, [Join("j", "b.test"), Command("pause", job="j")])
    write_job(cluster, producer, topics, "j", JobSpec(2, state="deleted"))
    take(cluster, producer)
    said = read_control(cluster, topics, joins=True)
    assert {key for key in said.records if b"/j" in key} - {b"command/job/j"} == {b"job/j"}
    assert not said.commands.in_force


def test_a_job_is_stopped_and_resumed_where_no_fetch_worker_runs(cluster: Settings) -> None:
    """Its `run` has ended, and nobody would answer an order. Resumed, a command that stops it is ended too."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", JobSpec())
    write_command(producer, topics, Command("stop", job="j"))
    assert (stop_job(cluster, "j").state, stop_job(cluster, "j").reason) == ("stopped", "operator")
    resume_job(cluster, "j")
    copy = known_job(cluster, topics, "j")
    assert copy is not None
    assert (copy.spec.state, copy.spec.reason, copy.spec.rev) == ("running", "", 5)
    assert not read_control(cluster, topics).commands.of_job("j").stopped
