"""A data set of Parquet files, in a folder of this machine by fsspec; tests/e2e/test_stores.py has an S3 server."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import parquet

from crawlog.streams.sink.formats import dataset
from crawlog.streams.stores import fill
from tests.support.storing import Feeding, Kept, Row, StoreContract, feed


@pytest.fixture(autouse=True)
def _each_write_makes_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "FILE_BYTES", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the data set lies."""
    return tmp_path / "shop"


@pytest.fixture
def address(folder: Path) -> str:
    """A folder that is not there."""
    return f"file://{folder}/"


@pytest.fixture
def kept(folder: Path) -> Kept:
    """Reads the files that the manifest names; of a key that is in several, the last one."""

    def read() -> dict[tuple[str, int], Row]:
        (manifest,) = folder.glob("job=j/_manifest-*.json")
        known = json.loads(manifest.read_text())
        found: dict[str, list[Row]] = {}
        for part in sorted(known["parts"], key=lambda one: one["number"]):
            rows = parquet.ParquetFile(part["path"]).read().to_pylist()
            found |= {row["_url"]: [] for row in rows if known["gone"].get(row["_url"], 0) <= part["number"]}
            for row in rows:
                if row["_url"] in found:
                    found[row["_url"]].append(row)
        gone = [url for url, number in known["gone"].items() if _last(known, url) < number]
        return {(url, int(str(row["_n"]))): _row(row) for url in found.keys() - gone for row in found[url]}

    return read


def _last(known: dict[str, list[dict[str, object]]], url: str) -> int:
    parts = [one for one in known["parts"] if url in parquet.ParquetFile(one["path"]).read()["_url"].to_pylist()]
    return max((int(str(one["number"])) for one in parts), default=0)


def _row(stored: Row) -> Row:
    """A row as it was given: mixed columns are text, and hold JSON."""
    row = {}
    for name, value in stored.items():
        if name not in ("_url", "_n", "_page") and value is not None:
            row[name] = value
            with suppress(ValueError):
                row[name] = json.loads(value) if isinstance(value, str) else value
    return row


class TestDataSet(StoreContract):
    """Parquet files in a folder."""

    marks = False

    def test_each_row_stands_once_in_the_files_of_a_finished_job(
        self, feeding: Feeding, store: dataset.DataSet, folder: Path
    ) -> None:
        """Replaced rows, gone ones, and files of a worker that died are not there: any reader of Parquet sees that."""
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1}, {"n": 2})
        feeding.page(2, "http://b/", {"n": 3})
        at = feed(store, feeding.state, at)
        feeding.page(3, "http://a/", {"n": 4})
        feeding.page(4, "http://b/")
        feed(store, feeding.state, at)
        (folder / "job=j" / "part-of-a-worker-that-died.parquet").write_bytes(b"half")
        store.finish()
        table = parquet.read_table(folder, partitioning="hive")
        found = table.select(["_url", "_n", "n", "job"]).to_pylist()
        assert found == [{"_url": "http://a/", "_n": 0, "n": 4, "job": "j"}]

    def test_rows_are_written_when_a_file_is_full(
        self, monkeypatch: pytest.MonkeyPatch, feeding: Feeding, store: dataset.DataSet, folder: Path
    ) -> None:
        """Until then they are read from the state again after a death."""
        monkeypatch.setattr(dataset, "FILE_BYTES", 100)
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        feed(store, feeding.state, at)
        assert not list(folder.rglob("*.parquet"))
        assert store.open(feeding.state.feed) == 0
        fill(store, feeding.state)
        assert len(list(folder.rglob("*.parquet"))) == 1
