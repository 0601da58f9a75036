"""Which record of a job counts: orders, two writers at once, deletions and their namesakes."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.streams.fold import Answered
from tests.support.folding import ANY, A, B, State, done, found, job, sequence, spec

# ---------------------------------------------------------------------- orders


def order(expects: int, name: str = "j", epoch: int = 0, **fields: Any) -> bytes:
    """An order for a job."""
    return u.encode(u.UrlsRecord(job=name, epoch=epoch, order=u.JobOrder(expects, **fields)))


def copied(state: State, name: str = "j") -> bytes:
    """The record that the coordinator copies to the other partitions."""
    known = state.fold.jobs[name]
    return u.encode(u.UrlsRecord(job=name, epoch=known.epoch, spec=known.spec))


def test_an_order_of_the_current_revision_changes_the_job() -> None:
    """State, reason and time change; submission and settings stay."""
    state = State(job(by="ann", at=5.0, max_depth=2))
    (effects,) = state.take(order(1, state="paused", reason="lunch", by="bob", at=9.0))
    now = state.fold.jobs["j"]
    told = (now.spec.state, now.spec.reason, now.spec.by, now.spec.at, now.spec.changed_at, now.spec.max_depth)
    assert told == ("paused", "lunch", "ann", 5.0, 9.0, 2)
    assert effects.answered == [Answered("j", 1, "")]
    assert (now.spec.rev, now.answers, now.refusal) == (2, 1, "")


def test_the_revision_of_a_change_is_its_orders_offset() -> None:
    """So a later order has a greater one, also after a restart."""
    state = State(job(), *[found(A)] * 6, order(1, state="paused"))
    assert state.fold.jobs["j"].spec.rev == 7


def test_an_order_takes_a_new_record_and_keeps_the_state() -> None:
    """What is fixed for the job's life stays too."""
    state = State(job(state="paused", order="lifo"), order(1, spec=spec(max_pages=7, rev=99)))
    assert state.fold.jobs["j"].spec == spec(rev=2, state="paused", order="lifo", max_pages=7)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (order(4, state="paused"), "the order expects revision 4, and job j has revision 1"),
        (order(1, epoch=1, state="paused"), "the order is of epoch 1, and job j is in epoch 0"),
        (order(1, name="k", state="paused"), "the order expects revision 1, and there is no job k"),
        (order(0, name="k", state="paused"), "there is no job k, and the order has no record of one"),
        (order(1, spec=spec(scope=u.ScopeSpec(include=("(",)))), "job 'j' cannot be taken"),
        (order(0, name="default", state="deleted"), "the job of bare records cannot be deleted"),
    ],
)
def test_an_order_that_does_not_fit_is_refused_and_changes_nothing(value: bytes, why: str) -> None:
    """The refusal says why, and is kept with the job if there is one."""
    state = State(job())
    before = state.fold.jobs["j"].spec
    (effects,) = state.take(value)
    (answered,) = effects.answered
    assert answered.refusal.startswith(why)
    assert state.fold.jobs["j"].spec == before
    assert set(state.fold.jobs) == {"j"}
    if answered.job == "j":
        assert (state.fold.jobs["j"].answers, state.fold.jobs["j"].refusal) == (1, answered.refusal)


def test_an_order_in_another_partition_is_dead() -> None:
    """Only one partition decides, else two could differ."""
    state = State(job(), partition=1)
    (effects,) = state.take(order(1, state="paused"))
    assert effects.dead == ["an order belongs to partition 0, not to 1"]
    assert state.fold.jobs["j"].spec.state == "running"


def test_an_order_begins_a_job_that_is_not_known() -> None:
    """With it come the URLs that were found before."""
    state = State(found(A), order(0, spec=ANY, by="ann", at=3.0))
    begun = state.fold.jobs["j"]
    assert (begun.spec.rev, begun.spec.state, begun.spec.by, begun.spec.at) == (1, "running", "ann", 3.0)
    assert state.urls() == [A]


def test_an_order_waits_for_the_record_of_a_job_that_begins_again() -> None:
    """The record of the new epoch would be lost beside it."""
    rewind = u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind()))
    state = State(job(), rewind, order(1, epoch=1, state="paused"))
    assert state.fold.jobs["j"].refusal == "job j begins epoch 1 just now"


