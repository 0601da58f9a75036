"""`python -m bench.faults.damage`: the log itself is damaged; a run must end complete, or say what is missing.

    python -m bench.faults.damage                       50 points of each of 5 topics: two hours
    python -m bench.faults.damage --topics pages --seeds 4

A point is one crawl: everything is stopped, cleanly or with kill -9, before, during or after the crawl. Then the file
of one partition is cut or bytes of it are flipped, or the partition's folder is deleted. The same command goes on. The
verdict needs nothing of the log: it comes from the site's access log, the rows of FILE, and the exit code and message.
"""

import argparse
import random
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from bench.faults import judge
from bench.faults.__main__ import keep, kept, tell
from bench.faults.crawl import JOB, Crawl, Size
from bench.faults.judge import Evidence
from bench.faults.schedule import Fault, Outcome, run
from bench.results import section, table, versions
from bench.site import WORK

TOPICS = ("urls", "pages", "items", "control", "progress")
MOMENTS = ("before", "during", "after")
FLIPS = 8
TAIL = 200
"""Bytes at the end of a file that a damaged tail has."""

VERIFY_S = 45.0

COMPLETE = (0, 4)
"""Exit codes of a run that claims to be complete; 4 says that crawl.dead has got records too."""

SIZE = Size(hosts=12, pages=25, delay_s=0.2, latency_s=(0.0, 0.02), fetch=1, concurrency=32)

Verdict = Literal["complete", "told", "silent", "untold", "invented", "stuck"]
"""What became of a point.

complete: nothing is missing. told: a non-zero exit names the place. silent: something is missing, the exit code is 0.
untold: a non-zero exit does not name the place. invented: something was requested, or has a row, that is not of the
site. stuck: the run did not end.
"""

GOOD = ("complete", "told")


class Seen(NamedTuple):
    """One point as it ended.

    Attributes:
        place: Topic and partition that were damaged.
        code: Exit code; None when it did not end.
        said: What the command said after the damage.
        missing: URLs without their row, or never answered.
        invented: Requests and rows that are not the site's.
    """

    place: tuple[str, int]
    code: int | None
    said: str
    missing: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()


def verdict(seen: Seen) -> Verdict:
    """What became of a point."""
    if seen.invented:
        return "invented"
    if seen.code is None:
        return "stuck"
    if seen.code in COMPLETE and not seen.missing:
        return "complete"
    if seen.code == 0:
        return "silent"
    return "told" if names(seen.said, *seen.place) else "untold"


def names(said: str, topic: str, partition: int) -> bool:
    """Whether a line names a topic and, after it, a partition."""
    return re.search(rf"\bcrawl\.{topic}\b.*\b{partition}\b", said) is not None


def missing(seen: Evidence) -> list[str]:
    """URLs of the site that have no row where one is due, or that were never answered."""
    return sorted(url for url, entry in seen.graph.expected.items() if not _is_there(seen, url, entry.kind))


def _is_there(seen: Evidence, url: str, kind: str) -> bool:
    if kind == "forbidden":
        return True
    is_answered = any(hit.complete for hit in seen.hits.get(url, ()))
    return is_answered and (kind in judge.ROWLESS or url in seen.row_urls)


def invented(seen: Evidence) -> list[str]:
    """Requests for what nobody links to; rows of no page, rows that are wrong, and second rows."""
    found = [place for check in (judge.stray, judge.wrong) for place in check(seen).examples]
    return found + [f"{url}: {count} rows" for url, count in seen.row_urls.items() if count > 1]


class Point(NamedTuple):
    """Where, how and when a log is damaged.

    Attributes:
        share: Part of the pages that are served by then.
        is_clean: The run was stopped, its broker too: what is damaged is not looked at when the broker starts.
        is_file_gone: FILE is lost as well.
    """

    deed: str
    moment: str
    share: float
    is_clean: bool
    is_file_gone: bool

    def __str__(self) -> str:
        """In words."""
        how = "clean stop" if self.is_clean else "kill -9"
        return f"{self.deed} {self.moment} ({self.share:.2f}), {how}{', FILE gone' if self.is_file_gone else ''}"


