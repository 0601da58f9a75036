"""What is known of partitions that come back: only if nobody else can have had them."""

from crawlog.streams.frontier.politeness import KeptRests


def given_up(*partitions: int, generation: int = 4) -> KeptRests:
    """All of them in one generation, each with a rest of its own."""
    kept_rests = KeptRests()
    kept_rests.assigned(generation, set(partitions))
    for number in partitions:
        kept_rests.given_up(number, {7: 100.0 + number})
    return kept_rests


def test_a_partition_that_comes_back_in_the_next_generation_has_its_rests_once() -> None:
    """What is dispatched then changes them."""
    kept_rests = given_up(0, 1)
    kept_rests.assigned(5, {1, 2})
    assert [kept_rests.taken_up(number) for number in (0, 1, 2)] == [None, {7: 101.0}, None]
    assert kept_rests.taken_up(1) is None


def test_a_generation_without_us_ends_what_is_known() -> None:
    """So does one that went back, as after a power cut of the broker."""
    for generation in (4, 6, 3, -1):
        kept_rests = given_up(0)
        kept_rests.assigned(generation, {0})
        assert kept_rests.taken_up(0) is None


def test_rests_outlive_a_generation_in_which_nothing_was_dispatched() -> None:
    """Another rebalance came before the partition was restored; one that another worker had meanwhile is left out."""
    kept_rests = given_up(0, 1)
    kept_rests.assigned(5, {0})
    kept_rests.assigned(6, {0, 1})
    assert kept_rests.taken_up(0) == {7: 100.0}
    assert kept_rests.taken_up(1) is None
