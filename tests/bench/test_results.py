"""The results of benchmarks: only a run of the whole replaces its section."""

import argparse

import pytest

from bench.results import options_of


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
