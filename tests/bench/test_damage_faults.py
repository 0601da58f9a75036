"""The verdict on a run whose log was damaged: each way to lose something in silence is found. Then one real run."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.faults import damage
from bench.faults.crawl import Size
from bench.faults.damage import DEEDS, MOMENTS, Seen, Verdict, point, points, verdict
from bench.faults.perfect import GRAPH, asked, first, perfect
from bench.faults.schedule import Outcome

if TYPE_CHECKING:
    from bench.faults.site import Request

PLACE = ("pages", 3)
NAMED = "crawlog: crawl.pages[3] 17 to 20: the page is gone (http://127.3.0.1:8900/)"
URL = "http://127.3.0.1:8900/x"


@pytest.mark.parametrize(
    ("seen", "came"),
    [
        (Seen(PLACE, 0, ""), "complete"),
        (Seen(PLACE, 4, ""), "complete"),
        (Seen(PLACE, 0, NAMED, missing=(URL,)), "silent"),
        (Seen(PLACE, 4, NAMED, missing=(URL,)), "told"),
        (Seen(PLACE, 5, NAMED, missing=(URL,)), "told"),
        (Seen(PLACE, 5, "something is missing", missing=(URL,)), "untold"),
        (Seen(PLACE, 4, "", missing=(URL,)), "untold"),
        (Seen(PLACE, 3, "crawl.pages[2] 17: damaged"), "untold"),
        (Seen(PLACE, 3, "crawl.items[3] 17: damaged"), "untold"),
        (Seen(PLACE, 3, "crawl.pages partition 3 offset 17: damaged"), "told"),
        (Seen(PLACE, 5, NAMED, invented=(URL,)), "invented"),
        (Seen(PLACE, 0, "", invented=(URL,)), "invented"),
        (Seen(PLACE, None, NAMED), "stuck"),
    ],
)
def test_a_point_is_judged_by_its_exit_its_message_and_what_is_missing(seen: Seen, came: Verdict) -> None:
    """A run may miss something only if it says where, with an exit code that is not 0."""
    assert verdict(seen) == came


def test_a_perfect_crawl_misses_and_invents_nothing() -> None:
    """Evidence without a log is enough."""
    seen = perfect()
    seen.urls, seen.items, seen.progress = [], [], []
    assert (damage.missing(seen), damage.invented(seen)) == ([], [])


def test_a_row_that_is_gone_is_missing() -> None:
    """Whatever the log says."""
    seen = perfect()
    seen.rows[:] = [row for row in seen.rows if row["url"] != first("missing")]
    assert damage.missing(seen) == [first("missing")]


def test_a_redirect_that_was_never_asked_for_is_missing() -> None:
    """It has no row that could be."""
    seen = perfect()
    seen.requests = [one for one in seen.requests if not first("moved").endswith(one.path)]
    assert first("moved") in damage.missing(seen)


@pytest.mark.parametrize("kind", ["request", "row", "title", "twice"])
def test_what_is_not_of_the_site_is_invented(kind: str) -> None:
    """A request for a URL that nobody links to, a row of one, a row of another page, a second row."""
    seen = perfect()
    row = seen.rows[0]
    more: dict[str, tuple[list[Request], list[dict[str, object]]]] = {
        "request": ([asked("127.3.0.1", "/ghost", 404, 5000)], []),
        "row": ([], [row | {"url": f"http://{GRAPH.name(0)}:{GRAPH.port}/ghost"}]),
        "title": ([], [row | {"title": "another"}]),
        "twice": ([], [row]),
    }
    requests, rows = more[kind]
    seen.requests, seen.rows = [*seen.requests, *requests], [*seen.rows, *rows]
    assert damage.invented(seen)


def test_seeds_go_through_every_deed_at_every_moment() -> None:
    """50 points of a topic are at least four of each pair."""
    found = [point(seed, random.Random(seed)) for seed in range(1, 51)]
    pairs = Counter((one.deed, one.base.moment) for one in found)
    assert pairs.keys() == {(deed, moment) for deed in DEEDS for moment in MOMENTS}
    assert min(pairs.values()) >= 4
    assert {one.base.is_clean for one in found} == {True, False} == {one.is_file_gone for one in found}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_deed_changes_the_file_it_is_done_to(deed: str, tmp_path: Path) -> None:
    """A damage that damages nothing would be survived by all."""
    folder = tmp_path / "crawl.pages-3"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(bytes(500))
    segment = folder / "00000000000000000017.log"
    segment.write_bytes(bytes(500))
    DEEDS[deed](folder, random.Random(1))
    assert not segment.exists() or segment.read_bytes() != bytes(500)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_a_crawl_whose_log_is_damaged_is_complete_or_says_where(tmp_path: Path) -> None:
    """Two points of one crawl; `python -m bench.faults.damage` does 250."""
    size = Size(hosts=3, pages=6, delay_s=0.1, latency_s=(0.0, 0.02), fetch=1, concurrency=16)
    for outcome in points(3, ("progress", "pages"), tmp_path / "damage", size):
        assert outcome.problems == []
        assert set(outcome.counts) <= {*damage.GOOD, "then complete"}


def test_points_that_are_kept_are_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the command goes on where it was stopped; those that broke a promise are done again."""
    done: list[tuple[int, Sequence[str]]] = []

    def no_points(seed: int, topics: Sequence[str], *_: object, **__: object) -> list[Outcome]:
        done.append((seed, topics))
        return []

    good = Outcome("damage-urls", 1, 8, 12, 1.0, 1, 1, 1, 0.0, 0, {"complete": 1}, {})
    bad = replace(good, fault="damage-pages", problems=["silent"])
    monkeypatch.setattr(damage, "newest", lambda: {(one.fault, one.seed): one for one in (good, bad)})
    monkeypatch.setattr(damage, "points", no_points)
    monkeypatch.setattr("sys.argv", ["damage", "--topics=urls,pages", "--seeds=2", "--dry"])
    assert damage.main() == 0
    assert done == [(1, ["pages"]), (2, ["urls", "pages"])]
