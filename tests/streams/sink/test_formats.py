"""Each format, read back by the programs that users have: gzip, zstd, openpyxl, pyarrow, DuckDB."""

import csv
import errno
import gzip
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink.finish import write_file
from crawlog.streams.sink.formats import ResultRows, Sink, parquet, xlsx
from crawlog.streams.sink.registry import sink_for, sink_of
from crawlog.streams.sink_groups import SinkSpec


def sink(output: str | Path, *, formulas: bool = False) -> Sink:
    """The object that writes it."""
    made = sink_for(SinkSpec("j", str(output), formulas=formulas))
    assert isinstance(made, Sink)
    return made


class Rows:
    """Rows of a job, a piece for every two of them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._lines = [json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows]
        self.rows = len(rows)

    def chunks(self) -> Iterator[bytes]:
        """The pieces."""
        return (b"".join(self._lines[at : at + 2]) for at in range(0, self.rows, 2))


def written(path: Path, *rows: dict[str, Any], formulas: bool = False) -> Path:
    """FILE with these rows."""
    write_file(Rows([*rows]), sink(path, formulas=formulas), path)
    return path


def test_text_formats_are_compressed_by_their_second_suffix(tmp_path: Path) -> None:
    """What is unpacked is what the plain format writes; equal rows give equal bytes."""
    rows = [{"n": n, "text": "ü\n=1"} for n in range(5)]
    for name in ("jsonl", "json", "csv"):
        plain = written(tmp_path / f"rows.{name}", *rows).read_bytes()
        packed = written(tmp_path / f"rows.{name}.gz", *rows).read_bytes()
        assert gzip.decompress(packed) == plain
        assert written(tmp_path / f"again.{name}.gz", *rows).read_bytes() == packed
        assert zstd.decompress(written(tmp_path / f"rows.{name}.zst", *rows).read_bytes()) == plain


# ------------------------------------------------------------------------------------------------ .xlsx


def cells(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The values of each sheet."""
    book = openpyxl.load_workbook(path)
    return {sheet.title: [*sheet.values] for sheet in book.worksheets}


def test_a_workbook_has_the_types_of_the_rows(tmp_path: Path) -> None:
    """A missing value is empty; what no cell can hold is a text."""
    row = {"url": "http://a", "n": 1, "x": 0.5, "ok": True, "none": None, "tags": ["ü", 1], "id": 10**18}
    found = cells(written(tmp_path / "rows.xlsx", row, {"late": 1}))
    assert found == {
        "rows 1": [
            ("url", "n", "x", "ok", "none", "tags", "id", "late"),
            ("http://a", 1, 0.5, True, None, '["ü",1]', str(10**18), None),
            (*[None] * 7, 1),
        ]
    }


def test_a_workbook_calculates_formulas_only_on_request(tmp_path: Path) -> None:
    """`results.csv_formulas`, as for CSV; the text itself stays as it is."""
    book = openpyxl.load_workbook(written(tmp_path / "rows.xlsx", {"=A1": "=1+1"}))
    assert [[(one.value, one.data_type) for one in row] for row in book.worksheets[0].rows] == [
        [("=A1", "s")],
        [("=1+1", "s")],
    ]
    book = openpyxl.load_workbook(written(tmp_path / "rows.xlsx", {"n": "=1+1"}, formulas=True))
    assert book.worksheets[0]["A2"].data_type == "f"


def test_what_the_format_cannot_hold_is_marked_in_its_cell(tmp_path: Path) -> None:
    """A text beyond 32,767 characters is cut and ends with its length; control characters are replaced."""
    ((_,), (cut,), (replaced,)) = cells(written(tmp_path / "rows.xlsx", {"t": "x" * 40_000}, {"t": "a\0b\uffff"}))[
        "rows 1"
    ]
    assert len(cut) == 32_767
    assert cut.endswith("x… (cut: 40,000 characters)")
    assert replaced == "a\ufffdb\ufffd"


