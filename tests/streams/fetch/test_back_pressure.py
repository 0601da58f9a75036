"""How far fetching and seeds may be ahead of the fold."""

import pytest

from crawlog.schemas.progress import Progress
from crawlog.streams.fetch.back_pressure import (
    FOLD_S,
    LIVES_S,
    MOST_SOWN,
    MOST_UNFOLDED,
    SAVED_URLS,
    UNFOLDED,
    Sown,
    Unfolded,
)


@pytest.mark.parametrize("unfolded", [0, 1, UNFOLDED - 1])
def test_few_unfolded_dones_slow_nothing_down(unfolded: int) -> None:
    """Up to the limit URLs are handed out whatever the fold does."""
    assert Unfolded().room(unfolded, 0.0) == UNFOLDED - unfolded


def test_beyond_the_limit_a_url_is_handed_out_for_each_piece_of_folding() -> None:
    """The fold comes first, and fetching goes on beside it."""
    ahead = Unfolded()
    ahead.room(UNFOLDED - 1, 10.0)
    assert ahead.room(UNFOLDED, 10.0) == 0
    assert ahead.room(UNFOLDED, 10.0 + 3.5 * FOLD_S) == 3
    ahead.handed_out(3, UNFOLDED)
    assert ahead.room(UNFOLDED, 10.0 + 3.5 * FOLD_S) == 0
    assert ahead.room(UNFOLDED, 10.0 + 5.5 * FOLD_S) == 2


def test_a_fold_that_stands_still_stops_fetching() -> None:
    """Nothing is handed out while the fold has not worked."""
    ahead = Unfolded()
    ahead.room(0, 5.0)
    assert [ahead.room(2 * UNFOLDED, 5.0) for _ in range(3)] == [0, 0, 0]


def test_time_that_no_url_took_is_kept_for_a_few() -> None:
    """An hour of folding without a URL to hand out is no leave for a flood."""
    ahead = Unfolded()
    ahead.room(UNFOLDED - 1, 0.0)
    assert ahead.room(UNFOLDED, 3600.0) == SAVED_URLS


def test_memory_has_the_last_word() -> None:
    """However long the fold works, so many dones are unfolded at most."""
    ahead = Unfolded()
    ahead.room(0, 0.0)
    assert ahead.room(MOST_UNFOLDED - 1, 3600.0) == 1
    assert ahead.room(MOST_UNFOLDED, 7200.0) == 0


def report(partition: int, offset: int) -> Progress:
    """Of the worker that folds a partition."""
    return Progress("w", "fetch", partition, 0.0, offset)


def sow(sown: Sown, partition: int, records: int, urls: int) -> None:
    """So many records of a partition are sent and acknowledged."""
    for offset in range(records):
        sown.sent(partition, urls)
        sown.acknowledged(urls, partition, offset)


def test_without_workers_seeds_wait_for_nothing() -> None:
    """Nobody folds, so nobody is waited for."""
    sown = Sown()
    sow(sown, 0, 10, MOST_SOWN)
    assert not sown.is_far_ahead(0.0)


def test_seeds_wait_for_living_folds_and_go_on_with_them() -> None:
    """What is on its way counts too; a fold that passes records lets others go."""
    sown = Sown()
    sow(sown, 0, 2, MOST_SOWN // 2)
    sown.heard([report(0, 0)], 0.0)
    assert sown.is_far_ahead(1.0)
    sown.heard([report(0, 1)], 1.0)
    assert not sown.is_far_ahead(1.0)
    sown.sent(0, MOST_SOWN // 2)
    assert sown.is_far_ahead(1.0)
    sown.heard([report(0, 2)], 2.0)
    assert not sown.is_far_ahead(2.0)


def test_a_fold_that_says_nothing_any_more_holds_nothing_back() -> None:
    """The same report seen again is no sign of life."""
    sown, last = Sown(), report(0, 0)
    sow(sown, 0, 1, MOST_SOWN)
    for now in (0.0, LIVES_S - 1):
        sown.heard([last], now)
        assert sown.is_far_ahead(now)
    sown.heard([last], LIVES_S)
    assert not sown.is_far_ahead(LIVES_S)


def test_a_partition_without_a_worker_holds_nothing_back() -> None:
    """Seeds of one that nobody folds are as if there were no worker at all."""
    sown = Sown()
    sow(sown, 0, 1, 10 * MOST_SOWN)
    sown.heard([report(1, 0)], 0.0)
    assert not sown.is_far_ahead(0.0)


def test_an_acknowledgement_after_the_fold_counts_as_folded() -> None:
    """A worker may tell of a record before the seeder hears that the log has it."""
    sown = Sown()
    sown.sent(0, MOST_SOWN)
    sown.heard([report(0, 1)], 0.0)
    assert sown.is_far_ahead(0.0)
    sown.acknowledged(MOST_SOWN, 0, 0)
    assert not sown.is_far_ahead(0.0)
