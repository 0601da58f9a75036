"""Changes of a job on a fleet: an order in partition 0 of crawl.urls, and its answer in crawl.control.

    crawl.control: the job's record ─► order that expects its revision ─► acknowledged
    fold of partition 0 takes or refuses it ─► coordinator ─► crawl.control: JobCopy.answers ─► here

An order that nobody answers is not lost: it is obeyed as soon as a fetch worker runs. Where none is on the log, the
record itself is written (`apply_change`).

Creating a job: of several commands that do so at one instant, one has the name, and the others learn of it.

    the record, its copy ─► crawl.control: the first copy of this epoch ─► ours: the job is as we want it
                                                                         └ another's: its record, in a new revision

The folds cannot decide: of two records of one revision they take the greater one, also when it comes later. So 1 A
reads that there is no job ─► 2 B reads the same ─► 3 A writes its record, its copy, and begins ─► 4 B writes both, and
the folds take B's ─► 5 B reads that A's copy was first, and writes A's record in a revision that all folds take.
"""

import time
from collections.abc import Iterable
from contextlib import closing
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.schemas import control as records
from crawlog.schemas import urls
from crawlog.schemas.control import (
    Command,
    Control,
    Finished,
    HookNote,
    JobCopy,
    Join,
    OutputNote,
    ParsedAgain,
    Rewound,
    StartEnded,
    key_of,
)
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.urls import JobOrder, JobSpec, UrlsRecord
from crawlog.streams import crash_points
from crawlog.streams.cluster import CLUSTER_TIMEOUT_S, Admin, log_end
from crawlog.streams.errors import EngineError, Misconfigured, NotAnswered, OrderRefused, UnknownName
from crawlog.streams.fleet import ControlRecord, ReadFault, Tail
from crawlog.streams.fold import ordered_spec
from crawlog.streams.groups import member_names
from crawlog.streams.jobs import ControlState, traits
from crawlog.streams.log import CommandProducer, Producer, Topics, read_records, stage_group

from .job_records import acknowledged, known_job, read_control, write_job
from .rewind import settled_control

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

ANSWERED_S = 10.0  # Longest wait for the answer to an order, seconds

POLL_S = 0.2

RENEWALS = 3  # Tries to give a job a new revision while others change it

RUNNING: JobStateName = "running"


class _Order(NamedTuple):
    """An order that was written.

    Attributes:
        before: The copy that it was made from.
        offset: Of its record.
        rev: The revision that the job has if it was taken.
    """

    before: JobCopy
    order: JobOrder
    offset: int
    rev: int


def change_job(  # noqa: PLR0913  # the parts of an order
    settings: "Settings",
    producer: Producer,
    topics: Topics,
    job: str,
    *,
    state: JobStateName | None = None,
    spec: JobSpec | None = None,
    reason: str = "",
    by: str = "",
    at: float | None = None,
    expects: int | None = None,
    wait_s: float = ANSWERED_S,
) -> JobCopy:
    """Order a change of a job, and wait for the answer.

    If another change came first, it is ordered once more, unless that one changed the state too or `spec` is given: a
    record that was made from an older one would undo the other change.

    Args:
        state: The new state; None to keep it.
        spec: The new record, whose `rev` and `state` do not count; None to keep it.
        reason: Why the state is so, one word or short phrase.
        by: Who orders it, for people.
        at: UTC epoch seconds; None for now.
        expects: The revision that the caller decided on; None for the present one.

    Returns: The job's record with the change.

    Raises:
        UnknownName: there is no such job.
        OrderRefused: the job was changed meanwhile, or is deleted.
        NotAnswered: no worker answered in time; the order is in the log.
        EngineError: the log does not answer.
    """
    order = JobOrder(0, state, spec, reason, by, time.time() if at is None else at)
    before = _present(settings, topics, job)
    try:
        return _ordered(settings, producer, topics, before, order, expects, wait_s)
    except OrderRefused:
        if expects is not None or spec is not None:
            raise
        now = _present(settings, topics, job)
        if (now.epoch, now.spec.state) == (before.epoch, state):
            return now
        if (now.epoch, now.spec.state) != (before.epoch, before.spec.state):
            raise
    return _ordered(settings, producer, topics, now, order, None, wait_s)


