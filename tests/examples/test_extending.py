"""docs/extending.md: the sink on that page is built, installed and used."""

import io
import re
import subprocess
import sys
from importlib import invalidate_caches
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.sink.batch import entry
from crawlog.streams.sink.finish import finalise
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()


def _diffs() -> dict[str, str]:
    """The diff of each section."""
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return {title: diff for title, text in sections for diff in re.findall(r"```diff\n(.*?)```", text, re.DOTALL)}


def test_every_example_is_short() -> None:
    """One place to add a thing: a diff of at most 40 lines."""
    assert {title: diff.count("\n") for title, diff in _diffs().items() if diff.count("\n") > 40} == {}


def test_every_example_changes_lines_that_are_there() -> None:
    """The context and the removed lines of each diff are lines of its file, as it is now."""
    missing = []
    for diff in _diffs().values():
        for name, changes in re.findall(r"^--- (\S+)\n((?:[ +-](?!-- ).*\n|\n)+)", diff, re.MULTILINE):
            old = [line[1:] for line in changes.splitlines() if line and line[0] != "+"]
            there = (ROOT / name).read_text().splitlines() if old else []
            missing += [(name, line) for line in old if line not in there]
    assert missing == []


def test_the_sink_of_the_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package is made from the diff, and found by its entry point."""
    for name, content in re.findall(r"^--- (\S+)\n((?:\+.*\n)+)", _diffs()["Add a sink"], re.MULTILINE):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line[1:]}\n" for line in content.splitlines()))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", tmp_path / "site", tmp_path / "xml_sink"], check=True, timeout=120)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    invalidate_caches()
    spec = sink_of("j", str(tmp_path / "rows.xml"))
    record = items.encode(ItemsRecord("j", "http://a.example/", (0, 0), [msgspec.Raw(b'{"n":"<1"}')], 0))
    with SinkState(tmp_path, spec, LogIdentity("cluster", "topic")) as results:
        results.fold([(0, 0, entry(record, spec))])
    assert finalise(tmp_path, spec, {0: 1}, io.BytesIO()) == 1
    (value,) = ET.parse(tmp_path / "rows.xml").iter("value")
    assert (value.get("name"), value.text) == ("n", "<1")