def point(seed: int, dice: random.Random) -> Point:
    """Seeds go through all deeds and moments; the rest is chance."""
    deed = list(DEEDS)[seed % len(DEEDS)]
    moment = MOMENTS[seed // len(DEEDS) % len(MOMENTS)]
    share = {"before": 0.0, "during": dice.uniform(0.05, 0.95), "after": 1.0}[moment]
    return Point(
        deed, moment, share, moment == "after" or dice.random() < 0.5, moment == "after" and dice.random() < 0.5
    )


def _cut(folder: Path, dice: random.Random) -> None:
    segment = _segment(folder)
    with segment.open("rb+") as opened:
        opened.truncate(int(segment.stat().st_size * dice.uniform(0.3, 0.98)))


def _flip_middle(folder: Path, dice: random.Random) -> None:
    _flip(_segment(folder), 0, dice)


def _flip_tail(folder: Path, dice: random.Random) -> None:
    segment = _segment(folder)
    _flip(segment, max(0, segment.stat().st_size - TAIL), dice)


def _flip(segment: Path, start: int, dice: random.Random) -> None:
    """Changes bytes that lie together."""
    with segment.open("rb+") as opened:
        at = dice.randrange(start, max(start + 1, segment.stat().st_size - FLIPS))
        opened.seek(at)
        old = opened.read(FLIPS)
        opened.seek(at)
        opened.write(bytes(byte ^ dice.randrange(1, 256) for byte in old))


def _delete(folder: Path, dice: random.Random) -> None:  # noqa: ARG001  # one signature for all
    shutil.rmtree(folder)


def _segment(folder: Path) -> Path:
    return max(folder.glob("*.log"))


DEEDS = {"cut": _cut, "middle flipped": _flip_middle, "tail flipped": _flip_tail, "deleted": _delete}


class Damage(Fault):
    """One point: a damaged partition of one topic."""

    name = "damage"
    says = "a partition of the log is cut, flipped or deleted"
    grace_s = 60.0

    def __init__(self, topic: str, seed: int, *, verifies: bool = True) -> None:
        self.name = f"{Damage.name}-{topic}"  # type: ignore[misc]  # one fault a topic
        self.topic, self.seed, self.verifies = topic, seed, verifies
        self.place = topic, -1
        self.told = 0

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Stops, damages, goes on."""
        where = point(self.seed, dice)
        if where.moment == "after":
            crawl.finish(300)
        elif not crawl.until(where.share, 120) or not crawl.until_asked(0.0):
            raise RuntimeError("the crawl ended before the damage")
        while not self._written(crawl) and crawl.sleep(0.1):
            pass  # a damage that damages nothing would be survived by all
        if where.is_clean:
            crawl.stop()
        crawl.kill_all()
        folder = dice.choice(self._written(crawl))
        self.place = self.topic, int(folder.name.rpartition("-")[2])
        DEEDS[where.deed](folder, dice)
        crawl.note(f"{where} of {self.place[0]}[{self.place[1]}]")
        if where.is_file_gone:
            crawl.output.unlink()
        self.told = crawl.said.stat().st_size
        crawl.start()
        return {}

    def _written(self, crawl: Crawl) -> list[Path]:
        """Folders of the topic's partitions that have records."""
        folders = sorted((crawl.data / "kafka" / "log").glob(f"crawl.{self.topic}-*"))
        return [one for one in folders if any(segment.stat().st_size for segment in one.glob("*.log"))]

    def judged(self, seed: int, crawl: Crawl, figures: dict[str, float], took_s: float) -> Outcome:
        """By the site and by FILE: nobody else reads a damaged log."""
        code = crawl.code
        crawl.kill_all()
        evidence = Evidence(
            crawl.graph, JOB, crawl.size.delay_s, crawl.site.requests(), [], [], [], [], crawl.rows(), {}
        )  # fmt: skip
        said = crawl.said.read_bytes()[self.told :].decode("utf-8", "replace")
        seen = Seen(self.place, code, said, tuple(missing(evidence)), tuple(invented(evidence)))
        came, events = verdict(seen), [event.what for event in crawl.events]
        checked = _verify_log(crawl) if self.verifies and code is not None else -1
        figures |= {"code": float(-1 if code is None else code), "missing": len(seen.missing), "verify": checked}
        broken = {name: judge.CHECKS[name](evidence) for name in ("hurried", "crowded", "robots")}
        problems = [] if came in GOOD else [f"{_problem(came, seen, events)}; verify --log {checked}"]
        problems += [
            f"{name} {found.times}: {'; '.join(found.examples)}" for name, found in broken.items() if found.times
        ]
        return Outcome(
            self.name, seed, crawl.size.hosts, crawl.size.pages, round(took_s, 1), len(evidence.requests),
            1, 1, 0.0, 0, {came: 1}, figures, problems,
        )  # fmt: skip


def _problem(came: Verdict, seen: Seen, events: list[str]) -> str:
    examples = "; ".join((seen.invented or seen.missing)[: judge.EXAMPLES])
    last = next((line for line in reversed(seen.said.splitlines()) if line.strip()), "")[:200]
    return f"{came}: {events}; exit {seen.code}; {len(seen.missing)} missing; {examples}; said {last!r}"


def _verify_log(crawl: Crawl) -> int:
    """The exit code of `crawlog verify --log`; -1 where it takes too long."""
    command = [sys.executable, "-P", "-m", "crawlog", "verify", "--log", "--data", str(crawl.data)]
    try:
        return subprocess.run(command, capture_output=True, check=False, cwd=crawl.folder, timeout=VERIFY_S).returncode
    except subprocess.TimeoutExpired:
        return -1


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Exit code 1 when a point ended as none may."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", default=",".join(TOPICS), help="names with commas")
    parser.add_argument("--seeds", type=int, default=50, help="points of each topic")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    asked = parser.parse_args()
    outcomes = []
    for seed in range(asked.seed, asked.seed + asked.seeds):
        for topic in asked.topics.split(","):
            outcomes.append(one(topic, seed, WORK / "damage" / f"{topic}-{seed}"))
            if not asked.dry:
                keep(outcomes[-1], SIZE)
            tell(outcomes[-1])
    print(report(outcomes))
    if not asked.dry:
        publish(" ".join(["python -m bench.faults.damage", *sys.argv[1:]]))
    return int(any(not outcome.is_good for outcome in outcomes))