def apply_change(  # noqa: PLR0913  # the parts of an order
    settings: "Settings",
    producer: Producer,
    topics: Topics,
    copy: JobCopy,
    *,
    state: JobStateName | None = None,
    spec: JobSpec | None = None,
    reason: str = "",
    by: str = "",
    expects: int | None = None,
) -> JobCopy:
    """Change a job whose record is `copy`.

    With fetch workers on the log this is an order. Without them its record is written, as nobody would answer. Workers
    that were killed count until their session has timed out, so they are looked at again after the wait for an answer.

    Args:
        state, spec, reason, by, expects: As for `change_job`; `spec` is made from `copy`, whose revision is expected.

    Returns: The job's record with the change.

    Raises: UnknownName, OrderRefused, NotAnswered, EngineError: as `change_job`.
    """
    rev = copy.spec.rev
    if has_workers(settings, "fetch"):
        expects = rev if spec is not None else expects
        try:
            return change_job(
                settings, producer, topics, copy.job, state=state, spec=spec, reason=reason, by=by, expects=expects
            )
        except NotAnswered:
            if has_workers(settings, "fetch"):
                raise
    order = JobOrder(rev, state, spec, reason, by, time.time())
    changed = ordered_spec(copy.spec, order, overruling(settings, topics, copy.spec))
    return write_job(settings, producer, topics, copy.job, changed, copy.epoch, copy.after)


def renew_ends(settings: "Settings", topics: Topics, jobs: Iterable[str], why: str) -> None:
    """Let jobs that have outputs end behind rows that are on their way by now, also if they have ended already.

    An output is complete with the rows before its job's end, and the end is that of a revision: so each job gets a new
    one. A finished job runs until these rows are in. Others keep their state: a stopped one has a queue.

    Args:
        why: Reason of a finished job that runs again.

    Raises: NotAnswered, EngineError: as `apply_change`.
    """
    producer = CommandProducer(settings, "crawlog-control")
    control = settled_control(settings, producer, topics)
    for job in jobs:
        if (copy := control.job(job)) is not None:
            _renew_end(settings, producer, topics, copy, why)


def _renew_end(settings: "Settings", producer: Producer, topics: Topics, copy: JobCopy, why: str) -> None:
    """Gives one job a new revision. It tries again if a change came first: its end may be older than the rows."""
    now: JobCopy | None = copy
    for tries_left in reversed(range(RENEWALS)):
        if now is None or not now.spec.outputs or now.spec.state == "deleted":
            return
        is_finished = traits(now.spec.state).done
        reason, state = (why, RUNNING) if is_finished else (now.spec.reason, None)
        try:
            apply_change(settings, producer, topics, now, state=state, reason=reason, expects=now.spec.rev)
        except (OrderRefused, Misconfigured):  # changed meanwhile, or deleted
            if not tries_left:
                raise
            now = known_job(settings, topics, copy.job)
        else:
            return


def overruling(settings: "Settings", topics: Topics, spec: JobSpec) -> int:
    """A revision for a changed record that no order in the log outranks, also one that nobody has answered.

    A worker that starts takes such an order before it reads the record. The order expects the revision of `spec`, so
    it makes the next one, or that of its offset.

    Raises: EngineError: the log does not answer.
    """
    return max(log_end(settings, topics.urls), spec.rev + 2)


def has_workers(settings: "Settings", stage: str) -> bool:
    """Whether workers of a stage are in its group; True where the cluster does not tell this user."""
    try:
        return bool(member_names(Admin(settings), stage_group(settings, stage), CLUSTER_TIMEOUT_S))
    except EngineError:
        return True


def _present(settings: "Settings", topics: Topics, job: str) -> JobCopy:
    copy = known_job(settings, topics, job)
    if copy is None or copy.spec.state == "deleted":
        raise UnknownName(f"there is no job {job} in the log; `crawlog jobs` names those that there are.")
    return copy


def _ordered(
    settings: "Settings",
    producer: Producer,
    topics: Topics,
    before: JobCopy,
    order: JobOrder,
    expects: int | None,
    wait_s: float,
) -> JobCopy:
    order = msgspec.structs.replace(order, expects=before.spec.rev if expects is None else expects)
    start = log_end(settings, topics.control)
    offset = _written(producer, topics, before, order)
    given = _Order(before, order, offset, max(offset, order.expects + 1))
    answer = _answer(settings, topics, given, start, wait_s)
    if answer is None:
        raise NotAnswered(before.job, offset, wait_s)
    if not _is_taken(given, answer):
        raise OrderRefused(before.job, _refusal(given, answer))
    return answer


def _written(producer: Producer, topics: Topics, copy: JobCopy, order: JobOrder) -> int:
    """The offset of an order, once it is in the log."""
    offsets: list[int] = []
    record = urls.encode(UrlsRecord(job=copy.job, epoch=copy.epoch, order=order))
    crash_points.point("order.sending")
    producer.send(topics.urls, record, partition=0, on_delivery=lambda _, offset: offsets.append(offset))
    acknowledged(producer, f"the order for job {copy.job}")
    crash_points.point("order.acknowledged")
    return offsets[0]


