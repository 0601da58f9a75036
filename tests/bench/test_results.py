"""The results of benchmarks: only a run of the whole replaces its section."""

import argparse
import signal
import subprocess
from pathlib import Path

import pytest

from bench import results
from bench.faults import __main__ as faults
from bench.faults.processes import Kill
from bench.faults.schedule import Outcome
from bench.results import WITH_CHANGES, commit, options_of


@pytest.mark.parametrize(
    ("given", "is_written"),
    [
        ("", True),
        ("--rounds 5", True),
        ("--live", True),
        ("--short", False),
        ("--only crawlog", False),
        ("--rounds 1", False),
        ("--live --rounds 1", False),
        ("-- more", False),
        ("--only crawlog --write", True),
    ],
)
def test_only_a_whole_run_or_write_replaces_a_section(
    monkeypatch: pytest.MonkeyPatch, given: str, is_written: bool
) -> None:
    """A part of a measurement would replace the whole one."""
    monkeypatch.setattr("sys.argv", ["bench", *given.split()])
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("more", nargs="*", default=[])
    assert options_of(parser, "live").write == is_written


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit."""
    monkeypatch.setattr(results, "REPO", tmp_path)
    (tmp_path / "bench" / "faults").mkdir(parents=True)
    for name in (*results.WRITTEN, "bench/speed.py", "code.py"):
        (tmp_path / name).write_text("before")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "is_dirty"),
    [("bench/RESULTS.md", False), ("bench/faults/outcomes.jsonl", False), ("bench/speed.py", True), ("code.py", True)],
)
def test_what_was_measured_is_the_commit_unless_code_differs(tree: Path, name: str, *, is_dirty: bool) -> None:
    """The harness is code too; what it writes is not."""
    (tree / name).write_text("after")
    assert commit().endswith(WITH_CHANGES) == is_dirty


def test_an_outcome_is_taken_for_its_own_commit_only(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With changes, the code of the one run is not that of the other."""
    monkeypatch.setattr(faults, "OUTCOMES", tree / "bench" / "faults" / "outcomes.jsonl")
    faults.OUTCOMES.unlink()
    outcome = Outcome("kill", 1, 1, 1, 1.0, 1, 1, 1, 0.0, 0, {}, {})
    faults.keep(outcome, faults.SHORT)
    assert faults.known("kill", 1, faults.SHORT) == outcome
    assert faults.known("kill", 2, faults.SHORT) is None
    (tree / "code.py").write_text("after")
    faults.keep(outcome, faults.SHORT)
    assert faults.known("kill", 1, faults.SHORT) is None


def test_a_skipped_run_is_not_kept(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the place of the newest one that was made."""
    monkeypatch.setattr(faults, "OUTCOMES", tree / "bench" / "faults" / "outcomes.jsonl")
    faults.OUTCOMES.unlink()
    monkeypatch.setattr("sys.argv", ["faults", "--faults", "kill", "--seeds", "1"])
    monkeypatch.setattr(Kill, "lacks", lambda _: "not here")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert faults.main() == 0
    assert not faults.OUTCOMES.exists()
