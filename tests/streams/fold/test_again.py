"""URLs that wait for their time, and those that are due again after they are done."""

from typing import Any

import pytest

from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.fold import rows as r
from tests.support.folding import AT, State, done, found, job, sequence

A = "http://a.com/1"

AGE_S = 100.0


def recurring(**changes: Any) -> bytes:
    """A job whose URLs are due again."""
    return job(recrawl=u.RecrawlRules(AGE_S), **changes)


def due_of(state: State) -> list[float]:
    """When URLs that wait are due, seconds after the log's time."""
    index = [r.unpack_due(key)[0] / 1000 - AT for key, _ in state.rows.scan(b"d")]
    assert sorted(index) == sorted(row.due_ms / 1000 - AT for row in state.queued(b"w"))
    return index


def test_a_url_with_an_eta_waits_in_the_due_time_index_and_counts_as_queued() -> None:
    """It has its row from the start, so a restart knows it."""
    state = State(job(), found(A, eta=AT + 365 * 86_400.0))
    assert (state.urls(), state.counts.queued, due_of(state)) == ([], 1, [365 * 86_400.0])
    state.take(done(A, sequence(1), attempt=1))
    assert (state.counts.queued, state.counts.fetched, due_of(state), state.queued(b"w")) == (0, 1, [], [])


def test_a_url_of_another_job_is_not_due_again() -> None:
    """The state of jobs without `recrawl.age` does not grow."""
    state = State(job(), found(A, age=5, itag="x"), done(A, sequence(1), at=AT, attempt=1))
    assert (state.counts.again, due_of(state)) == (0, [])


def test_a_url_that_is_done_is_due_again_after_its_age_without_being_queued() -> None:
    """It keeps its row; each further done lets it wait anew."""
    state = State(recurring(), found(A), done(A, sequence(1), at=AT, attempt=1))
    assert (state.counts.queued, state.counts.again, due_of(state)) == (0, 1, [AGE_S])
    state.take(done(A, sequence(1), status="not_modified", at=AT + 120, attempt=1))
    assert (state.counts.queued, state.counts.again, state.counts.fetched) == (0, 1, 2)
    assert due_of(state) == [120 + AGE_S]


def test_a_failed_attempt_at_a_url_that_is_due_again_is_tried_again() -> None:
    """Its next attempt counts; the URL is not queued meanwhile."""
    state = State(recurring(), found(A), done(A, sequence(1), at=AT, attempt=1))
    state.take(done(A, sequence(1), "failed", at=AT + 100, attempt=1, next_at=AT + 107, delay_s=7.0))
    assert (due_of(state), state.counts.again, state.counts.queued) == ([107.0], 1, 0)
    state.take(done(A, sequence(1), at=AT + 108, attempt=2))
    assert (due_of(state), state.queued(b"w")[0].attempt) == ([108 + AGE_S], 0)


@pytest.mark.parametrize("record", [RequestRecord(method="POST"), RequestRecord(unfiltered=True)])
def test_a_request_that_changes_something_or_is_unfiltered_is_not_repeated(record: RequestRecord) -> None:
    """A POST is done once; each `start` that begins again would add another unfiltered one."""
    state = State(recurring(), found(A, id=7, request=record), done(A, sequence(1), at=AT, attempt=1, id=7))
    assert (state.counts.again, state.counts.queued, due_of(state)) == (0, 0, [])


@pytest.mark.parametrize(
    ("fields", "due_s"),
    [
        ({}, AGE_S),
        ({"itag": "v1"}, AGE_S),
        ({"itag": "v2"}, 0.0),
        ({"lastmod": AT - 1}, AGE_S),
        ({"lastmod": AT + 1}, 0.0),
        ({"age": 30.0}, 30.0),
    ],
)
def test_a_found_lets_a_known_url_be_due_earlier_by_age_itag_or_lastmod(fields: dict[str, Any], due_s: float) -> None:
    """Pyspider's `age` and `itag`, and sitemaps' `lastmod`."""
    state = State(recurring(), found(A, itag="v1"), done(A, sequence(1), at=AT, attempt=1))
    state.take(found(A, **fields))
    assert (due_of(state), state.counts.again, state.counts.queued) == ([due_s], 1, 0)


def test_the_age_of_a_request_replaces_that_of_its_job() -> None:
    """Also after the next done."""
    state = State(recurring(), found(A, age=7.0), done(A, sequence(1), at=AT, attempt=1))
    assert due_of(state) == [7.0]
    state.take(done(A, sequence(1), at=AT + 50, attempt=1))
    assert due_of(state) == [57.0]


def test_a_url_that_shall_be_asked_again_at_once_leaves_no_second_row() -> None:
    """Its done no longer counts."""
    state = State(recurring(), found(A, itag="v1"), done(A, sequence(1), at=AT, attempt=1), found(A, again="fetched"))
    assert (state.urls(), due_of(state)) == ([A], [])
    assert (state.counts.queued, state.counts.again, state.counts.fetched) == (1, 0, 0)
    assert state.queued()[0].again == r.Recurrence(every_s=AGE_S, itag="v1")


def test_a_url_found_nearer_is_due_at_once_with_its_new_depth() -> None:
    """In a job with a limit of depth its links may lead further."""
    state = State(recurring(max_depth=3), found(A, depth=3), done(A, sequence(1), at=AT, attempt=1, depth=3))
    state.take(found(A, depth=1))
    assert (due_of(state), [row.depth for row in state.queued(b"w")]) == ([0.0], [1])
