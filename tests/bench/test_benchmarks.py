"""`python -m bench`: what fails says so, and stops nothing else."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import __main__ as bench
from bench import frontier, hostile, mute, politeness, render, seen_large, service_jobs
from bench.faults import __main__ as faults
from bench.faults import peers
from bench.faults.crawl import Size
from bench.hostile_site import BEHAVIOURS
from bench.replay import Cost, Paces
from crawlog.streams.errors import Misconfigured


def test_all_benchmarks_run_though_some_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a code, by `sys.exit` with a reason, by an error: the end is 1, and names them."""
    ends: dict[str, Any] = {
        "a": 0,
        "b": SystemExit("no Chromium"),
        "c": AssertionError(),
        "d": 3,
        "e": SystemExit(0),
    }
    ran = []

    def run(name: str, _: list[str]) -> int:
        ran.append(name)
        if isinstance(ends[name], BaseException):
            raise ends[name]
        return int(ends[name])

    monkeypatch.setattr(bench, "ALL", tuple(ends))
    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr("sys.argv", ["bench", "--short"])
    assert bench.main() == 1
    assert ran == list(ends)
    said = capsys.readouterr().err
    assert "b: no Chromium" in said
    assert said.endswith("failed: b, c, d\n")


def test_a_signal_ends_all_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM is `sys.exit(143)` where sites are stopped first."""
    monkeypatch.setattr(bench, "run", lambda *_: (_ for _ in ()).throw(SystemExit(143)))
    monkeypatch.setattr("sys.argv", ["bench"])
    with pytest.raises(SystemExit, match="143"):
        bench.main()


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (hostile.main, ["--only", "typo"], "no behaviour typo"),
        (seen_large.main, ["--ways", "typo"], "no way begins with typo"),
        (faults.main, ["--faults", "calm,typo"], "no fault typo"),
    ],
    ids=["hostile", "seen_large", "faults"],
)
def test_an_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch, main: Any, words: list[str], said: str) -> None:
    """A run of nothing would find no fault."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["bench", *words])
    with pytest.raises(SystemExit, match=said):
        main()


def test_an_empty_access_log_is_no_polite_crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was judged."""
    (tmp_path / "access.log").touch()
    monkeypatch.setattr("sys.argv", ["politeness", str(tmp_path / "access.log")])
    with pytest.raises(SystemExit, match="no request"):
        politeness.main()


def test_good_hosts_that_no_page_was_served_of_have_no_pace() -> None:
    """Robots.txt alone is no page, nor is what came before."""
    robots, page = (politeness.Request(9, "a", target, 200, "") for target in ("/robots.txt", "/1"))
    assert mute.times_of([robots, page], 5) == {"a": [9e-9]}
    with pytest.raises(SystemExit, match="no good page was served"):
        mute.times_of([robots, replace(page, at_ns=4)], 5)


def test_render_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured."""

    def nowhere(_: object) -> str:
        raise Misconfigured("JavaScript pages need Chromium")

    monkeypatch.setattr(render, "find_browser", nowhere)
    monkeypatch.setattr("sys.argv", ["render", "--short"])
    with pytest.raises(SystemExit, match="need Chromium"):
        render.main()


CASE = frontier.Case(1_000, 100, 1_000, 1, 1, 1, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(("queued", "code"), [(1_000, 0), (999, 1)])
def test_a_short_frontier_judges_what_is_queued(monkeypatch: pytest.MonkeyPatch, queued: int, code: int) -> None:
    """Its pace is not judged, its counts are."""
    monkeypatch.setattr(frontier, "in_process", lambda *_: frontier.Case(**(CASE.__dict__ | {"queued": queued})))
    monkeypatch.setattr("sys.argv", ["frontier", "--short"])
    assert frontier.main() == code


@pytest.mark.parametrize(("exit_code", "wrong"), [(124, []), (0, []), (1, ["exit code 1"]), (137, ["exit code 137"])])
def test_a_live_frontier_judges_how_the_crawl_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exit_code: int, wrong: list[str]
) -> None:
    """It is interrupted when its time is over."""
    stats = SimpleNamespace(unique=5, raw={"hosts_touched": 2})
    site = SimpleNamespace(urls=lambda: {"http://a/"}, stats=lambda: stats)

    class Sited:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Any:
            return site

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(frontier, "WORK", tmp_path)
    monkeypatch.setattr(frontier, "Site", Sited)
    monkeypatch.setattr(frontier, "measure", lambda *_: SimpleNamespace(exit_code=exit_code, by_name=dict))
    assert frontier.live(10, 2, 1)[1] == wrong


@pytest.mark.parametrize(("finished", "code"), [(3, 0), (2, 1)])
def test_small_jobs_that_do_not_finish_are_a_failure(monkeypatch: pytest.MonkeyPatch, finished: int, code: int) -> None:
    """All with all their pages."""
    way = service_jobs.Way("after", 3, finished, 1.0, [], [], {})
    monkeypatch.setattr(service_jobs, "both", lambda _: [way])
    monkeypatch.setattr("sys.argv", ["service_jobs", "--jobs", "3"])
    assert service_jobs.main() == code


@pytest.mark.parametrize(
    ("kills", "took_s", "has_ended", "has_failed"),
    [(3, 40.0, True, False), (3, 1_000.0, False, False), (0, 40.0, True, True), (1, 5.0, False, True)],
    ids=["ended", "cut off", "never killed", "ended with an error"],
)
def test_a_peer_that_was_never_killed_or_failed_shows_nothing(
    *, kills: int, took_s: float, has_ended: bool, has_failed: bool
) -> None:
    """Losses are the result, being cut off too."""
    size = Size(10, 20, 0.5, (0.0, 0.05))
    one = peers.Outcome("jobdir", kills, 9, 9, 9, 9.0, 9, 9, took_s, has_ended)
    assert peers.has_failed(one, size) == has_failed


def test_a_difference_within_the_noise_is_no_pace() -> None:
    """A small run may take no more CPU than a smaller one: a pace of that would be nonsense, or a division by zero."""
    paces = Paces()
    paces.add(Cost(20, 1.0, 0.5), less=Cost(10, 0.5, 0.0))
    assert paces.alone == [20.0]
    for less in (Cost(10, 1.0, 0.0), Cost(10, 2.0, 0.0), Cost(20, 0.5, 0.0)):
        with pytest.raises(SystemExit, match="too few"):
            paces.add(Cost(20, 1.0, 0.5), less)


ROOT = Path(__file__).parents[2]
README = (ROOT / "bench" / "README.md").read_text()


def test_every_benchmark_stands_in_the_table() -> None:
    """And nothing else does."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == sorted(bench.ANY)


def test_all_benchmarks_are_those_that_write_a_section() -> None:
    """Of bench/faults/ the one that runs them all; its others take a machine each."""
    writers = {file.stem for file in (ROOT / "bench").glob("*.py") if re.search(r"\bsection\(", file.read_text())}
    assert (writers - {"results"}) | {"real", "faults"} == set(bench.ALL)  # `real` writes by way of `speed`


def test_the_table_knows_how_many_ways_there_are_to_misbehave() -> None:
    """They become more."""
    assert f"whether {len(BEHAVIOURS)} ways to misbehave" in README
