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


def found_at(seconds: float, **fields: Any) -> bytes:
    """A found of A that was made so many seconds after the log's time."""
    return u.encode(u.UrlsRecord("j", at=AT + seconds, urls=[u.FoundUrl(A, **fields)]))


@pytest.mark.parametrize("fields", [{"itag": "v1"}, {"lastmod": AT - 5}])
def test_the_same_version_postpones_a_url_up_to_max_age(fields: dict[str, Any]) -> None:
    """A sitemap that lists it unchanged spares the request; a newer version, found later, does not wait."""
    rules = u.RecrawlRules(AGE_S, max_age=250.0)
    state = State(job(recrawl=rules), found(A, **fields), done(A, sequence(1), at=AT, attempt=1))
    dues = []
    for seconds in (60, 140, 200):
        state.take(found_at(seconds, **fields))
        dues += due_of(state)
    assert dues == [160, 240, 250]
    state.take(found_at(210, itag="v2", lastmod=AT + 205))
    assert due_of(state) == [0]
    state.take(found_at(220, itag="v2", lastmod=AT + 205))
    assert due_of(state) == [0]


def change(page: int, digest: int, row: int = 1, at: float = AT + 1, **fields: Any) -> bytes:
    """The digest of a page's items."""
    one = u.PageChange(A, sequence(row), page, digest, **{"item": (0, page), **fields})
    return u.encode(u.UrlsRecord("j", at=at, changes=[one]))


ADAPTIVE = u.RecrawlRules(AGE_S, adaptive=True, min_age=40.0, max_age=200.0)


def test_the_interval_is_halved_when_items_changed_and_grows_by_half_when_not() -> None:
    """Within its bounds; the first page says nothing, and a 304 is an unchanged page by its done alone."""
    state = State(job(recrawl=ADAPTIVE), found(A), done(A, sequence(1), at=AT, attempt=1), change(1, 7))
    dues = due_of(state)
    for at, page, digest in ((100, 2, 8), (150, 3, 9), (190, 4, 9), (250, 5, 9)):
        state.take(done(A, sequence(1), at=AT + at, attempt=1), change(page, digest, at=AT + at + 1))
        dues += [due - at for due in due_of(state)]
    assert dues == [100, 50, 40, 60, 90]
    for at in (340, 475, 675):
        state.take(done(A, sequence(1), "not_modified", at=AT + at, attempt=1))
    assert due_of(state) == [675 + 200]


def test_a_change_counts_the_same_before_and_after_the_done_of_its_page() -> None:
    """Parse may be faster than the done."""
    first = [job(recrawl=ADAPTIVE), found(A), done(A, sequence(1), at=AT, attempt=1), change(1, 7)]
    last = [done(A, sequence(1), at=AT + 100, attempt=1), change(2, 8, at=AT + 101)]
    assert State(*first, *last).digest() == State(*first, *reversed(last)).digest()


def test_a_page_that_is_parsed_once_more_changes_its_interval_once_and_an_older_one_nothing() -> None:
    """After a kill, and in a replay of parse."""
    state = State(job(recrawl=ADAPTIVE), found(A), done(A, sequence(1), at=AT, attempt=1), change(1, 7))
    state.take(change(2, 8))
    state.take(change(2, 8), change(1, 9))
    assert (due_of(state), state.queued(b"w")[0].again) == ([50], r.Recurrence(AT, 50.0, digest=8, item=(0, 2), page=2))


@pytest.mark.parametrize("fields", [{"digest": 1 << 64}, {"page": -1}, {"item": (0, -1)}, {"row": -1}])
def test_a_change_with_numbers_that_no_row_holds_is_counted_as_bad(fields: dict[str, Any]) -> None:
    """Any record may be in the log."""
    state = State(recurring(), found(A), done(A, sequence(1), at=AT, attempt=1))
    one = u.PageChange(**{"url": A, "row": sequence(1), "page": 1, "digest": 7, **fields})
    state.take(u.encode(u.UrlsRecord("j", changes=[one])))
    assert (state.counts.bad, due_of(state)) == (1, [AGE_S])


def test_a_late_change_leaves_a_url_that_is_due() -> None:
    """It may be in flight."""
    state = State(job(recrawl=ADAPTIVE), found(A), done(A, sequence(1), at=AT, attempt=1), change(1, 7))
    state.take(change(2, 8, at=AT + 100))
    assert due_of(state) == [AGE_S]
    assert state.queued(b"w")[0].again == r.Recurrence(AT, 50.0, digest=8, item=(0, 2), page=2)


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
