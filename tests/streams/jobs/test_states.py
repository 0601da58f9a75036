"""The table of states and orders, against a small oracle; and how a job that has ended is reported."""

from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.urls import JobOrder, UrlsRecord, encode
from crawlog.streams.jobs import OPERATOR, OrderName, after, how_ended, is_final
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
        looks: Whether it reads the job again before it decides.
        late: How many records later the other partition gets the copy.
    """

    writer: int
    order: OrderName
    looks: bool
    late: int


STEPS = st.lists(st.builds(Step, st.integers(0, 1), st.sampled_from(ORDERS), st.booleans(), st.integers(0, 3)))


@given(STEPS)
def test_two_writers_take_no_step_that_the_table_lacks(steps: list[Step]) -> None:
    """An order counts for the revision that its writer read. Copies may be late, and out of order, elsewhere."""
    here, there = State(job(rev=1)), State(job(rev=1), partition=1)
    state: JobStateName = "running"
    rev, read = 1, {0: (1, state), 1: (1, state)}
    copies: list[tuple[int, bytes]] = []
    for number, step in enumerate(steps):
        if step.looks:
            read[step.writer] = rev, state
        expects, seen = read[step.writer]
        wanted = after(step.order, seen)
        if wanted is None:
            continue
        (effects,) = here.take(encode(UrlsRecord("j", 0, order=JobOrder(expects, wanted, at=1.0))))
        is_taken = expects == rev and state != "deleted"
        assert [not one.refusal for one in effects.answered] == [is_taken]
        known = here.fold.jobs["j"]
        if is_taken:
            assert wanted == after(step.order, state)
            state, rev = wanted, known.spec.rev
            copies.append((number + step.late, job(rev=rev, state=state)))
        assert (known.spec.state, known.spec.rev) == (state, rev)
    for _, record in sorted(copies, key=lambda copy: copy[0]):
        there.take(record)
    assert (there.fold.jobs["j"].spec.state, there.fold.jobs["j"].spec.rev) == (state, rev)


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
