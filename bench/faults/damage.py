"""`python -m bench.faults.damage`: the log itself is damaged; a run must end complete, or say what is missing.

    python -m bench.faults.damage                       50 points of each of 5 topics; goes on where it was stopped
    python -m bench.faults.damage --topics pages --seeds 4 --anew

A seed is one crawl that is stopped, cleanly or with kill -9, before, during or after its work. Each of its points
begins from a copy of that folder: in one topic the file of one partition is cut or bytes of it are flipped, or the
partition's folder is deleted. The same command goes on. If it ends and names the damage, `crawlog repair --execute`
and the same command again must end complete. The verdict needs nothing of the log: it comes from the site's access log,
the rows of FILE, and the exit code and message.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bench.faults import judge
from bench.faults.__main__ import keep, kept, tell
from bench.faults.crawl import JOB, Crawl, Size
from bench.faults.graph import Graph
from bench.faults.judge import Evidence
from bench.faults.schedule import Outcome
from bench.results import section, table, versions
from tests.support.synthetic_site import WORK, free_port

NAME = "damage"
"""Of the section, and the beginning of the points' names."""

TOPICS = ("urls", "pages", "items", "control", "progress")
MOMENTS = ("before", "during", "after")
FLIPS = 8
TAIL = 200
"""Bytes at the end of a file that a damaged tail has."""

VERIFY_S = 45.0
END_S = 150.0
"""A run that has not ended by then is stuck; it takes 5 to 40 s."""

TICK_S = 0.000_1
"""The access log rounds moments; no two requests of a crawl that was stopped in between are as near."""

COMPLETE = (0, 4)
"""Exit codes of a run that claims to be complete; 4 says that crawl.dead has got records too."""

SIZE = Size(hosts=8, pages=12, delay_s=0.15, latency_s=(0.0, 0.02), fetch=1, concurrency=32)

Verdict = Literal["complete", "told", "silent", "untold", "invented", "stuck"]
"""Verdict on a point.

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
        said: Output of the command after the damage.
        missing: URLs without their row, or never answered.
        invented: Requests and rows that are not the site's.
    """

    place: tuple[str, int]
    code: int | None
    said: str
    missing: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()


def verdict(seen: Seen) -> Verdict:
    """Verdict on a point."""
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
    """Requests for URLs that no page links to; rows of no page, rows that are wrong, and second rows."""
    found = [place for check in (judge.stray, judge.wrong) for place in check(seen).examples]
    return found + [f"{url}: {count} rows" for url, count in seen.row_urls.items() if count > 1]


class Base(NamedTuple):
    """When and how a crawl is stopped.

    Attributes:
        share: Part of the pages that are served by then.
        is_clean: The run was stopped, its broker too: what is damaged is not looked at when the broker starts.
    """

    moment: str
    share: float
    is_clean: bool


class Point(NamedTuple):
    """How the log of a stopped crawl is damaged.

    Attributes:
        is_file_gone: FILE is lost as well.
        is_rot: A disk changes bytes in silence: the file keeps its time.
    """

    deed: str
    base: Base
    is_file_gone: bool
    is_rot: bool

    def __str__(self) -> str:
        """In words."""
        how = "clean stop" if self.base.is_clean else "kill -9"
        gone = ", FILE gone" if self.is_file_gone else ""
        rot = ", the file's time kept" if self.is_rot else ""
        return f"{self.deed} {self.base.moment} ({self.base.share:.2f}), {how}{gone}{rot}"


