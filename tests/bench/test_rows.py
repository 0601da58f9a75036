"""Rows of a crawl: one URL twice is seen."""

import json
from pathlib import Path

from bench.rows import doubled, rows_of
from bench.speed import row_faults


def test_a_url_with_two_rows_is_a_fault(tmp_path: Path) -> None:
    """A set of the URLs would hide it, and a dict of the rows too."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"url": url}) + "\n" for url in "abab"))
    assert doubled(row["url"] for row in rows_of(file)) == ["2 URLs with more than one row, e.g. a"]
    assert row_faults(file, {"a", "b"}, dead_links=False) == ["2 URLs with more than one row, e.g. a"]


def test_each_url_once_is_none(tmp_path: Path) -> None:
    """Rows that are missing are found by what was wanted."""
    file = tmp_path / "rows.jsonl"
    assert rows_of(file) == []
    file.write_text('{"url": "a", "status": 404}\n{"url": "b", "status": 200}\n')
    assert row_faults(file, {"b"}, dead_links=True) == []
    assert row_faults(file, {"b", "c"}, dead_links=True) == ["1 pages without a row, e.g. c"]
