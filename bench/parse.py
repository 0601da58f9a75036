"""CPU a page in the parse stage alone: no broker, no Faust; pages of the synthetic site, acknowledged at once.

    python -m bench.parse                      20 hosts x 300 pages, 5 rounds
    python -m bench.parse --short              20 hosts x 20 pages, 2 rounds
    python -m bench.parse --real               154 real pages on 20 hosts, 15 rounds, and each step's share

Each round has a new stage, so that its caches fill as in a crawl, and parses every page once. `bare` is selectolax with
a set of absolute URLs, the least that any parser does; on real pages a set of hrefs as the pages have them. A page
whose trial is due is parsed at once, and counted. Memory is managed as in a worker. Nothing is written to RESULTS.md:
`speed` and `real` have the whole.
"""

import argparse
import asyncio
import gzip
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urljoin

import aiohttp
from selectolax.lexbor import LexborHTMLParser

from crawlog.agents.parse.guard import Guard, guard_of
from crawlog.agents.parse.stage import ParseStage
from crawlog.schemas import pages
from crawlog.schemas.control import JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import DEFAULT_SPEC, JobSpec, ScopeSpec
from crawlog.streams.html import Links, charset, extracted, is_simple
from crawlog.streams.html.tree import flattened, thinned
from crawlog.streams.kernel import collect_seldom
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.machine import Run
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places
from crawlog.streams.url.scope import Scope
from crawlog.streams.worker.own_process import give_back_large_blocks
from tests.support.corpora import FOLDER, MISSING
from tests.support.synthetic_site import WORK, Site

AT_ONCE = 64
TYPE = "text/html; charset=utf-8"
"""As the site says."""

REAL_BYTES = range(2_000, 400_001)
REAL_HOSTS = 20
REAL_ROUNDS = 15

Pages = list[tuple[str, bytes]]
"""URLs and bodies."""


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


async def fetched(urls: list[str]) -> Pages:
    """The site's pages."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(session: aiohttp.ClientSession, url: str) -> tuple[str, bytes]:
        async with gate, session.get(url) as answer:
            return url, await answer.read()

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(one(session, url) for url in urls))


def real_pages() -> Pages:
    """Pages of the open web, as if a few hosts had sent them: most of their links lead out of the scope.

    Raises: SystemExit: they are not there.
    """
    files = sorted((FOLDER / "pages").rglob("*.html.gz"))
    bodies = [body for file in files if len(body := gzip.decompress(file.read_bytes())) in REAL_BYTES]
    if not bodies:
        raise SystemExit(MISSING)
    return [(f"http://h{at % REAL_HOSTS}.test/dir/{at}.html", body) for at, body in enumerate(bodies)]


class Staged(NamedTuple):
    """The cost of a stage for some pages: CPU seconds, and pages whose trial was due."""

    cpu_s: float
    trials: int


def staged(bodies: Pages, hosts: set[str], guard: Guard) -> Staged:
    """What a stage takes for these pages."""
    sender = Sender()
    names, places = Topics("crawl."), Places(8)
    stage = ParseStage(names, places, sender, sender, lambda *_: None, lambda: 0.0, guard)
    stage.learn(JobCopy("j", JobSpec(scope=ScopeSpec(names=tuple(sorted(hosts))))))
    messages = [
        Message(0, at, None, body, [(pages.HEADER, pages.encode(PageMeta(url, "j", http=200, content_type=TYPE)))])
        for at, (url, body) in enumerate(bodies)
    ]
    trials = 0
    began = time.process_time()
    for at, message in enumerate(messages):
        stage.take(message)
        if stage.untried:
            trials += 1
            stage.tried(message.value or b"", "")
        if at % AT_ONCE == 0:
            stage.flush()
            sender.deliver()
    stage.flush()
    sender.deliver()
    took = time.process_time() - began
    assert not stage.undone
    return Staged(took, trials)


def bare(bodies: Pages) -> float:
    """CPU seconds of selectolax, `urljoin` and a set."""
    known: set[str] = set()
    began = time.process_time()
    for url, body in bodies:
        page = LexborHTMLParser(body)
        page.css_first("title")
        known.update(urljoin(url, node.attributes.get("href") or "") for node in page.css("a[href]"))
    return time.process_time() - began


def bare_real(bodies: Pages) -> float:
    """CPU seconds of selectolax and a set."""
    known: set[str] = set()
    began = time.process_time()
    for _, body in bodies:
        page = LexborHTMLParser(body)
        page.css_first("title")
        known.update(node.attributes.get("href") or "" for node in page.css("a[href]"))
    return time.process_time() - began


def steps(bodies: Pages, hosts: set[str]) -> dict[str, float]:
    """CPU seconds of each step alone, in the order of a page's way."""

    def timed(step: Callable[[str, bytes], object]) -> float:
        began = time.process_time()
        for url, body in bodies:
            step(url, body)
        return time.process_time() - began

    scope = Scope(JobSpec(scope=ScopeSpec(names=tuple(hosts))))
    links = Links(
        Canonicaliser(DEFAULT_SPEC.canonical), Places(8), is_foreign=lambda origin: scope.is_foreign(origin, ())
    )
    facts = {url: extracted(body, TYPE, url, DEFAULT_SPEC.links) for url, body in bodies}
    return {
        "look for costly markup": timed(lambda _, body: (is_simple(body), flattened(thinned(body)))),
        "encoding": timed(lambda _, body: charset.decide(body, TYPE)),
        "tree": timed(lambda _, body: LexborHTMLParser(body)),
        "extract, with all of these": timed(lambda url, body: extracted(body, TYPE, url, DEFAULT_SPEC.links)),
        "resolve": timed(lambda url, _: links.split(facts[url].base, facts[url].hrefs)),
        "digest": timed(lambda _, body: hashlib.sha256(body).hexdigest()),
    }


