"""CPU a page in the parse stage alone: no broker, no Faust; pages of the synthetic site, acknowledged at once.

    python -m bench.parse                      20 hosts x 300 pages, 5 rounds
    python -m bench.parse --short              20 hosts x 20 pages, 2 rounds

Each round has a new stage, so that its caches fill as in a crawl, and parses every page once. `bare` is selectolax with
a set of absolute URLs, the least that any parser does. Nothing is written to RESULTS.md: `speed` has the whole.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urljoin

import aiohttp
from selectolax.lexbor import LexborHTMLParser

from bench.site import WORK, Site
from crawlog.agents.parse.guard import Guard, guard_of
from crawlog.agents.parse.stage import ParseStage
from crawlog.schemas import pages
from crawlog.schemas.control import JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.machine import Run
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places

AT_ONCE = 64
TYPE = "text/html; charset=utf-8"
"""As the site says."""


class Message(NamedTuple):
    """A record of crawl.pages."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Sender:
    """Acknowledges records at the next `deliver`."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[int, int], None]] = []
        self.sent = 0

    def send(self, *_: object, on_delivery: Callable[[int, int], None] | None = None, **__: object) -> None:
        """As the producer."""
        self.sent += 1
        if on_delivery is not None:
            self.waiting.append(on_delivery)

    def deliver(self) -> None:
        """All that was sent is in the log."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one(0, 0)


async def fetched(urls: list[str]) -> list[tuple[str, bytes]]:
    """The site's pages."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(session: aiohttp.ClientSession, url: str) -> tuple[str, bytes]:
        async with gate, session.get(url) as answer:
            return url, await answer.read()

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(one(session, url) for url in urls))


def staged(bodies: list[tuple[str, bytes]], hosts: set[str], guard: Guard) -> float:
    """CPU seconds of a stage for these pages."""
    sender = Sender()
    names, places = Topics("crawl."), Places(8)
    stage = ParseStage(names, places, sender, sender, lambda *_: None, lambda: 0.0, guard)
    stage.learn(JobCopy("j", JobSpec(scope=ScopeSpec(names=tuple(sorted(hosts))))))
    messages = [
        Message(0, at, None, body, [(pages.HEADER, pages.encode(PageMeta(url, "j", http=200, content_type=TYPE)))])
        for at, (url, body) in enumerate(bodies)
    ]
    began = time.process_time()
    for at, message in enumerate(messages):
        stage.take(message)
        if at % AT_ONCE == 0:
            stage.flush()
            sender.deliver()
    stage.flush()
    sender.deliver()
    took = time.process_time() - began
    assert not stage.undone
    return took


def bare(bodies: list[tuple[str, bytes]]) -> float:
    """CPU seconds of selectolax, `urljoin` and a set."""
    known: set[str] = set()
    began = time.process_time()
    for url, body in bodies:
        page = LexborHTMLParser(body)
        page.css_first("title")
        known.update(urljoin(url, node.attributes.get("href") or "") for node in page.css("a[href]"))
    return time.process_time() - began


def main() -> int:
    """Prints microseconds a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    with Site(20, 20 if short else 300, flags={"bytes": 30_000, "links": 60}) as site:
        bodies = asyncio.run(fetched(sorted(site.urls())))
        hosts = {seed.split("/")[2].partition(":")[0] for seed in site.seeds}
    guard = guard_of(Settings(run=Run(data=WORK)), "bench")
    rounds = [(staged(bodies, hosts, guard), bare(bodies)) for _ in range(2 if short else 5)]
    for name, took in zip(("parse stage", "bare"), zip(*rounds, strict=True), strict=True):
        each = [one / len(bodies) * 1e6 for one in took]
        print(f"{name:12} {statistics.median(each):7.1f} µs a page ({min(each):.1f} to {max(each):.1f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
