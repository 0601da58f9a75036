"""One spider of Scrapy's, run by Scrapy and by crawlog: CPU a page of both, in one run, on one site.

    python -m bench.scrapy_spider              3 rounds, 20 hosts x 50 and x 1,000 pages of 3 kB
    python -m bench.scrapy_spider --short      1 round of 12 and 60 pages: does it work, no numbers to quote

Measured as `bench.speed` does: the start is apart, and a crawl counts only if its rows name exactly the site's pages.
"""

import argparse
import importlib.metadata
import sys
from pathlib import Path

from bench.peer import CRAWLOG, CRAWLOG_SETTINGS, Peer, install_crawlog
from bench.results import options_of, section
from bench.speed import details, play, score_table
from tests.support.synthetic_site import REPO

SPIDER = REPO / "bench" / "peers" / "projects" / "links.py"
FLAGS = {"bytes": 3000, "links": 12, "tracking": 0, "fragment": 0, "private": 0}
SIZES, SHORT_SIZES = (50, 1000), (12, 60)

LEAST = 2.0
"""Scrapy's CPU a page, in crawlog's, at least."""

UNBOUND = {
    "CONCURRENT_REQUESTS": 256,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": True,
    "LOG_LEVEL": "WARNING",
    "TELNETCONSOLE_ENABLED": False,
}


def peers() -> list[Peer]:
    """The spider by crawlog and by Scrapy, with as many requests at a time."""
    scrapy = [sys.executable, "-m", "scrapy", "runspider", str(SPIDER), "-a", "seeds=seeds.txt", "-O", "rows.jsonl"]
    scrapy += [word for name, value in UNBOUND.items() for word in ("-s", f"{name}={value}")]
    ours = [str(CRAWLOG), "run", "--spider", str(SPIDER), "-a", "seeds=" + "seeds.txt", "-o", "rows.jsonl"]
    ours += ["--data", "data", "--workers", "fetch=1,parse=1"]
    ours += [word for setting in CRAWLOG_SETTINGS for word in ("-s", setting)]

    def shown(command: list[str]) -> str:
        return " ".join([Path(command[0]).name, *command[1:]]).replace(str(SPIDER), SPIDER.name)

    version = importlib.metadata.version
    return [
        Peer("crawlog", "crawlog", "log", ours, shown(ours), install_crawlog, lambda: version("crawlog")),
        Peer("scrapy", "Scrapy", "memory", scrapy, shown(scrapy), lambda: None, lambda: version("scrapy")),
    ]


def main() -> int:
    """Runs both; 1 when a crawl did not count, or, at full size, the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small crawls, 1 round; nothing is written")
    parser.add_argument("--rounds", type=int)
    args = options_of(parser)
    both = peers()
    for peer in both:
        peer.install()
    scores = play(both, SHORT_SIZES if args.short else SIZES, args.rounds or (1 if args.short else 3), flags=FLAGS)
    ours, theirs = scores["crawlog"], scores["scrapy"]
    times = theirs.ms / ours.ms
    is_reached = times >= LEAST
    goal = f"Scrapy's CPU a page, in crawlog's: {times:.2f} (goal ≥ {LEAST}: {'reached' if is_reached else 'MISSED'})"
    text = "\n\n".join([score_table(scores), goal, details(scores)])
    print(text)
    faults = bool(ours.faults or theirs.faults)
    if args.write and not faults:
        facts = {peer.title: f"{peer.version()}, `{peer.shown}`" for peer in both}
        section("scrapy_spider", "A spider of Scrapy's, by Scrapy and by crawlog", text, facts)
    return int(faults or not (is_reached or args.short))


if __name__ == "__main__":
    sys.exit(main())
