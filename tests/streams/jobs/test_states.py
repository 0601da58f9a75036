"""The table of states and orders, against a small oracle; and how a job that has ended is reported."""

from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.control import Finished, JobCopy, key
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.urls import JobOrder, UrlsRecord, encode
from crawlog.streams.jobs import (
    OPERATOR,
    ControlState,
    FollowedJobs,
    OrderName,
    after,
    how_ended,
    is_final,
    traits,
)
from tests.support.folding import State, job


@pytest.mark.parametrize(
    ("state", "reason", "told", "is_whole"),
    [
        ("finished", "", ("finished", ""), True),
        ("cancelled", "", ("cancelled", ""), False),
        ("failed", "spider_broken", ("failed", ""), False),
        ("stopped", "max_pages", ("max_pages", ""), True),
        ("stopped", OPERATOR, ("stopped", ""), False),
        ("stopped", "", ("stopped", ""), False),
        ("stopped", "cancelled", ("closed", "cancelled"), True),
        ("stopped", "stopped", ("closed", "stopped"), True),
    ],
)
def test_a_stopped_job_reached_its_limit_was_closed_or_stopped(
    state: str, reason: str, told: tuple[str, str], *, is_whole: bool
) -> None:
    """A spider may give any reason, also one of our states. Only the operator's stop and worse ends leave rows out."""
    assert how_ended(state, reason) == told
    assert is_final(state, reason) == is_whole


STATES: tuple[JobStateName, ...] = get_args(JobStateName)
ORDERS: tuple[OrderName, ...] = get_args(OrderName)


class Step(NamedTuple):
    """What one of two writers does.

    Attributes:
        order: None for a note that the job has ended, of the revision that the writer read.
        looks: Whether it reads the job again before it decides.
        late: How many records later the other partition gets the copy.
    """

    writer: int
    order: OrderName | None
    looks: bool
    late: int


STEPS = st.lists(
    st.builds(Step, st.integers(0, 1), st.none() | st.sampled_from(ORDERS), st.booleans(), st.integers(0, 3))
)


class Race:
    """A job in two partitions and in crawl.control; beside them the oracle: its state, revision and noted end."""

    def __init__(self) -> None:
        self.here, self.there = State(job(rev=1)), State(job(rev=1), partition=1)
        self.control, self.followed = ControlState(), FollowedJobs()
        self.state: JobStateName = "running"
        self.rev, self.ended = 1, 0
        self.read: dict[int, tuple[int, JobStateName]] = {0: (1, "running"), 1: (1, "running")}
        self.copies: list[tuple[int, bytes]] = []

    def note(self, record: JobCopy | Finished) -> None:
        """A record arrives in crawl.control."""
        self.control.take(key(record), record)
        self.followed.take(record)

    def end(self, rev: int, state: JobStateName) -> None:
        """A writer notes the end of the revision that it has read, if that one has ended."""
        if traits(state).ended:
            self.ended = rev
            self.note(Finished("j", 1.0, rev=rev, reason=state))

    def order(self, order: OrderName, expects: int, seen: JobStateName, due: int) -> None:
        """A writer gives an order that fits the state it has read; partition 1 gets the copy when that is due."""
        wanted = after(order, seen)
        if wanted is None:
            return
        (effects,) = self.here.take(encode(UrlsRecord("j", 0, order=JobOrder(expects, wanted, at=1.0))))
        is_taken = expects == self.rev and self.state != "deleted"
        assert [not one.refusal for one in effects.answered] == [is_taken]
        if is_taken:
            assert wanted == after(order, self.state)
            spec = self.here.fold.jobs["j"].spec
            self.state, self.rev = wanted, spec.rev
            self.copies.append((due, job(rev=spec.rev, state=wanted)))
            self.note(JobCopy("j", spec))

    def check(self) -> None:
        """Compares partition 0 and crawl.control with the oracle."""
        spec, end = self.here.fold.jobs["j"].spec, self.control.end("j")
        assert (spec.state, spec.rev) == (self.state, self.rev)
        assert (end.rev if end is not None else 0) == (self.ended if self.ended == self.rev else 0)
        if self.control.job("j") is not None:
            assert ("j" in self.followed.open) == (self.state != "deleted" and end is None)


@given(STEPS)
def test_two_writers_take_no_step_that_the_table_lacks(steps: list[Step]) -> None:
    """An order, and an end, counts for the revision that its writer read. Copies may be late, and out of order."""
    race = Race()
    for number, step in enumerate(steps):
        if step.looks:
            race.read[step.writer] = race.rev, race.state
        rev, seen = race.read[step.writer]
        if step.order is None:
            race.end(rev, seen)
        else:
            race.order(step.order, rev, seen, number + step.late)
        race.check()
    for _, record in sorted(race.copies, key=lambda copy: copy[0]):
        race.there.take(record)
    there = race.there.fold.jobs["j"].spec
    assert (there.state, there.rev) == (race.state, race.rev)


@given(st.sampled_from(STATES), st.sampled_from(STATES))
def test_the_fold_takes_the_steps_of_the_table_alone(state: JobStateName, wanted: JobStateName) -> None:
    """Whatever a client writes: a cancelled job, or a finished one, is not stopped, and none begins to fail."""
    folded = State(job(rev=1, state=state))
    (effects,) = folded.take(encode(UrlsRecord("j", 0, order=JobOrder(1, wanted, at=1.0))))
    is_taken = state != "deleted" and (state == wanted or any(after(order, state) == wanted for order in ORDERS))
    assert [not one.refusal for one in effects.answered] == [is_taken]
    assert folded.fold.jobs["j"].spec.state == (wanted if is_taken else state)


@pytest.mark.parametrize("order", ORDERS)
def test_only_a_deletion_leaves_what_is_final(order: OrderName) -> None:
    """A cancelled job fetches nothing more; of a deleted one only the tombstone is left."""
    assert after(order, "cancelled") in {None, "cancelled", "deleted"}
    assert after(order, "deleted") in {None, "deleted"}


@pytest.mark.parametrize("state", STATES)
def test_an_order_that_was_taken_may_be_given_again(state: JobStateName) -> None:
    """A command that was killed is given once more: it finds the job as it wanted it. The coordinator's are not."""
    for order in ("pause", "resume", "stop", "cancel", "delete", "rewind"):
        now = after(order, state)
        assert now is None or after(order, now) == now
