"""Changes of jobs by orders, against a real broker and a stand-in for the coordinator."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from crawlog.schemas import control
from crawlog.schemas import urls as u
from crawlog.schemas.control import Command, Control, Finished, JobCopy, Join, StartEnded
from crawlog.schemas.job_orders import OutputSpec
from crawlog.streams.cluster import consumer_config, log_bounds
from crawlog.streams.control import (
    apply_change,
    change_job,
    job_changes,
    known_job,
    read_control,
    remove_notes,
    renew_ends,
    rewind_crawl,
    write_control,
    write_job,
)
from crawlog.streams.errors import NotAnswered, OrderRefused, UnknownName
from crawlog.streams.fold import Answered, Fold
from crawlog.streams.jobs import Commands
from crawlog.streams.log import Producer, Topics, ensure_topics, read_partitions
from crawlog.streams.settings.settings import Settings
from tests.support.control_records import control_of
from tests.support.dying import dying
from tests.support.folding import ANY, State

if TYPE_CHECKING:
    from crawlog.schemas.job_orders import JobStateName

pytestmark = pytest.mark.broker


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


class Fleet:
    """A log with a job, and a stand-in for the coordinator while `answering`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topics = Topics(settings.kafka.prefix)
        ensure_topics(settings)
        self.producer = Producer(settings, "test")
        write_job(settings, self.producer, self.topics, "j", ANY)
        self.state = State()
        self._stop = threading.Event()

    @contextmanager
    def answering(self, after: int = 1) -> Iterator[None]:
        """A worker owns partition 0, and reads it once so many orders wait: each was made without its answers."""
        self._stop.clear()
        thread = threading.Thread(target=self._answer, args=(after,))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _answer(self, after: int) -> None:
        producer = Producer(self.settings, "coordinator")
        consumer = Consumer(consumer_config(self.settings))
        place = TopicPartition(self.topics.urls, 0, self.state.offset)
        while not self._stop.is_set() and consumer.get_watermark_offsets(place)[1] <= after:
            self._stop.wait(0.02)  # the first record is the job's
        consumer.assign([place])
        while not self._stop.is_set():
            record = consumer.poll(0.1)
            if record is None or record.error() is not None:
                continue
            (effects,) = self.state.take(record.value())
            for answered in effects.answered:
                write_control(producer, self.topics, [copy_of(self.state.fold, answered)])
        consumer.close()

    def order(self, **fields: object) -> None:
        """Another writer's order, which nobody waits for."""
        order = u.JobOrder(**fields)  # type: ignore[arg-type]  # fields by name
        self.producer.send(self.topics.urls, u.encode(u.UrlsRecord(job="j", order=order)), partition=0)
        assert self.producer.flush(30)

    def change(self, **fields: object) -> JobCopy:
        """Order a change and wait for the answer."""
        return change_job(self.settings, self.producer, self.topics, "j", **fields)  # type: ignore[arg-type]  # fields by name


def copy_of(fold: Fold, answered: Answered) -> JobCopy:
    """What the coordinator writes to crawl.control."""
    job = fold.jobs[answered.job]
    return JobCopy(job.name, job.spec, job.epoch, answered.offset, answered.refusal)


def test_a_change_returns_the_record_that_the_fold_made(cluster: Settings) -> None:
    """Pause, resume, and a new record: each has its order's offset as revision."""
    fleet = Fleet(cluster)
    with fleet.answering():
        paused = fleet.change(state="paused", reason="lunch", by="ann", at=7.0)
        resumed = fleet.change(state="running")
        larger = fleet.change(spec=u.JobSpec(scope=ANY.scope, max_pages=9))
    assert (paused.spec.state, paused.spec.reason, paused.spec.changed_at) == ("paused", "lunch", 7.0)
    assert (resumed.spec.state, larger.spec.max_pages, larger.spec.state) == ("running", 9, "running")
    assert paused.spec.rev < resumed.spec.rev < larger.spec.rev
    assert known_job(fleet.settings, fleet.topics, "j") == larger


def test_without_a_worker_the_order_stays_in_the_log_and_is_obeyed_later(cluster: Settings) -> None:
    """The error says so, with the next command."""
    fleet = Fleet(cluster)
    with pytest.raises(NotAnswered, match=r"order for job j is in the log.*obeyed as soon as a fetch worker runs"):
        fleet.change(state="paused", wait_s=0.5)
    with fleet.answering(after=2), pytest.raises(OrderRefused, match="expects revision 1"):
        fleet.change(spec=ANY)  # made from the record before the pause
    now = known_job(fleet.settings, fleet.topics, "j")
    assert now is not None
    assert now.spec.state == "paused"


