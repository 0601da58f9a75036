"""Every spider of the projects of tests/projects/ gives by the adapter what it gives by Scrapy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.both import Items, by_scrapy, copied, differing, digest_of, items_in, noted
from tests.support.cases import PROJECTS
from tests.support.quotes import Quotes, quotes

__all__ = ["quotes"]  # a fixture

pytestmark = [pytest.mark.slow]

PLAYING = Path(__file__).parents[3] / "support" / "play_spiders.py"

NOT_ALONE = {"robots"}
"""Spiders whose items need more than the adapter: robots.txt is read by crawlog's fetch."""


def by_adapter(project: Path, spiders: dict[str, dict[str, str]]) -> tuple[dict[str, Items], dict[str, list[str]]]:
    """What spiders give by the adapter, and the errors of their callbacks."""
    out = project.parent / f"{project.name}-by-adapter"
    out.mkdir()
    command = [sys.executable, str(PLAYING), str(project), str(out)]
    given = json.dumps(spiders).encode()
    done = subprocess.run(command, cwd=project, input=given, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return {name: items_in(out / f"{name}.jsonl") for name in spiders}, json.loads((out / "errors.json").read_text())


@pytest.mark.parametrize("name", PROJECTS)
def test_the_items_are_those_that_scrapy_gave(
    name: str, quotes: Quotes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal multisets, spider by spider, by the digests that are noted; the site's counters are fresh for each."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # sets have one order in both
    given = {spider: dict(case.arguments) for spider, case in PROJECTS[name].items() if spider not in NOT_ALONE}
    ours, errors = by_adapter(copied(name, tmp_path, quotes), given)
    differ = {spider: errors[spider] for spider in given if digest_of(ours[spider], quotes) != noted(name)[spider]}
    assert differ == {}, "`make test-long` shows the items that differ"


@pytest.mark.long
@pytest.mark.parametrize("name", PROJECTS)
def test_the_items_are_those_of_scrapy(
    name: str, quotes: Quotes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside Scrapy itself: as many items as the table says, those that are noted, and ours are equal."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # sets have one order in both
    given = {spider: dict(case.arguments) for spider, case in PROJECTS[name].items()}
    (tmp_path / "a").mkdir()
    theirs = by_scrapy(copied(name, tmp_path / "a", quotes), given)
    counts = {spider: items.total() for spider, items in theirs.items()}
    assert counts == {spider: case.items for spider, case in PROJECTS[name].items()}
    assert {spider: digest_of(items, quotes) for spider, items in theirs.items()} == noted(name)
    (tmp_path / "b").mkdir()
    spiders = {spider: words for spider, words in given.items() if spider not in NOT_ALONE}
    ours, errors = by_adapter(copied(name, tmp_path / "b", quotes), spiders)
    differ = {spider: differing(ours[spider], theirs[spider]) for spider in spiders}
    told = {spider: [text, *errors[spider]] for spider, text in differ.items() if text}
    assert told == {}, "\n".join(f"{spider}: {line}" for spider, lines in told.items() for line in lines)