def base(seed: int) -> Base:
    """Seeds go through all moments; the rest is chance."""
    dice = random.Random(f"damage/{seed}")
    moment = MOMENTS[seed // len(DEEDS) % len(MOMENTS)]
    share = {"before": 0.0, "during": dice.uniform(0.05, 0.95), "after": 1.0}[moment]
    return Base(moment, share, moment == "after" or dice.random() < 0.5)


def point(seed: int, dice: random.Random) -> Point:
    """Seeds go through all deeds at all moments."""
    deed, stopped = list(DEEDS)[seed % len(DEEDS)], base(seed)
    is_file_gone = stopped.moment == "after" and dice.random() < 0.5
    return Point(deed, stopped, is_file_gone, "flipped" in deed and dice.random() < 0.5)


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


class Stopped:
    """A crawl that was stopped, and its folder as it was then.

    Args:
        topics: Each must have records by then.
    """

    def __init__(self, crawl: Crawl, seed: int, topics: Iterable[str] = TOPICS) -> None:
        self.crawl, self.base = crawl, base(seed)
        self._kept = crawl.folder / "base"
        crawl.start()
        if self.base.moment == "after":
            crawl.finish(300)
        elif not crawl.until(self.base.share, 120) or not crawl.until_asked(0.0):
            raise RuntimeError("the crawl ended before the damage")
        while not all(written(crawl, topic) for topic in topics) and crawl.sleep(0.05):
            pass  # a damage that damages nothing would be survived by all
        if self.base.is_clean:
            crawl.stop()
        crawl.kill_all()
        self.requests = crawl.site.requests()
        self._kept.mkdir()
        for path in (crawl.data, crawl.output):
            _copy(path, self._kept)

    def restore(self) -> None:
        """Makes the folder as it was when the crawl was stopped."""
        shutil.rmtree(self.crawl.data)
        self.crawl.output.unlink(missing_ok=True)
        for path in self._kept.iterdir():
            _copy(path, self.crawl.folder)


def _copy(path: Path, folder: Path) -> None:
    """Holes of files stay holes: Kafka's indexes are mostly that."""
    if path.exists():
        subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", path, folder], check=True)


def written(crawl: Crawl, topic: str) -> list[Path]:
    """Folders of a topic's partitions that have records."""
    folders = sorted((crawl.data / "kafka" / "log").glob(f"crawl.{topic}-*"))
    return [one for one in folders if any(segment.stat().st_size for segment in one.glob("*.log"))]


class Damage:
    """One point: a damaged partition of one topic."""

    def __init__(self, topic: str, seed: int, *, verifies: bool = True) -> None:
        self.name = f"{NAME}-{topic}"
        self.topic, self.seed, self.verifies = topic, seed, verifies
        self.place = topic, -1
        self._said = 0
        self._problems: list[str] = []

    def run(self, stopped: Stopped) -> Outcome:
        """Damages a copy, goes on, and once more after a repair where that is told to be needed."""
        crawl, dice = stopped.crawl, random.Random(f"{self.name}/{self.seed}")
        stopped.restore()
        where = point(self.seed, dice)
        folder = dice.choice(written(crawl, self.topic))
        self.place = self.topic, int(folder.name.rpartition("-")[2])
        what = f"{where} of {self.place[0]}[{self.place[1]}]"
        before = _segment(folder).stat()
        DEEDS[where.deed](folder, dice)
        if where.is_rot:
            os.utime(_segment(folder), ns=(before.st_atime_ns, before.st_mtime_ns))
        if where.is_file_gone:
            crawl.output.unlink()
        began, marks = time.monotonic(), crawl.site.stats()["last"]
        evidence, code = self._go_on(stopped, marks)
        came = self._judge(crawl, evidence, code, what)
        counts: dict[str, int] = {came: 1}
        requests = len(evidence.requests)
        if came == "told":
            self._repair(crawl)
            evidence, again = self._go_on(stopped, marks)
            then = self._judge(crawl, evidence, again, f"{what}, repaired")
            counts[f"then {then}"] = 1
        checked = _verify_log(crawl) if self.verifies and code is not None else -1
        for name in ("hurried", "crowded", "robots"):
            found = judge.CHECKS[name](evidence)
            if found.times:
                self._problems.append(f"{name} {found.times}: {'; '.join(found.examples)}")
        took_s = round(time.monotonic() - began, 1)
        print(f"   {what}", file=sys.stderr)
        figures = {"code": float(-1 if code is None else code), "verify": float(checked)}
        return Outcome(
            self.name, self.seed, crawl.size.hosts, crawl.size.pages, took_s, requests, 1, 1, 0.0, 0, counts,
            figures, self._problems,
        )  # fmt: skip

    def _go_on(self, stopped: Stopped, since: float) -> tuple[Evidence, int | None]:
        """The same command again; what was seen of the point by its end."""
        crawl = stopped.crawl
        self._said = crawl.said.stat().st_size
        crawl.start()
        crawl.finish(END_S)
        code = crawl.code
        crawl.kill_all()
        requests = stopped.requests + [one for one in crawl.site.requests() if one.began > since + TICK_S]
        return Evidence(crawl.graph, JOB, crawl.size.delay_s, requests, [], [], [], [], crawl.rows(), {}), code

    def _judge(self, crawl: Crawl, evidence: Evidence, code: int | None, what: str) -> Verdict:
        """By the site and by FILE: nobody else reads a damaged log."""
        said = crawl.said.read_bytes()[self._said :].decode("utf-8", "replace")
        seen = Seen(self.place, code, said, tuple(missing(evidence)), tuple(invented(evidence)))
        came = verdict(seen)
        if came not in GOOD:
            self._problems.append(problem(came, seen, what))
        return came

    def _repair(self, crawl: Crawl) -> None:
        """As the message says."""
        command = [sys.executable, "-P", "-m", "crawlog", "repair", "--execute", "--data", str(crawl.data)]
        with crawl.said.open("ab") as said:
            subprocess.run(command, stdout=said, stderr=said, check=False, cwd=crawl.folder, timeout=END_S)


def problem(came: Verdict, seen: Seen, what: str) -> str:
    """One line on a point that ended as none may."""
    examples = "; ".join((seen.invented or seen.missing)[: judge.EXAMPLES])
    last = next((line for line in reversed(seen.said.splitlines()) if line.strip()), "")[:200]
    return f"{came}: {what}; exit {seen.code}; {len(seen.missing)} missing; {examples}; said {last!r}"


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
    parser.add_argument("--anew", action="store_true", help="also points that are on record")
    parser.add_argument("--verify", action="store_true", help="run `crawlog verify --log` after each point")
    parser.add_argument("--dry", action="store_true", help="keep no outcome, write no section")
    asked = parser.parse_args()
    known = {} if asked.anew else newest()
    is_good = True
    for seed in range(asked.seed, asked.seed + asked.seeds):
        topics = [topic for topic in asked.topics.split(",") if not _is_good(known.get((f"{NAME}-{topic}", seed)))]
        for outcome in points(seed, topics, WORK / NAME / str(seed), verifies=asked.verify):
            is_good &= outcome.is_good
            tell(outcome)
            if not asked.dry:
                keep(outcome, SIZE)
    if not asked.dry:
        publish(" ".join(["python -m bench.faults.damage", *sys.argv[1:]]))
    return int(not is_good)


def newest() -> dict[tuple[str, int], Outcome]:
    """The newest outcome on record of each point, by name and seed."""
    return {(one.fault, one.seed): one for _, one in kept(SIZE) if one.fault.startswith(f"{NAME}-")}


def _is_good(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.is_good


def points(
    seed: int, topics: Sequence[str], folder: Path, size: Size = SIZE, *, verifies: bool = False
) -> Iterator[Outcome]:
    """A seed's points, from one crawl; the folder is removed when all was well. A harness that fails is an outcome."""
    if not topics:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with Crawl(folder, Graph(size.hosts, size.pages, seed, free_port()), size) as crawl:
        crawl.title = f"{NAME} seed {seed}"
        try:
            stopped = Stopped(crawl, seed, topics)
        except Exception as error:  # noqa: BLE001  # a night of points goes on with the next seed
            yield from (_failed(topic, seed, size, error) for topic in topics)
            return
        outcomes = []
        for topic in topics:
            try:
                outcomes.append(Damage(topic, seed, verifies=verifies).run(stopped))
            except Exception as error:  # noqa: BLE001  # nor with the next point
                outcomes.append(_failed(topic, seed, size, error))
            if not outcomes[-1].is_good:
                shutil.copytree(crawl.data / "logs", folder / f"logs-{topic}", dirs_exist_ok=True)
                shutil.copy(crawl.said, folder / f"said-{topic}.log")
            yield outcomes[-1]
    if all(outcome.is_good for outcome in outcomes):
        shutil.rmtree(folder, ignore_errors=True)


def _failed(topic: str, seed: int, size: Size, error: Exception) -> Outcome:
    traceback.print_exception(error)
    problem = f"the harness failed: {type(error).__name__}: {error}".splitlines()[0]
    counts = {"harness": 1}
    return Outcome(f"{NAME}-{topic}", seed, size.hosts, size.pages, 0.0, 0, 0, 0, 0.0, 0, counts, {}, [problem])


COLUMNS = ("complete", "told", "silent", "untold", "invented", "stuck", "harness")


def report(outcomes: Iterable[Outcome]) -> str:
    """A line a topic; what no run may do below it."""
    came: dict[str, Counter[str]] = {}
    took: dict[str, float] = {}
    problems = []
    for outcome in outcomes:
        came.setdefault(outcome.fault, Counter()).update(outcome.counts)
        took[outcome.fault] = max(took.get(outcome.fault, 0.0), outcome.took_s)
        problems += [f"- NOT KEPT {outcome.fault} seed {outcome.seed}: {what}" for what in outcome.problems]
    rows = [
        [
            name,
            str(sum(counts[column] for column in COLUMNS)),
            f"{took[name]:.0f}",
            *(str(counts[column]) for column in (*COLUMNS[:2], "then complete", *COLUMNS[2:])),
        ]
        for name, counts in came.items()
    ]
    head = ("topic", "points", "worst s", *COLUMNS[:2], "… repaired", *COLUMNS[2:])
    return "\n\n".join(filter(None, [table(head, rows), "\n".join(problems)]))


def publish(command: str) -> None:
    """Writes the section of RESULTS.md."""
    columns = (
        "told: a non-zero exit names the place; … repaired: of these, complete after `crawlog repair "
        "--execute` and the same command; silent: exit 0, something is missing; untold: a non-zero exit without the "
        "place; invented: requests or rows that are not the site's"
    )
    record(NAME, "A damaged log", SIZE, {"run": command, "site": site(SIZE), "columns": columns})


def site(size: Size) -> str:
    """The crawled site, for a section's facts."""
    return f"{size.hosts} hosts x {size.pages} paths, {size.delay_s} s delay"


def record(name: str, title: str, size: Size, facts: Mapping[str, str]) -> None:
    """Writes a section of RESULTS.md from the newest outcome of each point of a bench like this one."""
    of = {(o.fault, o.seed): (origin, o) for origin, o in kept(size) if o.fault.startswith(f"{name}-")}
    told = {
        **facts,
        "run": f"`{facts['run']}`; the newest run of each point",
        "commits": ", ".join(sorted({origin.commit for origin, _ in of.values()})),
        **versions(("crawlog", "confluent-kafka", "rocksdict")),
    }
    section(name, title, report(of[at][1] for at in sorted(of)), told)


if __name__ == "__main__":
    sys.exit(main())