def told(name: str, took: Sequence[float], count: int, of: Sequence[float] = ()) -> None:
    """Print the median of microseconds a page, and of the shares of another's in the same rounds."""
    each = [one / count * 1e6 for one in took]
    share = statistics.median(one / other for one, other in zip(took, of, strict=True)) if of else None
    print(
        f"{name:27} {statistics.median(each):7.1f} µs a page ({min(each):.1f} to {max(each):.1f})"
        + (f"  {share:5.3f}" if share is not None else "")
    )


def real(guard: Guard) -> None:
    """Print what real pages cost, as a multiple of the bare parser, and each step as a share of the stage."""
    bodies = real_pages()
    count = len(bodies)
    hosts = {url.split("/")[2] for url, _ in bodies}
    rounds = [(bare_real(bodies), staged(bodies, hosts, guard), steps(bodies, hosts)) for _ in range(REAL_ROUNDS)]
    floor = [one for one, _, _ in rounds]
    stage = [one.cpu_s for _, one, _ in rounds]
    told("bare", floor, count)
    told("parse stage, of bare", stage, count, floor)
    for name in rounds[0][2]:
        told(f"  {name}", [one[name] for _, _, one in rounds], count, stage)
    trials = rounds[0][1].trials
    print(f"{trials} of {count} pages to a trial: {trials / count:.1%}")


def main() -> int:
    """Prints microseconds a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--real", action="store_true")
    args = parser.parse_args()
    guard = guard_of(Settings(run=Run(data=WORK)), "bench")
    collect_seldom()
    give_back_large_blocks()
    if args.real:
        real(guard)
        return 0
    with Site(20, 20 if args.short else 300, flags={"bytes": 30_000, "links": 60}) as site:
        bodies = asyncio.run(fetched(sorted(site.urls())))
        hosts = {seed.split("/")[2].partition(":")[0] for seed in site.seeds}
    rounds = [(staged(bodies, hosts, guard).cpu_s, bare(bodies)) for _ in range(2 if args.short else 5)]
    for name, took in zip(("parse stage", "bare"), zip(*rounds, strict=True), strict=True):
        told(name, took, len(bodies))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
