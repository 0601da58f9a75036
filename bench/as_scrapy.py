"""Every spider of tests/projects/ by Scrapy and by whole crawls of crawlog, one after the other: are the items equal?

python -m bench.as_scrapy                       all spiders: some fifteen minutes on two cores
python -m bench.as_scrapy --short               one spider of each project
python -m bench.as_scrapy quotes pages login    spiders of one project; `own` has crawlog's own

tests/e2e/ has some of them, with kills; this is the whole list. Exit code 1: some spider gives other items.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crawlog.streams.engine import engine
from crawlog.streams.settings.settings import Settings
from tests.support.both import Items, by_scrapy, copied, differing, items_in
from tests.support.cases import OWN, PROJECTS
from tests.support.corpora import FOLDER, MISSING
from tests.support.logins import login
from tests.support.quotes import Quotes
from tests.support.quotes_runs import QUICK, arguments

LIMIT_S = 180.0


class Task(NamedTuple):
    """A spider as crawlog's command names it, and what Scrapy gives."""

    name: str
    folder: Path
    spider: str
    words: list[str]
    theirs: Items


def tasks(site: Quotes, folder: Path, project: str, names: list[str]) -> Iterator[Task]:
    """The spiders of a project, after Scrapy ran them."""
    if project == "own":
        twins = {name: OWN[name] for name in names or OWN}
        given = by_scrapy(copied("quotes", folder, site), {theirs: {} for theirs in twins.values()})
        file = copied("own", folder, site) / "site.py"
        for name, theirs in twins.items():
            yield Task(name, file.parent, f"{file}:{name}", [], given[theirs])
        return
    cases = {name: PROJECTS[project][name] for name in names or PROJECTS[project]}
    root = copied(project, folder, site)
    given = by_scrapy(root, {name: case.arguments for name, case in cases.items()})
    for name, case in cases.items():
        yield Task(name, root, name, arguments(case.arguments), given[name])


def verdict(task: Task, folder: Path, point: Settings) -> str:
    """What differs; empty if nothing does."""
    output = folder / f"{task.name}.jsonl"
    where = ["--data", str(folder / "data" / task.name), "-o", str(output), "--json"]
    log = ["--bootstrap", point.kafka.bootstrap, "-s", f"kafka.prefix={task.folder.name}-{task.name}."]
    command = [sys.executable, "-m", "crawlog", "run", "--spider", task.spider, *task.words, *where, *log, *QUICK]
    options: dict[str, Any] = {"cwd": task.folder, "env": os.environ | login(point), "timeout": LIMIT_S}
    try:
        done = subprocess.run(command, **options, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired as late:
        return f"no end within {LIMIT_S:.0f} s\n{late.stderr!r}"
    differs = differing(items_in(output), task.theirs)
    return f"{differs}\n{done.stderr[-2000:]}" if differs else ""


def judged(task: Task, folder: Path, point: Settings) -> bool:
    """Whether the items are equal; tells of it."""
    began = time.monotonic()
    differs = verdict(task, folder, point)
    said, took_s = "differs" if differs else "equal", time.monotonic() - began
    print(f"{task.name:24} {said:7} {task.theirs.total():4} items {took_s:5.1f} s  {differs}", flush=True)
    return not differs


def chosen(project: str, names: list[str]) -> list[str]:
    """Names of spiders; empty for all of a project."""
    if names or "--short" not in sys.argv:
        return names
    return list(OWN if project == "own" else PROJECTS[project])[-1:]


def main() -> int:
    """Tells of each spider; the exit code."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if not FOLDER.is_dir():
        sys.exit(MISSING)
    equal = []
    with tempfile.TemporaryDirectory(prefix="crawlog-as-scrapy-") as made:
        site = Quotes(FOLDER / "quotes-site")
        log = engine.start(Settings(), Path(made) / "engine", lambda _: None)
        try:
            for project in words[:1] or [*PROJECTS, "own"]:
                folder = Path(made) / f"of-{project}"
                folder.mkdir()
                for task in tasks(site, folder, project, chosen(project, words[1:])):
                    site.take()
                    equal.append(judged(task, folder, log.point(Settings())))
        finally:
            log.stop()
            site.close()
    return int(not all(equal))


if __name__ == "__main__":
    sys.exit(main())