def test_the_last_answer_survives_a_restart() -> None:
    """A new owner of partition 0 answers again."""
    state = State(job(), order(1, state="paused"), order(1, state="cancelled"))
    before = state.fold.jobs["j"]
    state.checkpoint()
    state.open()
    after = state.fold.jobs["j"]
    assert (after.answers, after.refusal, after.spec) == (before.answers, before.refusal, before.spec)
    assert after.refusal


def test_a_zombies_finish_with_an_old_revision_changes_nothing() -> None:
    """1 a coordinator reads revision 1 and is stopped → 2 the job is paused and resumed → 3 it writes its finish."""
    state = State(job(), order(1, state="paused"), order(2, state="running"), order(1, state="finished"))
    assert state.fold.jobs["j"].spec.state == "running"


@given(st.data())
def test_two_writers_orders_give_one_winner_for_each_revision(data: st.DataObject) -> None:
    """Writers read the revision, then order, in any interleaving: each revision is followed by one order at most."""
    state = State(job())
    read: dict[int, int] = {}
    taken: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        writer = data.draw(st.integers(0, 2))
        if writer not in read:
            read[writer] = state.fold.jobs["j"].spec.rev
            continue
        expects = read.pop(writer)
        (effects,) = state.take(order(expects, state=data.draw(st.sampled_from(["paused", "running", "stopped"]))))
        if not effects.answered[0].refusal:
            taken.append(expects)
    assert len(set(taken)) == len(taken)
    assert taken == sorted(taken)


# ---------------------------------------------------------------------- one record in all partitions

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 3), st.sampled_from(["running", "paused", "deleted"]), st.integers(1, 3)
    ),
    min_size=1,
    max_size=4,
)


@given(RECORDS)
def test_the_same_record_wins_in_whatever_order_they_come(records: list[tuple[int, int, Any, int]]) -> None:
    """Two creations at once, rewinds and deletions: one end in each order of records."""
    values = [job(epoch=epoch, rev=rev, state=state, max_depth=deep) for epoch, rev, state, deep in records]
    ends = set()
    for some in permutations(values):
        known = State(*some).fold.jobs["j"]
        ends.add((known.epoch, known.deleted, known.after, known.spec))
    assert len(ends) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(["paused", "running", "finished", "cancelled"])), max_size=5
    ),
    st.randoms(),
)
def test_all_partitions_agree_after_copies_in_any_order(orders: list[tuple[int, Any]], draw: Any) -> None:
    """Copies are sent again by new owners, and overtake each other."""
    first, second = State(job()), State(job(), partition=0)
    copies = []
    for expects, state in orders:
        first.take(order(min(expects, first.fold.jobs["j"].spec.rev), state=state))
        copies += [copied(first)] * draw.randint(1, 2)
    draw.shuffle(copies)
    second.take(*copies)
    assert second.fold.jobs["j"].spec == first.fold.jobs["j"].spec


def test_a_greater_epoch_wins_whatever_its_revision() -> None:
    """An offset as revision may be greater than the next rewind's."""
    state = State(job(rev=1000, max_depth=1), job(epoch=1, rev=7, max_depth=2), job(rev=1001, max_depth=3))
    known = state.fold.jobs["j"]
    assert (known.epoch, known.spec.rev, known.spec.max_depth) == (1, 7, 2)


# ---------------------------------------------------------------------- deletion


def rows_of(state: State, name: str = "j") -> list[bytes]:
    """Rows that belong to a job, but its own record."""
    number = state.fold.jobs[name].number.to_bytes(4, "big")
    state.fold.flush()
    return [key for key, _ in state.rows.scan(b"") if key[1:5] == number and key[:1] not in b"jhm"]


LATE = [
    found(A, B),
    done(A, sequence(1)),
    u.encode(u.UrlsRecord(job="j", joins=("c.org",))),
    job(rev=3, max_depth=1),
    found(A, source="link"),
    u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl(A)], dropped={"scope": 4})),
    b'{"job": "j", "url": "http://a.com/"}',
]


