"""Which record of a job counts. Every partition decides this alone, and all must agree whatever the order of records.

    record of the job ─► supersedes: (epoch, revision, bytes) greater than those in the state?
    order (partition 0) ─► refusal: is `expects` the current revision? does the table of states have the step?
                           └► ordered_spec: the record that the order makes
    state `deleted` ─► tombstone: name, epoch and revision; records of that epoch or before do not count

The owner of partition 0 copies what an order made to the other partitions, as a record of the job.
"""

import msgspec

from crawlog.schemas import urls as u
from crawlog.streams.jobs import leads_to

from . import rows as r
from .jobs import JobState
from .rows import Skip


def supersedes(job: JobState, epoch: int, spec: u.JobSpec) -> bool:
    """Whether a record replaces the one that the state has.

    A greater epoch wins, then a deletion, then a greater revision. Of two records of one revision, written at the same
    time, the one with the greater encoding wins.
    """
    if epoch != job.epoch:
        return epoch > job.epoch
    if job.awaited or is_deletion(spec) != job.deleted:
        return job.awaited or is_deletion(spec)
    if spec.rev != job.spec.rev:
        return spec.rev > job.spec.rev
    return r.pack(kept_for_life(spec, job)) > r.pack(job.spec)


def kept_for_life(spec: u.JobSpec, job: JobState) -> u.JobSpec:
    """The record with the job's own order and dedup: queue keys depend on the one, the seen table on the other."""
    now = job.spec
    return msgspec.structs.replace(spec, order=now.order, dedup=now.dedup, dedup_error=now.dedup_error)


def is_deletion(spec: u.JobSpec) -> bool:
    return spec.state == "deleted"


def tombstone(spec: u.JobSpec) -> u.JobSpec:
    """The part of a deletion that is kept."""
    return u.JobSpec(spec.rev, state="deleted", reason=spec.reason, by=spec.by, at=spec.at, changed_at=spec.changed_at)


def refusal(job: JobState | None, name: str, epoch: int, order: u.JobOrder) -> str:
    """Why an order changes nothing; empty if it is taken.

    Args:
        job: None if it is not known.
        epoch: Of the order's record.
    """
    if name == u.DEFAULT_JOB and order.state == "deleted":
        return "the job of bare records cannot be deleted"
    if job is None or (job.deleted and epoch > job.epoch):
        return _creation_refusal(job, name, order)
    if job.deleted:
        return f"job {name} is deleted; a new job of its name has a greater epoch than {job.epoch}"
    return _change_refusal(job, epoch, order)


def _change_refusal(job: JobState, epoch: int, order: u.JobOrder) -> str:
    if epoch != job.epoch:
        return f"the order is of epoch {epoch}, and job {job.name} is in epoch {job.epoch}"
    if job.awaited:
        return f"job {job.name} begins epoch {job.epoch} just now"
    if order.expects != job.spec.rev:
        return f"the order expects revision {order.expects}, and job {job.name} has revision {job.spec.rev}"
    if order.state is not None and not leads_to(job.spec.state, order.state):
        return f"job {job.name} is {job.spec.state} and cannot become {order.state}"
    return ""


def _creation_refusal(job: JobState | None, name: str, order: u.JobOrder) -> str:
    if order.expects not in (0, job.spec.rev if job is not None else 0):
        return f"the order expects revision {order.expects}, and there is no job {name}"
    return "" if order.spec is not None else f"there is no job {name}, and the order has no record of one"


def ordered_spec(base: u.JobSpec | None, order: u.JobOrder, rev: int) -> u.JobSpec:
    """The record that an order makes.

    Args:
        base: The job's record; None for a job that begins with the order.
        rev: Revision of the new record if it is greater than that of `base`; the offset of an order in the log.
    """
    spec = order.spec or base
    assert spec is not None
    submitted = base or spec
    return msgspec.structs.replace(
        spec,
        rev=max(rev, base.rev + 1 if base is not None else 1),
        state=order.state or (spec.state if base is None or order.spec is None else base.state),
        reason=order.reason,
        by=submitted.by or order.by,
        at=submitted.at or order.at,
        changed_at=order.at,
    )


# What a record asks of the outside: to forward URLs, to send dead letters, to fold again, to answer orders.


class Answered(msgspec.Struct, frozen=True):
    """An order that was folded.

    Attributes:
        offset: Of its record.
        refusal: Why nothing was changed; empty if the order was taken.
    """

    job: str
    offset: int
    refusal: str = ""


class Effects(msgspec.Struct):
    """What the partition must do after a record, live or in a restore; doing it twice is harmless.

    Attributes:
        forward: URLs that belong to another partition, with that partition, one record each, `fwd` counted up.
        dead: Why the record, or a part of it, goes to crawl.dead.
        rewind: The range that the record takes back. Nothing was changed yet: the state must be folded again, with
            `effective(fold.skipped, rewind)`.
        answered: Orders that were taken or refused (partition 0). `JobState.answers` keeps the last one of each job.
    """

    forward: dict[int, u.UrlsRecord] = {}
    dead: list[str] = []
    rewind: Skip | None = None
    answered: list[Answered] = []


NO_EFFECTS = Effects()  # Of nearly every record; shared, so never changed


def effective(skipped: tuple[Skip, ...], rewind: Skip) -> tuple[Skip, ...]:
    """The skipped ranges after a rewind was met; ranges inside it no longer count, ranges after it still do."""
    before = tuple(skip for skip in skipped if skip.end < rewind.start)
    return (*before, rewind, *(skip for skip in skipped if skip.start > rewind.end))
