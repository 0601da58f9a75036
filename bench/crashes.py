"""The crash-point sweep: a process dies at one named instant between two writes. Results must not show it.

    python -m bench.crashes                     every point, at the first, the third and the tenth time it is reached
    python -m bench.crashes --points parse,sink those whose names begin so
    python -m bench.crashes --counts 1          once each
    python -m bench.crashes --short             one point a stage, once each; nothing is written

Each case is a crawl of its own on an engine of its own. It is interrupted with Ctrl-C and goes on, then everything is
killed and it goes on again: so every point is reached, those of a start, a stop and a restore too. The judge is the
site's access log, the output, and a second fold of the log.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.results import options_of, run_as, section, table, versions
from crawlog.streams.crash_points import POINTS, VARIABLE
from crawlog.streams.engine import engine
from crawlog.streams.settings.sources import load
from crawlog.streams.state.verify import verify
from tests.support.cluster import Cluster  # the crawl as processes, which the tests kill too
from tests.support.synthetic_site import WORK

HOSTS, PAGES = 8, 12
CONCURRENCY = 8
DELAY_S = 0.1
STARTS = 6
"""Times that the command is given, at most."""

LIMIT_S = 120.0
ELSEWHERE = {
    "rewind.": "tests/streams/control/test_rewind.py",
    "order.": "tests/streams/control/test_job_changes.py",
    "delete.": "tests/streams/control/test_job_changes.py",
    "code.": "tests/crawlog/commands/test_projects.py",
    "replay.": "tests/crawlog/commands/test_replay.py",
    "redrive.": "tests/crawlog/commands/test_dead.py",
    "start.": "tests/e2e/test_start.py",
    "forward.": "tests/agents/frontier/test_outgoing.py",
    "restore.forward.": "tests/agents/frontier/test_outgoing.py",
    "restore.checkpointed": "tests/e2e/test_crash_points.py",
    "restore.dones.": "tests/e2e/test_sessions.py",
    "fetch.began.": "tests/e2e/test_sessions.py",
    "parse.again.": "tests/e2e/test_parse_again.py",
    "parse.dead.": "tests/agents/parse/test_outputs.py",
    "pipelines.": "tests/e2e/test_item_pipelines.py",
    "output.": "tests/agents/outputs/test_outputs_worker.py",
    "store.": "tests/e2e/test_stores.py",
    "copy.": "tests/e2e/test_fleet_commands.py",
}
"""Points that no plain `run` reaches, by how their names begin, and the test in which a process dies there."""

SWEPT = tuple(name for name in POINTS if not name.startswith(tuple(ELSEWHERE)))


SHORT = "fold.taken,fetch.page.acknowledged,parse.founds.acknowledged,sink.rows.written"


class Case(NamedTuple):
    """One crawl with one death.

    Attributes:
        died: Whether the point was reached so often.
        lost: Pages without a row.
        doubled: Rows that are too many.
        repeated: Requests for a page that had been answered.
        equal: Whether the states are the folds of their logs.
    """

    point: str
    nth: int
    died: bool
    lost: int
    doubled: int
    repeated: int
    equal: bool

    @property
    def is_good(self) -> bool:
        """Nothing lost, nothing doubled; no more requests again than the killed fetch workers had in flight."""
        return self.lost == 0 and self.doubled == 0 and self.equal and self.repeated <= 3 * CONCURRENCY


def try_point(folder: Path, point: str, count: int) -> Case:
    """Crawl with a death at a point."""
    shutil.rmtree(folder, ignore_errors=True)
    spent = folder / "spent"
    spent.mkdir(parents=True)
    settings = {"politeness.delay_s": DELAY_S, "fetch.concurrency": CONCURRENCY, "state.checkpoint_s": 0.3}
    settings["recrawl.age"] = 86_400  # so that parse writes changes
    with Cluster(folder, hosts=HOSTS, pages=PAGES, settings=settings) as crawl:
        crawl.environment = {VARIABLE: f"{spent} {point}:{count}"}
        crawl.start()
        if crawl.reaches(0.25, LIMIT_S):
            crawl.interrupt()
        crawl.start()
        if crawl.reaches(0.6, LIMIT_S):
            crawl.kill_all()
        for _ in range(STARTS):
            crawl.start()
            if crawl.ends(LIMIT_S) == 0:
                break
        else:
            sys.exit(f"{point}:{count} does not end:\n{crawl.tail()}")
        rows = crawl.rows()
        return Case(
            point,
            count,
            died=(spent / point).exists(),
            lost=len(crawl.urls - rows.keys()),
            doubled=sum(rows.values()) - len(rows),
            repeated=crawl.site.stats().duplicates,
            equal=_equal(crawl),
        )


def _equal(crawl: Cluster) -> bool:
    settings = load({"run.data": str(crawl.data)})
    log = engine.start(settings, crawl.data, lambda _: None)
    try:
        return all(verdict.equal for verdict in verify(log.point(settings), crawl.data / "state"))
    finally:
        log.stop()


def chosen(beginnings: str) -> list[str]:
    """The swept points whose names begin so.

    Raises: SystemExit: none begins with one of the words.
    """
    words = beginnings.split(",")
    if unknown := [word for word in words if not any(name.startswith(word) for name in SWEPT)]:
        sys.exit(f"no point of the sweep begins with {', '.join(unknown)}; there are {', '.join(SWEPT)}")
    return [name for name in SWEPT if name.startswith(tuple(words))]


def main() -> int:
    """Exit code 1 when a death showed, or a point was never reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default="", help="beginnings of names, by commas")
    parser.add_argument("--counts", default="1,3,10", help="the how-manieth time, by commas")
    parser.add_argument("--short", action="store_true", help="one point a stage, once each; nothing is written")
    options = options_of(parser)
    points = chosen(options.points or (SHORT if options.short else ""))
    counts = [1] if options.short else [int(count) for count in options.counts.split(",")]
    started = time.monotonic()
    cases = []
    for point in points:
        for count in counts:
            cases.append(try_point(WORK / "runs" / "crashes", point, count))
            print(*cases[-1], "" if cases[-1].is_good else "BAD", file=sys.stderr, flush=True)
            if not cases[-1].died:
                break  # a larger count will not be reached either
    text = _told(cases)
    print(text)
    if options.write:
        facts = {
            "command": run_as("crashes"),
            "took_s": f"{time.monotonic() - started:.0f}",
        }
        section(
            "crashes",
            "A death at every point between two writes",
            text,
            facts | versions(("crawlog", "faust-streaming")),
        )
    never = {case.point for case in cases} - {case.point for case in cases if case.died}
    return int(bool(never) or not all(case.is_good for case in cases))


def _told(cases: list[Case]) -> str:
    rows = []
    for point, state in POINTS.items():
        tried = [case for case in cases if case.point == point]
        if tried:
            deaths = [str(case.nth) for case in tried if case.died]
            worst = [str(max(getattr(case, name) for case in tried)) for name in ("lost", "doubled", "repeated")]
            rows.append(
                (
                    f"`{point}`",
                    state,
                    ", ".join(deaths) or "never",
                    *worst,
                    "yes" if all(c.equal for c in tried) else "NO",
                )
            )
    return table(("point", "what is where", "died at", "lost", "doubled", "repeated", "folds equal"), rows)


if __name__ == "__main__":
    sys.exit(main())