def test_a_deleted_job_leaves_only_its_tombstone() -> None:
    """Settings, queue, known URLs and counts are gone at once."""
    state = State(job(max_depth=3), found(A, B), order(1, state="deleted", reason="old", by="bob", at=4.0))
    stone = state.fold.jobs["j"]
    assert stone.spec == u.JobSpec(2, state="deleted", reason="old", changed_at=4.0, by="bob", at=4.0)
    assert (stone.epoch, stone.deleted, stone.running) == (0, True, False)
    assert rows_of(state) == []


@pytest.mark.parametrize("late", LATE)
def test_late_records_of_a_deleted_job_change_nothing_and_are_no_dead_letters(late: bytes) -> None:
    """They were on the way when it was deleted."""
    state = State(job(), found(A), job(rev=2, state="deleted"))
    before = state.digest()
    (effects,) = state.take(late)
    assert (effects.dead, effects.forward) == ([], {})
    assert state.digest() == before


def test_a_late_order_for_a_deleted_job_is_refused() -> None:
    """Also with the revision of the tombstone."""
    state = State(job(), order(1, state="deleted"), order(2, state="running"))
    assert state.fold.jobs["j"].refusal == "job j is deleted; a new job of its name has a greater epoch than 0"
    assert state.fold.jobs["j"].deleted


def test_the_name_returns_with_a_greater_epoch_and_a_new_number() -> None:
    """The keys of the two jobs differ."""
    state = State(job(), found(A), job(rev=2, state="deleted"))
    old = state.fold.jobs["j"].number
    state.take(job(epoch=1), u.encode(u.UrlsRecord(job="j", epoch=1, urls=[u.FoundUrl(B)])))
    new = state.fold.jobs["j"]
    assert new.number != old
    assert (new.epoch, new.running, state.urls()) == (1, True, [B])


@pytest.mark.parametrize("late", [*LATE[:6], job(rev=9, state="deleted")])
def test_a_namesake_gets_nothing_of_the_deleted_job(late: bytes) -> None:
    """Founds, dones, names, records and deletions of the earlier epoch are dropped."""
    state = State(job(), found(A), job(rev=2, state="deleted"), job(epoch=1))
    spec_before, rows = state.fold.jobs["j"].spec, rows_of(state)
    (effects,) = state.take(late)
    assert (effects.dead, effects.forward) == ([], {})
    assert (state.fold.jobs["j"].spec, state.urls()) == (spec_before, [])
    assert rows_of(state) == rows


@pytest.mark.parametrize(
    "bare", [b'{"job": "j", "url": "http://a.com/"}', b'{"url": "http://a.com/"}', b"http://a.com/"]
)
def test_a_bare_found_of_a_namesake_is_taken(bare: bytes) -> None:
    """Another client's record has no epoch, as JSON and as a plain line."""
    state = State(job(), job(rev=2, state="deleted"), job(epoch=1), bare)
    assert state.urls() == [A]


def test_an_order_begins_a_namesake() -> None:
    """As a job record of a greater epoch does."""
    state = State(job(), order(1, state="deleted"), order(2, epoch=1, spec=ANY))
    assert (state.fold.jobs["j"].refusal, state.fold.jobs["j"].epoch, state.fold.jobs["j"].running) == ("", 1, True)


def test_a_number_is_never_used_again() -> None:
    """Not even after restarts: the greatest number stays in a row."""
    state = State()
    numbers = []
    for epoch in range(4):
        state.take(job(epoch=epoch))
        numbers.append(state.fold.jobs["j"].number)
        state.take(job(epoch=epoch, rev=2, state="deleted"))
        state.checkpoint()
        state.open()
    assert len(set(numbers)) == 4


def test_what_was_found_for_a_job_that_was_deleted_before_its_record_came_is_dropped() -> None:
    """The deletion overtook the record of the job."""
    state = State(found(A), job(rev=2, state="deleted"), job(), job(epoch=1))
    assert (state.urls(), list(state.rows.scan(b"p"))) == ([], [])


def test_a_rewind_of_the_crawl_brings_no_deleted_job_back() -> None:
    """The deletion lies in the range that the rewind takes back."""
    log = [job(), found(A), job(rev=2, state="deleted"), u.encode(u.UrlsRecord(epoch=1, rewind=u.Rewind(2)))]
    state = State(*log[:3])
    (effects,) = state.take(log[3])
    assert effects.rewind is not None
    again = reopened(effects.rewind)
    again.take(*log)
    assert again.fold.jobs["j"].deleted
    assert rows_of(again) == []


