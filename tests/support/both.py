"""The same spiders by Scrapy and by crawlog, and what they give: the measure is Scrapy itself.

A project is copied, with the site's address in place of `http://quotes.test`: its code reads as its users write it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.quotes import OTHER, Quotes, canonical

PROJECTS = Path(__file__).parent.parent / "projects"
ALL_SPIDERS = Path(__file__).parent / "all_spiders.py"

SCRAPY_S = 120.0
"""For Scrapy to run all spiders of a project."""

Items = Counter[str]
"""A multiset of items, each as canonical JSON."""


def copied(name: str, folder: Path, site: Quotes) -> Path:
    """A folder of tests/projects/ as a user would have it, for this site; its address is filled in."""
    site.take()
    project = Path(shutil.copytree(PROJECTS / name, folder / name))
    words = {
        "http://quotes.test": site.origin,
        "http://other.test": site.origin.replace("127.0.0.1", OTHER),
        "http://nobody.test": f"http://127.0.0.1:{site.closed_port}",
        "quotes.test": "127.0.0.1",
        "other.test": OTHER,
    }
    for path in project.rglob("*.py"):
        text = path.read_text()
        for word, value in words.items():
            text = text.replace(word, value)
        path.write_text(text)
    return project


def by_scrapy(project: Path, spiders: Mapping[str, Mapping[str, str]]) -> dict[str, Items]:
    """What spiders of a project give by Scrapy; their arguments by name."""
    out = project.parent / f"{project.name}-by-scrapy"
    out.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CRAWLOG_")}
    with (out / "said.log").open("wb") as said:
        subprocess.run(
            [sys.executable, str(ALL_SPIDERS), str(out)],
            cwd=project,
            env=environ,
            input=json.dumps({name: dict(arguments) for name, arguments in spiders.items()}).encode(),
            stdout=said,
            stderr=said,
            check=True,
            timeout=SCRAPY_S,
        )
    return {name: items_in(out / f"{name}.jsonl") for name in spiders}


def items_in(path: Path, leave_out: Iterable[str] = ()) -> Items:
    """The items of a file of JSON lines, without the fields whose values are another's each time."""
    if not path.exists():
        return Counter()
    return without([json.loads(line) for line in path.read_text().splitlines()], leave_out)


def without(items: Iterable[dict[str, object]], leave_out: Iterable[str] = ()) -> Items:
    """Items as a multiset, without some fields."""
    gone = set(leave_out)
    return Counter(canonical({name: value for name, value in item.items() if name not in gone}) for item in items)


def differing(ours: Items, theirs: Items, at_most: int = 5) -> str:
    """What only one of two has, for people; empty if they are equal."""
    lines = []
    for name, more in (("crawlog alone", ours - theirs), ("Scrapy alone", theirs - ours)):
        if more:
            shown = [f"  {count} × {item:.300}" for item, count in more.most_common(at_most)]
            lines += [f"{name}: {more.total()} items, such as", *shown]
    return "\n".join(lines)
