"""Seeds: URLs a second from a file to acknowledged records, by `crawlog seed` on the local engine.

    python -m bench.seeds              a million URLs, three rounds of each file; writes its section of RESULTS.md
    python -m bench.seeds --short      50,000, one round

The time is the command's own: from the first look at the file to the last acknowledgement, the job's record included,
the engine's start left out. The files hold a million URLs of 10,000 domains, by domain or shuffled, and as JSON lines.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.meter import measure
from bench.peer import CRAWLOG, install_crawlog
from bench.results import options_of, run_as, section, table, versions
from bench.speed import records_by_topic
from tests.support.synthetic_site import WORK

URLS = 1_000_000
DOMAINS = 10_000
PACE = 100_000
"""URLs a second, at least."""

FOLDER = WORK / "runs" / "seeds"


@dataclass
class Result:
    """One file.

    Attributes:
        pace: URLs a second of each round.
        cpu_us: CPU a URL, engine and its start included, microseconds.
        records: Records of crawl.urls, of the last round.
    """

    title: str
    pace: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    records: int = 0
    faults: list[str] = field(default_factory=list)


def lines(count: int, form: Callable[[str], str], *, shuffled: bool) -> list[str]:
    """The lines of a file."""
    domains = min(DOMAINS, count)
    urls = [
        form(f"https://www.host-{domain}.example/articles/{page % 89}/of-some-length-{page}.html")
        for domain in range(domains)
        for page in range(count // domains)
    ]
    if shuffled:
        random.Random(5).shuffle(urls)
    return urls


def seed(file: Path, count: int, result: Result) -> None:
    """One round: a fresh engine, one command."""
    data = FOLDER / "data"
    shutil.rmtree(data, ignore_errors=True)
    measured = measure([str(CRAWLOG), "seed", str(file), "--job", "bench", "--json", "--data", str(data)], FOLDER)
    if measured.exit_code:
        sys.exit(f"crawlog seed ended with {measured.exit_code}; see {FOLDER / 'output.log'}")
    answers = [line for line in (FOLDER / "output.log").read_text().splitlines() if line.startswith("{")]
    summary = json.loads(answers[-1])
    if summary["urls"] != count or summary["bad"]:
        result.faults.append(f"{summary['urls']:,} URLs and {summary['bad']:,} bad lines of {count:,}")
    result.pace.append(summary["urls"] / summary["took_s"])
    result.cpu_us.append(1e6 * measured.cpu_s / count)
    result.records = sum(count for topic, count in records_by_topic(data).items() if topic.endswith(".urls"))


def plain(url: str) -> str:
    """A line of a text file."""
    return url


def as_json(url: str) -> str:
    """A JSON line."""
    return json.dumps({"url": url, "priority": 1})


def report(results: list[Result]) -> str:
    """The table."""
    head = ["file", "URLs/s", "least", "CPU µs/URL, engine included", "records"]
    rows = [
        [
            one.title,
            f"{statistics.median(one.pace):,.0f}",
            f"{min(one.pace):,.0f}",
            f"{statistics.median(one.cpu_us):.1f}",
            f"{one.records:,}",
        ]
        for one in results
    ]
    return table(head, rows)


def main() -> int:
    """Seeds all files; 1 when a URL was lost, or, at full size, the text files were too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="50,000 URLs, one round; nothing is written")
    args = options_of(parser)
    count, rounds = (50_000, 1) if args.short else (URLS, 3)
    install_crawlog()
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {
        "text, by domain": lines(count, plain, shuffled=False),
        "text, shuffled": lines(count, plain, shuffled=True),
        "JSON lines, shuffled": lines(count, as_json, shuffled=True),
    }
    results = {title: Result(title) for title in files}
    for _ in range(rounds):
        for title, urls in files.items():
            file = FOLDER / "seeds.txt"
            file.write_text("\n".join(urls) + "\n")
            seed(file, count, results[title])
            print(f"{title}: {results[title].pace[-1]:,.0f} URLs/s", file=sys.stderr)
    every = list(results.values())
    faults = [f"{one.title}: {fault}" for one in every for fault in one.faults]
    slow = [
        f"{one.title}: {statistics.median(one.pace):,.0f} URLs a second, ≥ {PACE:,} wanted"
        for one in every
        if one.title.startswith("text") and statistics.median(one.pace) < PACE
    ]
    body = report(every) + "\n\n" + ("\n".join(faults + slow) or "All goals reached.")
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "confluent-kafka", "msgspec"]).items())
        shape = f"{count:,} URLs of {DOMAINS:,} domains, {rounds} rounds, a fresh engine each"
        section("seeds", "Seeds", body, {"run": run_as("seeds"), "shape": shape, "versions": packages})
    return 1 if faults or (slow and not args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
