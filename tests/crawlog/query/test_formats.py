"""Answers as text and files."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from crawlog.query import QueryAnswer, shown, write_answer
from crawlog.query.duck import connected
from crawlog.streams.errors import Misconfigured

SQL = """SELECT 1 AS n, 2 AS n, 'a' AS t, '["x"]'::JSON AS j, [1, 2] AS l, 1.50::DECIMAL(4, 2) AS d,
    TIMESTAMP '2026-01-02 03:04:05' AS at, sum(i) AS s, NULL AS none FROM range(3) r(i)"""


def given(sql: str) -> QueryAnswer:
    """The answer of a database of its own."""
    connection = connected(64)
    return QueryAnswer(connection, connection.sql(sql), ())


def test_a_table_is_aligned_cut_and_escaped() -> None:
    """Numbers to the right; a text of a page can neither overwrite the terminal nor fill it."""
    texts = "CASE i WHEN 0 THEN chr(27) || '[2J' ELSE repeat('x', 200) END"
    made = shown(given(f"SELECT i AS number, {texts} AS t FROM range(2) r(i)"))
    assert made.lines == ["number  t", "     0  \\u001b[2J", f"     1  {'x' * 79}…"]
    assert (made.rows, made.is_cut) == (2, False)
    assert shown(given("SELECT 1 AS n WHERE false")).lines == ["n"]
    made = shown(given("FROM range(5000)"))
    assert (made.rows, len(made.lines), made.is_cut) == (1000, 1001, True)


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_an_answer_is_written_as_the_outputs_of_a_run_are(kind: str, tmp_path: Path) -> None:
    """JSON columns are JSON, exact numbers are numbers, a column that is there twice has two names."""
    for name, chosen in ((f"a.{kind}", ""), ("a.txt", kind)):
        path = tmp_path / name
        assert write_answer(given(SQL), chosen, str(path)) == 1
        if kind == "csv":
            assert path.read_text() == ('n,n_1,t,j,l,d,at,s,none\n1,2,a,"[""x""]","[1,2]",1.5,2026-01-02T03:04:05,3,\n')
            continue
        row: dict[str, Any] = json.loads(path.read_text())[0] if kind == "json" else json.loads(path.read_text())
        assert row == {
            "n": 1,
            "n_1": 2,
            "t": "a",
            "j": ["x"],
            "l": [1, 2],
            "d": 1.5,
            "at": "2026-01-02T03:04:05",
            "s": 3,
            "none": None,
        }


def test_a_text_that_a_spreadsheet_would_calculate_is_marked_in_csv(tmp_path: Path) -> None:
    """As in the outputs of a run."""
    write_answer(given("SELECT '=1+1' AS t"), "", str(tmp_path / "a.csv"))
    assert (tmp_path / "a.csv").read_text() == "t\n'=1+1\n"
    write_answer(given("SELECT '=1+1' AS t"), "", str(tmp_path / "a.csv"), formulas=True)
    assert (tmp_path / "a.csv").read_text() == "t\n=1+1\n"


def test_parquet_has_the_types_of_the_answer(tmp_path: Path) -> None:
    """What Parquet has no type for is named; a file is replaced when it is whole."""
    path = tmp_path / "a.parquet"
    assert write_answer(given(SQL), "", str(path)) == 1
    made = parquet.read_table(path)
    assert made.column_names == ["n", "n_1", "t", "j", "l", "d", "at", "s", "none"]
    assert [str(made.schema.field(name).type) for name in ("n", "d", "at")] == [
        "int32",
        "decimal128(4, 2)",
        "timestamp[us]",
    ]
    late = "SELECT CASE WHEN i = 199999 THEN error('too late') END AS x FROM range(200000) r(i)"
    for sql, told in {"SELECT INTERVAL 1 DAY AS i": "CAST", late: "too late"}.items():
        with pytest.raises(Misconfigured, match=told):
            write_answer(given(sql), "", str(path))
    assert [one.name for one in tmp_path.iterdir()] == ["a.parquet"]
    assert parquet.read_table(path).num_rows == 1


def test_a_store_takes_no_answer(tmp_path: Path) -> None:
    """And a place that cannot be written is named."""
    with pytest.raises(Misconfigured, match="not to a store"):
        write_answer(given("SELECT 1"), "", "none:")
    with pytest.raises(Misconfigured, match="there is no folder"):
        write_answer(given("SELECT 1"), "", str(tmp_path / "no" / "a.csv"))
