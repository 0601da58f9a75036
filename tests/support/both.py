"""The same spiders by Scrapy and by crawlog, and what they give: the measure is Scrapy itself.

A project is copied, with the site's address in place of `http://quotes.test`: its code reads as its users write it.
What Scrapy gives is noted in tests/projects/by_scrapy.json, a digest for each spider. `make test-long` runs Scrapy and
compares; `python -m tests.support.both` notes it anew.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support import corpora
from tests.support.cases import BROWSER
from tests.support.cases import PROJECTS as CASES
from tests.support.quotes import OTHER, Quotes, canonical

PROJECTS = Path(__file__).parent.parent / "projects"
ALL_SPIDERS = Path(__file__).parent / "all_spiders.py"

NOTED = PROJECTS / "by_scrapy.json"
"""For each project the digest of each spider's items by Scrapy."""

SCRAPY_S = 480.0
"""For Scrapy to run all spiders of a project."""

Items = Counter[str]
"""A multiset of items, each as canonical JSON."""


def _addresses(site: Quotes) -> dict[str, str]:
    """What stands in the projects for the addresses of a site."""
    return {
        "http://quotes.test": site.origin,
        "http://other.test": site.origin.replace("127.0.0.1", OTHER),
        "http://nobody.test": f"http://127.0.0.1:{site.closed_port}",
    }


def copied(name: str, folder: Path, site: Quotes) -> Path:
    """A folder of tests/projects/ as a user would have it, for this site; its address is filled in."""
    site.take()
    project = Path(shutil.copytree(PROJECTS / name, folder / name))
    words = _addresses(site) | {"quotes.test": "127.0.0.1", "other.test": OTHER}
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


def digest_of(items: Items, site: Quotes) -> str:
    """Of a multiset, whatever ports the site has."""
    lines = list(items.elements())
    for name, address in _addresses(site).items():
        for new, old in (name, address), (name.removeprefix("http://"), address.removeprefix("http://")):
            lines = [line.replace(old, new) for line in lines]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def noted(project: str) -> dict[str, str]:
    """The digest of each spider's items by Scrapy."""
    digests: dict[str, dict[str, str]] = json.loads(NOTED.read_text())
    return digests[project]


def differing(ours: Items, theirs: Items, at_most: int = 5) -> str:
    """What only one of two has, for people; empty if they are equal."""
    lines = []
    for name, more in (("crawlog alone", ours - theirs), ("Scrapy alone", theirs - ours)):
        if more:
            shown = [f"  {count} × {item:.300}" for item, count in more.most_common(at_most)]
            lines += [f"{name}: {more.total()} items, such as", *shown]
    return "\n".join(lines)


def main() -> None:
    """Notes what Scrapy gives."""
    os.environ["PYTHONHASHSEED"] = "0"  # sets have one order
    site = Quotes(corpora.FOLDER / "quotes-site")
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, cases in (CASES | {"browser": BROWSER}).items():
            given = by_scrapy(
                copied(name, Path(folder), site), {spider: case.arguments for spider, case in cases.items()}
            )
            digests[name] = {spider: digest_of(items, site) for spider, items in given.items()}
    site.close()
    NOTED.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    main()