def _answer(settings: "Settings", topics: Topics, given: _Order, start: int, wait_s: float) -> JobCopy | None:
    """The first copy of the job that answers an order; None if there is none in time.

    Args:
        start: An offset in crawl.control before the order.
    """
    end = time.monotonic() + wait_s
    with closing(Tail(settings, {topics.control: start}, batch=1)) as tail:
        while (left_s := end - time.monotonic()) > 0:
            for item in tail.poll(min(left_s, POLL_S)):
                if isinstance(item, ReadFault):
                    raise item.error
                copy = item.record if isinstance(item, ControlRecord) else None
                if isinstance(copy, JobCopy) and copy.job == given.before.job and copy.answers >= given.offset:
                    return copy
    return None


def _is_taken(given: _Order, answer: JobCopy) -> bool:
    """Whether an order was taken. A later order may have been answered before this copy was written."""
    if answer.answers == given.offset:
        return not answer.refusal
    if answer.spec.rev == given.rev:
        return True
    return answer.spec.state == given.order.state and given.order.spec is None


def _refusal(given: _Order, answer: JobCopy) -> str:
    if answer.answers == given.offset:
        return answer.refusal
    return f"it has revision {answer.spec.rev} by now, and is {answer.spec.state}"


def remove_notes(settings: "Settings", producer: Producer, topics: Topics, job: str) -> int:
    """Remove what crawl.control has of a deleted job, but the record that says so; nothing if its name is taken again.

    A command that takes the name calls it too, before it writes its record: the one that deleted the job may have been
    killed, or the order obeyed when that one had ended. It may be called again after a kill.

    Returns: The number of records that were removed, without commands that hold nothing: a removed one reads as such.

    Raises: EngineError: the log does not answer.
    """
    notes = _notes_of(read_control(settings, topics, joins=True), job)
    for key in notes:
        crash_points.point("delete.removing")
        producer.send(topics.control, None, key=key, partition=0)
    acknowledged(producer, topics.control)
    return sum(not isinstance(entry, Command) or entry.holds for entry in notes.values())


def _notes_of(control: ControlState, job: str) -> dict[bytes, Control]:
    """What is left of a deleted job. A command that an operator gave after the deletion is for the next job."""
    copy = control.job(job)
    if copy is None or copy.spec.state != "deleted":
        return {}
    before = set(takewhile(lambda key: key != key_of("job", job), control.records))
    notes = {key: entry for key, entry in control.records.items() if _is_note_of(entry, job)}
    return {
        key: entry for key, entry in notes.items() if key in before or not isinstance(entry, Command) or entry.reason
    }


def _is_note_of(entry: Control, job: str) -> bool:
    if isinstance(entry, Rewound):
        return entry.job == job and entry.complete
    if isinstance(entry, Command):
        return entry.job == job
    return isinstance(entry, Finished | StartEnded | ParsedAgain | OutputNote | HookNote | Join) and entry.job == job


def create_job(
    settings: "Settings",
    producer: "Producer",
    topics: "Topics",
    job: str,
    spec: "JobSpec",
    epoch: int,
    since: int,
) -> JobCopy:
    """Write the record of a new job, unless another command was first.

    Args:
        since: An offset of crawl.control, from before the caller read there that there is no such job.

    Returns: The job's record; it has another `spec` if another command was first.

    Raises: EngineError: not acknowledged in time.
    """
    after = epoch - 1  # a later epoch than the first is that of a name that a deleted job had
    if epoch:
        remove_notes(settings, producer, topics, job)
    own = write_job(settings, producer, topics, job, spec, epoch, after)
    first = _first_copy(settings, topics, own, since)
    if first.spec == spec:
        return own
    again = msgspec.structs.replace(first.spec, rev=first.spec.rev + 1)
    return write_job(settings, producer, topics, job, again, epoch, after)


def _first_copy(settings: "Settings", topics: "Topics", own: JobCopy, since: int) -> JobCopy:
    """The first copy of a job's record in its epoch."""
    end = log_end(settings, topics.control)
    with closing(read_records(settings, topics.control, 0, since, end)) as later:
        for record in later:
            try:
                entry = records.decode(record.key(), record.value())
            except ValueError:
                continue  # another client wrote it
            if isinstance(entry, JobCopy) and (entry.job, entry.epoch) == (own.job, own.epoch):
                return entry
    return own
