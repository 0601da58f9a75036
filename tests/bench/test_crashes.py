"""The crash-point sweep: there is no point at which nothing ever dies."""

import re
from pathlib import Path

import pytest

from bench.crashes import ELSEWHERE, SWEPT, chosen
from crawlog.streams.crash_points import POINTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("point", [name for name in POINTS if name not in SWEPT])
def test_a_point_that_is_not_swept_is_named_by_a_test_that_dies_there(point: str) -> None:
    """The sweep leaves out only what a plain `run` never reaches."""
    (file,) = [file for beginning, file in ELSEWHERE.items() if point.startswith(beginning)]
    text = (ROOT / file).read_text()
    assert re.search(rf'["\s]{re.escape(point)}[":]', text), f"{file} does not name it"
    assert re.search(r"\bdying\(|VARIABLE\b|CRAWLOG_CRASH|deaths=", text), f"nothing dies in {file}"


def test_each_beginning_has_a_point() -> None:
    """Those of a point that is gone would hide a new one of that name."""
    assert [word for word in ELSEWHERE if not any(name.startswith(word) for name in POINTS)] == []


def test_points_are_chosen_by_how_they_begin() -> None:
    """All without a word; a word that fits none is a mistake, not a sweep of nothing."""
    assert chosen("") == list(SWEPT)
    assert chosen("sink.rows,commit.sending") == ["commit.sending", "sink.rows.writing", "sink.rows.written"]
    for words in ("typo", "sink,typo", "rewind."):
        with pytest.raises(SystemExit, match="no point"):
            chosen(words)
