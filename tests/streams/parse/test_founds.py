"""Which links count as sent: never one that is not in the log, and most of those that are, in little memory."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.parse.founds import Batch, Sent

FINGERPRINTS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(lambda high, low: high << 60 | low, st.integers(0, 3), st.integers(0, 7)),  # many in one pair of places
)


def put(sent: Sent, links: Iterable[tuple[int, int]]) -> None:
    """Have a batch of links with their depths come to the log."""
    batch = Batch("job", 0, "a.test", 0, sent)
    batch.links.extend(links)
    batch.acknowledged()


@given(st.lists(st.tuples(FINGERPRINTS, st.integers(0, 20))), FINGERPRINTS)
def test_a_link_counts_as_sent_only_as_it_was_sent(links: list[tuple[int, int]], other: int) -> None:
    """Whatever shares its places: a link that is left out is never found. A depth may be forgotten, not made up."""
    sent = Sent(newest=2, bits=3)
    depths: dict[int, int] = {}
    for link in links:
        put(sent, [link])
        fingerprint, depth = link
        depths[fingerprint] = min(depth, depths.get(fingerprint, depth))
        assert sent.depth(fingerprint) is not None
    for fingerprint in (*depths, other):
        known = sent.depth(fingerprint)
        assert known is None or known >= depths[fingerprint]


def test_links_are_remembered_when_others_came_after_them() -> None:
    """A page of a large site repeats links of long ago, each of which would cost the fold a look-up."""
    sent = Sent(newest=1000, bits=15)
    links = [(number * 0x9E3779B97F4A7C15 % 2**64, number % 7) for number in range(20_000)]
    put(sent, links)
    assert len(sent.newest) <= 1000
    assert sum(sent.depth(fingerprint) == depth for fingerprint, depth in links) > 19_000


def test_of_three_links_with_the_same_places_the_oldest_is_forgotten() -> None:
    """They differ in their high bits only."""
    sent = Sent(newest=1, bits=3)
    put(sent, [(high << 3 | 5, 1) for high in (1, 2, 3)] + [(0, 0)])
    assert [sent.depth(high << 3 | 5) for high in (1, 2, 3)] == [None, 1, 1]


def test_a_link_found_nearer_is_remembered_so() -> None:
    """Also when it comes back from the table; a depth that this cannot hold is forgotten."""
    sent = Sent(newest=1, bits=3)
    put(sent, [(8, 5), (16, 7), (8, 2), (24, 0)])
    assert [sent.depth(fingerprint) for fingerprint in (8, 16)] == [2, None]