def test_a_change_of_something_else_meanwhile_is_no_reason_to_refuse_a_pause(cluster: Settings) -> None:
    """1 the copy is read → 2 another order changes max_pages → 3 the pause is refused and ordered once more."""
    fleet = Fleet(cluster)
    fleet.order(expects=1, spec=u.JobSpec(scope=ANY.scope, max_pages=9))
    with fleet.answering(after=2):
        paused = fleet.change(state="paused")
    assert (paused.spec.state, paused.spec.max_pages) == ("paused", 9)


@pytest.mark.parametrize("earlier", [0, 5])
def test_an_older_unanswered_order_does_not_undo_a_change_without_workers(cluster: Settings, earlier: int) -> None:
    """A worker that starts takes the order: it expects the revision before. Its offset may be no greater than that."""
    fleet = Fleet(cluster)
    for at in range(earlier):
        fleet.order(expects=100 + at)
    fleet.order(expects=1, state="stopped", reason="enough", by="ann", at=7.0)
    paused = apply_change(cluster, fleet.producer, fleet.topics, JobCopy("j", ANY), state="paused")
    bounds = log_bounds(cluster, fleet.topics.urls, [0])
    answers = fleet.state.take(*(one.value() for one in read_partitions(cluster, fleet.topics.urls, bounds)))
    assert answers[earlier + 1].answered[0].refusal == ""
    assert (fleet.state.fold.jobs["j"].spec, paused.spec.state) == (paused.spec, "paused")


@pytest.mark.parametrize("last", [set(), {"fetch-0"}])
def test_the_record_is_written_if_no_fetch_worker_is_left_to_answer(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch, last: set[str]
) -> None:
    """A killed worker is a member of its group until its session has timed out, also after a restart of the broker."""
    fleet = Fleet(cluster)
    members = iter([{"fetch-0"}, last])
    monkeypatch.setattr(job_changes, "member_names", lambda *_: next(members))
    monkeypatch.setattr(job_changes, "change_job", partial(change_job, wait_s=0.1))
    with pytest.raises(NotAnswered) if last else nullcontext():
        apply_change(cluster, fleet.producer, fleet.topics, JobCopy("j", ANY), state="stopped")
    copy = known_job(cluster, fleet.topics, "j")
    assert copy is not None
    assert copy.spec.state == ("running" if last else "stopped")


@pytest.mark.parametrize("expects", [None, 1])
def test_a_change_of_the_state_meanwhile_refuses_the_order(cluster: Settings, expects: int | None) -> None:
    """A job that was cancelled is not resumed by an order that does not know of it."""
    fleet = Fleet(cluster)
    fleet.order(expects=1, state="cancelled")
    refused = pytest.raises(OrderRefused, match="job j was not changed: the order expects revision 1")
    with fleet.answering(after=2), refused:
        fleet.change(state="stopped", expects=expects)
    assert fleet.state.fold.jobs["j"].spec.state == "cancelled"


def test_there_is_nothing_to_change_of_a_job_that_is_unknown_or_deleted(cluster: Settings) -> None:
    """The message names the command that lists jobs; the service answers 404."""
    fleet = Fleet(cluster)
    with fleet.answering():
        fleet.change(state="deleted")
    for name in ("j", "k"):
        with pytest.raises(UnknownName, match=f"there is no job {name} in the log"):
            change_job(fleet.settings, fleet.producer, fleet.topics, name, state="paused")