def reopened(*skipped: Any) -> State:
    """A state that folds the log again, without the ranges."""
    state = State()
    state.open(skipped)
    return state


def test_a_rewind_of_the_crawl_keeps_a_namesake_apart_from_the_deleted_job() -> None:
    """The creation of the namesake is taken back; the rewind writes its record again, in the new epoch."""
    log = [
        job(),
        found(A),
        job(rev=2, state="deleted"),
        job(epoch=1),
        u.encode(u.UrlsRecord(epoch=2, rewind=u.Rewind(1))),
        job(epoch=2, rev=2),
    ]
    (effects,) = State(*log[:4]).take(log[4])
    assert effects.rewind is not None
    state = reopened(effects.rewind)
    state.take(*log)
    namesake = state.fold.jobs["j"]
    assert (namesake.epoch, namesake.running, namesake.after, state.urls()) == (2, True, 0, [])


def test_a_rewind_of_a_deleted_job_changes_nothing() -> None:
    """A rewind drops rows, and there are none."""
    state = State(job(), job(rev=2, state="deleted"))
    before = state.digest()
    state.take(u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind())))
    assert state.digest() == before


@given(st.data())
def test_the_queue_of_each_job_is_known_without_a_look_at_the_others(data: st.DataObject) -> None:
    """After any records and restarts, the jobs with a queue are those whose counts say so."""
    state = State()
    for _ in range(data.draw(st.integers(1, 10))):
        name, at = data.draw(st.sampled_from("jkl")), state.offset
        known = state.fold.jobs.get(name)
        rev, epoch = (known.spec.rev, known.epoch) if known is not None else (0, 0)
        records = [
            job(name, epoch, rev=at),
            found(A, B, job=name),
            done(A, sequence(max(at - 1, 0)), job=name, epoch=epoch),
            order(rev, name, epoch, state=data.draw(st.sampled_from(["finished", "deleted", "running"]))),
            job(name, epoch + 1, rev=at),
        ]
        state.take(data.draw(st.sampled_from(records)))
        if data.draw(st.booleans()):
            state.checkpoint()
            state.open()
        counted = [one.number for one in state.fold.numbers.values() if one.counts.queued]
        assert [one.number for one in state.fold.with_queue()] == sorted(counted)


@given(st.data())
def test_a_deletion_ends_the_same_whatever_comes_late(data: st.DataObject) -> None:
    """Late founds, dones, records and rewinds of the job, in any order, then a namesake that is another job."""
    late = [
        *LATE,
        u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind())),
        order(1, state="running"),
        job(rev=2, state="deleted"),
        job(rev=50, state="finished"),
    ]
    state = State(job(), found(A, B), order(1, state="deleted"))
    stone = state.fold.jobs["j"].spec
    state.take(*data.draw(st.lists(st.sampled_from(late), max_size=8)))
    assert (state.fold.jobs["j"].spec, rows_of(state)) == (stone, [])
    state.take(job(epoch=1))
    state.take(*data.draw(st.lists(st.sampled_from([*LATE[:6], late[-2], late[-1]]), max_size=8)))
    namesake = state.fold.jobs["j"]
    assert (namesake.running, namesake.counts.queued, namesake.spec.rev) == (True, 0, 1)
    assert list(state.rows.scan(b"p")) == []


def test_two_folds_of_a_log_with_orders_and_deletions_are_equal_with_restarts_anywhere() -> None:
    """What `verify` compares: tombstones, answers and numbers stand in rows, and hang on no checkpoint."""
    log = [
        job(),
        found(A),
        order(1, state="paused"),
        order(1, state="running"),
        job("k"),
        order(2, state="deleted"),
        found(B, job="k"),
        job(epoch=1),
        found(A),
        u.encode(u.UrlsRecord(job="j", epoch=1, urls=[u.FoundUrl(B)])),
        order(1, "k", state="finished"),
    ]
    other = State()
    for value in log:
        other.take(value)
        other.checkpoint()
        other.open()
    assert other.digest() == State(*log).digest()
