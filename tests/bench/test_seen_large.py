"""The benchmark of the large seen table: its short form, and its loads."""

import itertools
import json

from bench.seen_large import EXACT, WAYS, Case, make, run_case
from bench.seen_loads import Load


def test_each_way_answers_right() -> None:
    """Whatever the load: whole fingerprints are never wrong, and a Bloom filter never about a known URL."""
    for way in WAYS:
        make(20_000, way)
        for load in ("uniform", "crawl"):
            one = run_case(Case(way, load, 20_000, 16, 2_000, 2_000))
            assert one.twice == 0
            assert one.dropped <= (0 if way == EXACT else 2)
            assert one.new >= 200
            assert json.dumps(one.__dict__)


def test_a_load_is_the_same_each_time() -> None:
    """Ways are compared on the same offers."""
    one, other = (list(itertools.islice(Load(20_000).crawl(), 100)) for _ in range(2))
    assert one == other