def one(topic: str, seed: int, folder: Path) -> Outcome:
    """A point; a harness that fails is an outcome too."""
    fault = Damage(topic, seed)
    try:
        return run(fault, seed, SIZE, folder)
    except Exception as error:  # noqa: BLE001  # a night of points goes on with the next one
        traceback.print_exc()
        problem = f"the harness failed: {type(error).__name__}: {error}".splitlines()[0]
        return Outcome(fault.name, seed, SIZE.hosts, SIZE.pages, 0.0, 0, 0, 0, 0.0, 0, {"harness": 1}, {}, [problem])


def report(outcomes: Iterable[Outcome]) -> str:
    """A line a topic; what no run may do below it."""
    came: dict[str, Counter[str]] = {}
    took: dict[str, float] = {}
    problems = []
    for outcome in outcomes:
        came.setdefault(outcome.fault, Counter()).update(outcome.counts)
        took[outcome.fault] = max(took.get(outcome.fault, 0.0), outcome.took_s)
        problems += [f"- NOT KEPT {outcome.fault} seed {outcome.seed}: {what}" for what in outcome.problems]
    columns = ("complete", "told", "silent", "untold", "invented", "stuck", "harness")
    rows = [
        [name, str(counts.total()), f"{took[name]:.0f}", *(str(counts[column]) for column in columns)]
        for name, counts in came.items()
    ]
    return "\n\n".join(filter(None, [table(("topic", "points", "worst s", *columns), rows), "\n".join(problems)]))


def publish(command: str) -> None:
    """Writes the section of RESULTS.md from the newest outcome of each point."""
    newest = {(o.fault, o.seed): (origin, o) for origin, o in kept(SIZE) if o.fault.startswith(f"{Damage.name}-")}
    facts = {
        "run": f"`{command}`; the newest run of each point",
        "commits": ", ".join(sorted({origin.commit for origin, _ in newest.values()})),
        "site": f"{SIZE.hosts} hosts x {SIZE.pages} paths, {SIZE.delay_s} s delay",
        "columns": "told: a non-zero exit names the place; silent: exit 0, something is missing; untold: a non-zero "
        "exit without the place; invented: requests or rows that are not the site's",
        **versions(("crawlog", "confluent-kafka", "rocksdict")),
    }
    section("damage", "A damaged log", report(newest[at][1] for at in sorted(newest)), facts)


if __name__ == "__main__":
    sys.exit(main())