def test_an_order_whose_writer_died_is_in_the_log_and_may_be_given_again(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each crash point the next command ends with the job paused."""
    fleet = Fleet(cluster)

    for point in ("order.sending", "order.acknowledged"):
        with dying(monkeypatch, point, 1):
            fleet.change(state="paused")
    with fleet.answering():
        assert fleet.change(state="paused").spec.state == "paused"


def test_the_notes_of_a_deleted_job_are_removed_and_others_stay(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the command dies between two of them, and is given again."""
    fleet = Fleet(cluster)
    write_job(fleet.settings, fleet.producer, fleet.topics, "k", ANY)
    for job in ("j", "k"):
        notes: list[Control] = [Finished(job, 1.0), StartEnded(job, 1.0), Join(job, "a.com"), Command("pause", job=job)]
        write_control(fleet.producer, fleet.topics, notes)
    write_job(fleet.settings, fleet.producer, fleet.topics, "j", u.JobSpec(2, state="deleted"))
    with dying(monkeypatch, "delete.removing", 2):
        remove_notes(fleet.settings, fleet.producer, fleet.topics, "j")
    remove_notes(fleet.settings, fleet.producer, fleet.topics, "j")
    said = read_control(fleet.settings, fleet.topics, joins=True)
    assert said.commands.of_job("j") == Commands([]).of_job("j")
    own = {
        key for key in said.records if b"/j" in key and not key.startswith(b"command/")
    }  # without it a command has ended
    assert own == {b"job/j"}
    assert sum(b"/k" in key for key in said.records) == 5


DELETED = JobCopy("j", u.JobSpec(2, state="deleted"))
PAUSE = Command("pause", job="j")


@pytest.mark.parametrize(
    ("records", "left"),
    [
        (
            [Join("j", "a.com"), PAUSE, DELETED, Finished("j", 1.0)],
            {b"join/j/a.com", control.key(PAUSE), b"finished/j"},
        ),
        ([DELETED, Join("j", "a.com")], {b"join/j/a.com"}),
        ([DELETED, PAUSE], set()),
        ([DELETED, Command("stop", job="j", reason="enough")], {control.key(PAUSE)}),  # by a page of the deleted job
        ([Join("j", "a.com"), PAUSE, JobCopy("j", ANY, 1, after=0), Finished("j", 1.0, epoch=1)], set()),
        ([Join("j", "a.com"), PAUSE], set()),
    ],
)
def test_notes_are_those_of_a_deleted_job_until_its_name_is_taken_again(
    records: list[Control], left: set[bytes]
) -> None:
    """The next job has its own; what an operator commands after the deletion is for that one."""
    assert job_changes._notes_of(control_of(*records), "j").keys() == left


OUTPUTS = (OutputSpec("rows.jsonl"),)


@pytest.mark.parametrize(
    ("spec", "after"),
    [
        (u.JobSpec(1, outputs=OUTPUTS, state="finished"), ("running", "redriven")),
        (u.JobSpec(1, outputs=OUTPUTS, state="running"), ("running", "")),
        (u.JobSpec(1, outputs=OUTPUTS, state="stopped", reason="max_pages"), ("stopped", "max_pages")),
        (u.JobSpec(1, outputs=OUTPUTS, state="cancelled"), ("cancelled", "")),
        (u.JobSpec(1, outputs=OUTPUTS, state="deleted"), None),
        (u.JobSpec(1, state="finished"), None),
    ],
)
def test_a_job_with_outputs_ends_once_more_in_a_new_revision(
    cluster: Settings, spec: u.JobSpec, after: tuple[str, str] | None
) -> None:
    """A stopped job has a queue, which must not be fetched for that. Jobs without outputs stay as they are."""
    fleet = Fleet(cluster)
    write_job(fleet.settings, fleet.producer, fleet.topics, "k", spec)
    renew_ends(fleet.settings, fleet.topics, ["k", "unknown"], "redriven")
    copy = known_job(fleet.settings, fleet.topics, "k")
    assert copy is not None
    assert (copy.spec.rev > 1) == bool(after)
    assert (copy.spec.state, copy.spec.reason) == (after or (spec.state, spec.reason))


def test_a_rewind_of_the_crawl_runs_ended_jobs_again_and_keeps_what_operators_decided(cluster: Settings) -> None:
    """A deleted job stays deleted, in the new epoch."""
    fleet = Fleet(cluster)
    states: tuple[JobStateName, ...] = ("running", "finished", "stopped", "paused", "cancelled", "deleted")
    for state in states:
        record = u.JobSpec(2, scope=ANY.scope, state=state)
        write_job(fleet.settings, fleet.producer, fleet.topics, state, record)
    assert rewind_crawl(fleet.settings, dict.fromkeys(range(fleet.settings.kafka.partitions), 0)) == 1
    said = read_control(fleet.settings, fleet.topics)
    now = {copy.job: (copy.epoch, copy.spec.state) for copy in said.of(JobCopy)}
    ran = dict.fromkeys(("j", "running", "finished", "stopped"), (1, "running"))
    assert now == ran | {state: (1, state) for state in ("paused", "cancelled", "deleted")}
