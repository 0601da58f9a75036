"""Kill -9 at random instants: a worker, all of it, the broker. The judge is the site's access log, and a second fold.

    python -m bench.kills              20 kills amid 12,000 pages on 20 hosts; writes its section of RESULTS.md
    python -m bench.kills --short      5 kills amid 2,000 pages
    python -m bench.kills --seed 7     other instants and victims

Every page must end as exactly one row; a killed fetch worker may repeat `fetch.concurrency` requests; no host may be
asked before its rest is over; and the states must be the folds of their logs.
"""

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from bench.results import REPO, section, table, versions
from bench.site import WORK
from crawlog.streams import engine
from crawlog.streams.settings import load
from crawlog.streams.verify import verify

sys.path.insert(0, str(REPO / "tests"))
from cluster import Cluster  # the crawl as processes, which the tests kill too

CONCURRENCY = 32
DELAY_S = 0.2
VICTIMS = ("fetch", "parse", "everything", "broker")
AGAIN_S = 60.0
"""How long the next request may take to come."""


@dataclass
class Kill:
    """One kill.

    Attributes:
        pages: Pages served before it.
        silent_s: From the kill to the next request.
        fetchers: Fetch workers that died.
    """

    victim: str
    pages: int
    silent_s: float
    fetchers: int


def kill(crawl: Cluster, victim: str) -> Kill:
    """Kills, starts again where nothing would do so by itself, and waits for the next request."""
    before = crawl.site.stats()
    fetchers = 0
    if victim == "everything":
        fetchers = crawl.kill_all()
        crawl.start()
    elif victim == "broker":
        crawl.kill_broker()
    else:
        killed = crawl.kill(victim)
        fetchers = killed if victim == "fetch" else 0
    killed_ns = time.time_ns()
    end = time.monotonic() + AGAIN_S
    while (now := crawl.site.stats()).last_ns <= killed_ns and now.unique < len(crawl.urls):
        if time.monotonic() > end:
            sys.exit(f"no request for {AGAIN_S:.0f} s after the death of {victim}:\n{crawl.tail()}")
        time.sleep(0.01)
    silent_s = max(_first_after(crawl, killed_ns) - killed_ns / 1e9, 0.0)
    return Kill(victim, before.unique, silent_s, fetchers)


def _first_after(crawl: Cluster, killed_ns: int) -> float:
    return next((at for at, _, _ in crawl.requests() if at * 1e9 > killed_ns), killed_ns / 1e9)


def shortest_rest_s(crawl: Cluster) -> float:
    """The shortest time between two requests to one host."""
    by_host: dict[str, list[float]] = {}
    for at, host, _ in crawl.requests():
        by_host.setdefault(host, []).append(at)
    return min(later - earlier for times in by_host.values() for earlier, later in pairwise(times))


def equal_states(crawl: Cluster) -> bool:
    """Whether a second fold of the log gives the states that the workers left."""
    settings = load({"run.data": str(crawl.data)})
    log = engine.start(settings, crawl.data, lambda _: None)
    try:
        return all(verdict.equal for verdict in verify(log.point(settings), crawl.data / "state"))
    finally:
        log.stop()


def main() -> int:
    """Exit code 1 when anything that was promised was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="5 kills, 2,000 pages; nothing is written")
    parser.add_argument("--seed", type=int, default=1, help="of instants and victims")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    count, pages = (5, 100) if options.short else (20, 600)
    folder = WORK / "runs" / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = {"politeness.delay_s": DELAY_S, "fetch.concurrency": CONCURRENCY}
    with Cluster(folder, hosts=20, pages=pages, settings=settings) as crawl:
        crawl.start()
        kills = []
        for share in sorted(dice.uniform(0.01, 0.95) for _ in range(count)):
            crawl.until(share, limit_s=600)
            kills.append(kill(crawl, dice.choice(VICTIMS)))
            print(kills[-1], file=sys.stderr)
        crawl.finish(600)
        return judge(crawl, kills, options)


def judge(crawl: Cluster, kills: list[Kill], options: argparse.Namespace) -> int:
    """Prints the table and what was kept; writes it at full size."""
    rows, stats, rest_s = crawl.rows(), crawl.site.stats(), shortest_rest_s(crawl)
    fetchers = sum(one.fetchers for one in kills)
    promises = {
        "pages without a row": (len(crawl.urls - rows.keys()), 0),
        "rows that are too many": (sum(rows.values()) - len(rows) + len(rows.keys() - crawl.urls), 0),
        "requests repeated": (stats.duplicates, CONCURRENCY * fetchers),
        "requests against robots.txt": (stats.private, 0),
        "states that are not the fold of their log": (int(not equal_states(crawl)), 0),
    }
    by_victim = Counter(one.victim for one in kills)
    told = table(
        ("killed", "times", "longest silence s"),
        [
            (victim, str(times), f"{max(one.silent_s for one in kills if one.victim == victim):.1f}")
            for victim, times in sorted(by_victim.items())
        ],
    )
    kept = table(
        ("promise", "at most", "seen"), [(name, f"{most:,}", f"{seen:,}") for name, (seen, most) in promises.items()]
    )
    rest = f"Shortest rest of a host: {rest_s:.3f} s, of {DELAY_S} s at least. Seed {options.seed}, {len(rows):,} rows."
    text = f"{told}\n\n{kept}\n\n{rest}"
    print(text)
    if not options.short:
        facts = {"command": f"python -m bench.kills --seed {options.seed}", **versions(("crawlog", "faust-streaming"))}
        section("kills", "Kill -9 at random instants", text, facts)
    return int(rest_s < DELAY_S or any(seen > most for seen, most in promises.values()))


if __name__ == "__main__":
    sys.exit(main())