def test_rows_beyond_a_sheet_go_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the header. No rows make an empty sheet."""
    monkeypatch.setattr(xlsx, "SHEET_ROWS", 3)
    found = cells(written(tmp_path / "rows.xlsx", *({"n": n} for n in range(5))))
    assert found == {"rows 1": [("n",), (0,), (1,)], "rows 2": [("n",), (2,), (3,)], "rows 3": [("n",), (4,)]}
    assert cells(written(tmp_path / "rows.xlsx")) == {"rows 1": []}


def test_more_columns_than_a_sheet_has_are_refused(tmp_path: Path) -> None:
    """With the formats that have no such limit."""
    with pytest.raises(Misconfigured, match=r"16,385 different keys.*Nothing is lost.*FILE\.csv"):
        written(tmp_path / "rows.xlsx", {str(n): n for n in range(16_385)})
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ .parquet


def test_a_parquet_file_has_typed_columns(tmp_path: Path) -> None:
    """Of all rows: what is mixed in any two of them is text, values that are no text as JSON."""
    rows: list[dict[str, Any]] = [
        {"url": "b", "n": None, "x": 1, "tags": ["ü"], "at": {"lat": 1}, "mixed": "t", "none": None, "big": 1},
        {"url": "c", "n": 2, "x": 1.5, "tags": [], "at": {"lat": 0.5, "name": "x"}, "mixed": [1, None], "big": 2**64},
        {"url": "a", "ok": True, "mixed": True, "empty": {}, "keys": {str(n): n for n in range(201)}},
    ]
    table = pq.read_table(written(tmp_path / "rows.parquet", *rows))
    assert {one.name: str(one.type) for one in table.schema} == {
        "url": "string",
        "n": "int64",
        "x": "double",
        "tags": "list<element: string>",
        "at": "struct<lat: double, name: string>",
        "mixed": "string",
        "none": "string",
        "big": "string",
        "ok": "bool",
        "empty": "string",
        "keys": "string",
    }
    assert table.column("mixed").to_pylist() == ["t", "[1,null]", "true"]
    assert table.column("big").to_pylist() == ["1", str(2**64), None]
    assert table.column("at").to_pylist() == [{"lat": 1.0, "name": None}, {"lat": 0.5, "name": "x"}, None]
    answer = (
        duckdb.connect()
        .execute(f"""SELECT sum(x), count(n), list("at".lat) FROM '{tmp_path}/rows.parquet'""")
        .fetchall()
    )
    assert answer == [(2.5, 1, [1.0, 0.5, None])]


def test_a_parquet_file_is_written_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory does not grow with it; a type of a later group holds for the earlier ones. No rows, no columns."""
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1)
    rows: list[dict[str, Any]] = [{"n": 1 + (1 << 60)}, {"n": 2}, {"n": 0.5, "m": [1]}, {"m": [None]}, {"m": ["a"]}]
    file = pq.ParquetFile(written(tmp_path / "rows.parquet", *rows))
    assert file.num_row_groups == 3
    assert file.read().column("n").to_pylist() == [float(1 << 60), 2.0, 0.5, None, None]
    assert file.read().column("m").to_pylist() == [None, None, "[1]", "[null]", '["a"]']
    rows = [{"n": None}, {}, {"n": 1}, {}, {"n": "x"}]  # the column is text in the first group, and in the end again
    assert pq.read_table(written(tmp_path / "rows.parquet", *rows)).column("n").to_pylist() == [
        None,
        None,
        "1",
        None,
        "x",
    ]
    assert pq.read_table(written(tmp_path / "rows.parquet")).num_rows == 0


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aü="),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
_rows = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), _values, max_size=3), max_size=6)


@given(rows=_rows)
def test_any_rows_can_be_written(rows: list[dict[str, Any]]) -> None:
    """By each format. Parquet has each value, as itself or as JSON; what is nested has null for a missing key."""
    source, files = ResultRows(Rows(rows).chunks), {}
    for name in (".csv", ".xlsx", ".parquet"):
        files[name] = io.BytesIO()
        sink(f"/rows{name}").write(source, files[name])
    keys = source.columns()
    assert len([*csv.reader(io.StringIO(files[".csv"].getvalue().decode()))]) == (len(rows) + 1 if keys else len(rows))
    assert len([*openpyxl.load_workbook(files[".xlsx"]).worksheets[0].values]) <= len(rows) + 1
    table = pq.read_table(pa.py_buffer(files[".parquet"].getvalue()))
    assert table.schema.names == keys
    for key in keys:
        kept = table.column(key).to_pylist()
        if not pa.types.is_nested(table.schema.field(key).type):
            values = [row.get(key) for row in rows]
            assert [one for one, is_there in zip(kept, values, strict=True) if is_there is None] == [
                None
            ] * values.count(None)
            assert all(
                a in (b, json.dumps(a)) or json.loads(b) == a
                for a, b in zip(values, kept, strict=True)
                if b is not None
            )


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(("name", "module"), [("xlsx", "openpyxl"), ("parquet", "pyarrow")])
def test_a_format_without_its_library_is_refused_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    """Before anything is crawled."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Misconfigured, match=rf"{module}.*'crawlog\[{name}\]'"):
        sink_of("j", str(tmp_path / f"rows.{name}"))


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.csv.zst", "rows.xlsx", "rows.parquet"])
def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The message says so, and the file that was there stays."""
    path = tmp_path / name
    path.write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device; nothing is lost, and the same command makes it"):
        written(path, {"n": 1})
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(name, b"before")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full takes writes and has no room")  # noqa: PTH110  # a device
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.csv.zst", "rows.xlsx", "rows.parquet"])
def test_a_disk_that_fills_while_a_format_writes_is_an_error_of_the_disk(name: str) -> None:
    """No format hides it, or takes it for a bug of its own."""
    rows = ResultRows(Rows([{"n": os.urandom(50_000).hex()}] * 20).chunks)
    with pytest.raises(OSError, match="No space left on device"), open("/dev/full", "wb", buffering=0) as out:  # noqa: PTH123  # a device
        sink(f"/{name}").write(rows, out)
