"""The Parquet sink of examples/, installed as a plug-in with the metadata of a real package."""

import io
import os
import shutil
import subprocess
import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink.batch import entry
from crawlog.streams.sink.finish import finalise, is_complete
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState
from tests.support.processes import crawlog, ended
from tests.support.sites import Threaded

EXAMPLE = Path(__file__).parents[2] / "examples" / "parquet_sink"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, built and installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, folder / "source")  # a build leaves files in its folder
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder / "site"), str(source)], check=True, timeout=120)
    return folder / "site"


@pytest.fixture
def installed(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, on this process's path."""
    monkeypatch.syspath_prepend(str(plugins))
    invalidate_caches()
    return plugins


def _filled(data: Path, output: str, *rows: object) -> None:
    spec = sink_of("j", output)
    with SinkState(data, spec, LogIdentity("cluster", "topic")) as results:
        for number, row in enumerate(rows):
            raws = [msgspec.Raw(msgspec.json.encode(row))]
            record = items.encode(ItemsRecord("j", f"http://a.example/{number % 3}", (0, number), raws, 0))
            results.fold([(0, number, entry(record, spec))])
    assert finalise(data, spec, {0: len(rows)}, io.BytesIO()) == min(len(rows), 3)
    assert is_complete(data, spec, {0: len(rows)})


def test_an_installed_sink_writes_the_newest_rows(tmp_path: Path, installed: Path) -> None:
    """A column's type is that of its values; lists, and values of several types, are JSON."""
    rows = [
        {"url": "old"},
        {"url": "b", "n": None, "x": 1, "tags": ["ü", 1]},
        {"url": "c", "n": 2, "x": 1.5, "tags": "t"},
        {"url": "a", "ok": True},
    ]
    _filled(tmp_path, str(tmp_path / "rows.parquet"), *rows)
    table = pq.read_table(tmp_path / "rows.parquet")
    assert {one.name: str(one.type) for one in table.schema} == {
        "url": "string",
        "n": "int64",
        "x": "double",
        "tags": "string",
        "ok": "bool",
    }
    assert table.to_pylist() == [
        {"url": "b", "n": None, "x": 1.0, "tags": '["ü", 1]', "ok": None},
        {"url": "c", "n": 2, "x": 1.5, "tags": "t", "ok": None},
        {"url": "a", "n": None, "x": None, "tags": None, "ok": True},
    ]


def test_an_installed_sink_writes_more_rows_than_a_row_group_has(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the file."""
    monkeypatch.setattr(import_module("parquet_sink"), "GROUP_ROWS", 2)
    _filled(tmp_path, str(tmp_path / "rows.PARQUET"), {"n": 1}, {"n": 2}, {"n": 3})
    file = pq.ParquetFile(tmp_path / "rows.PARQUET")
    assert (file.num_row_groups, file.read().to_pylist()) == (2, [{"n": 1}, {"n": 2}, {"n": 3}])


def test_no_rows_make_a_file_without_columns(tmp_path: Path, installed: Path) -> None:
    """A job may give nothing."""
    _filled(tmp_path, str(tmp_path / "rows.parquet"))
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 0


def test_without_the_package_its_suffix_is_unknown(tmp_path: Path) -> None:
    """The message says that formats can be installed."""
    with pytest.raises(Misconfigured, match=r"must end in \.jsonl, \.json, \.csv, or be -.*docs/extending\.md"):
        sink_of("j", str(tmp_path / "rows.parquet"))


@pytest.mark.broker
@pytest.mark.slow
def test_the_command_writes_a_parquet_file(tmp_path: Path, plugins: Path, cluster: Settings) -> None:
    """`crawlog run … -o rows.parquet`, with the package installed; the same command again leaves the file."""
    site = Threaded(lambda _: (200, "text/html", b"<title>here</title><a href=/2>two</a>"))
    options = ["--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}", "--data", tmp_path]
    options += ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01", "-o", tmp_path / "rows.parquet"]
    environment = os.environ | {"PYTHONPATH": str(plugins)}
    for _ in range(2):
        code, summary, said = ended(crawlog("run", f"{site.origin}/1", "--json", *options, env=environment))
        assert (code, summary.get("rows")) == (0, 2), said
    site.close()
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert {(row["url"], row["status"], row["title"]) for row in table} == {
        (f"{site.origin}/1", 200, "here"),
        (f"{site.origin}/2", 200, "here"),
    }
    assert not list(tmp_path.glob("*.partial"))
