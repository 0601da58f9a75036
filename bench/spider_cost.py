"""CPU a page of a user's spider in its process, worker and child together, against the same callback in a bare loop.

    python -m bench.spider_cost                4,000 pages of each kind, 5 rounds
    python -m bench.spider_cost --short        2,000 pages, 1 round

`bare` makes a parsel selector of each page, runs the callback and encodes the items: no process, no log, no requests.
`child` is the worker's socket and decoding, and the child's frames, Response, callback and requests. `stage` is all of
parse: `child` with the decisions about each page and its links, and records for the log. Nothing is written to
RESULTS.md by itself.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from parsel import Selector

from bench.parse import Message, Sender
from crawlog.agents.parse.guard import Guard
from crawlog.agents.parse.spider_pages import SpiderPages
from crawlog.agents.parse.stage import ParseStage
from crawlog.agents.sandbox import BackgroundChild, ChildRules, Died, SpiderFrame, result_of
from crawlog.agents.sandbox.zygote_process import cpu_s
from crawlog.schemas import pages
from crawlog.schemas.control import JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.log.topics import Topics
from crawlog.streams.spiders import PageCall, SpiderRef, Trust, ref_of
from crawlog.streams.url.place import Places

SPIDER = """
from crawlog import Spider

class Quotes(Spider):
    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.xpath("span/small/text()").get(),
                "tags": quote.css("div.tags a.tag::text").getall(),
            }
        for href in response.css("li.next a::attr(href)").getall():
            yield response.follow(href, self.parse)
"""
"""The spider of Scrapy's tutorial."""

QUOTE = (
    '<div class="quote" itemscope><span class="text" itemprop="text">Words number %d, as many as a quote has on the '
    'site that everybody learns with, give or take some.</span><span>by <small class="author">Author %d</small>'
    '<a href="/author/a-%d">(about)</a></span><div class="tags">Tags: <a class="tag" href="/tag/a">a</a>'
    '<a class="tag" href="/tag/b">b</a><a class="tag" href="/tag/c%d">c</a></div></div>\n'
)

KINDS = {"3 kB, 4 items": 4, "12 kB, 20 items": 20}
"""Quotes of a page; the rest is the frame around them."""

FRAME = (
    "<html><head><title>Page %d</title></head><body><p>"
    + "frame " * 150
    + '</p>\n%s<li class="next"><a href="/p%d">Next</a>'
)


def bodies_of(count: int, quotes: int) -> list[bytes]:
    """Pages, each with a link to the next one."""
    return [
        (FRAME % (n, "".join(QUOTE % (n + m, m, n, m) for m in range(quotes)), n + 1)).encode() for n in range(count)
    ]


def metas_of(count: int) -> list[PageMeta]:
    """Their metadata."""
    return [
        PageMeta(f"http://a.test/p{n}", "j", http=200, content_type="text/html; charset=utf-8") for n in range(count)
    ]


def quotes_in(selector: Selector) -> Iterator[dict[str, Any] | str]:
    """The spider's callback, without a spider."""
    for quote in selector.css("div.quote"):
        yield {
            "text": quote.css("span.text::text").get(),
            "author": quote.xpath("span/small/text()").get(),
            "tags": quote.css("div.tags a.tag::text").getall(),
        }
    yield from selector.css("li.next a::attr(href)").getall()


def bare(bodies: Iterable[bytes]) -> float:
    """CPU seconds of the bare loop."""
    encode = msgspec.json.Encoder().encode
    began_s = time.process_time()
    for body in bodies:
        for output in quotes_in(Selector(text=body.decode())):
            encode(output)
    return time.process_time() - began_s


class Run:
    """Pages through one child, with an event loop as a worker has it."""

    def __init__(self, ref: SpiderRef, count: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.child = BackgroundChild(ref, ChildRules(60.0), loop=self.loop)
        self.left = count
        self.done = asyncio.Event()

    def answered(self, answer: SpiderFrame | Died) -> None:
        """An answer came."""
        assert isinstance(answer, SpiderFrame), answer
        assert not result_of(answer).error
        self.count_down()

    def count_down(self) -> None:
        """One page is done."""
        self.left -= 1
        if not self.left:
            self.done.set()

    async def warm(self) -> None:
        """Load the spider, and what its first page needs: the public suffix list takes a quarter of a second."""
        heard = asyncio.Event()
        self.child.heard_facts = heard.set
        self.child.load()
        await heard.wait()
        assert self.child.loaded is not None, self.child.fault
        heard.clear()
        page = PageCall(PageMeta("http://a.test/", "j", http=200, content_type="text/html"), bodies_of(1, 1)[0])
        self.child.submit_page(page, lambda _: heard.set())
        await heard.wait()

    async def measured(self, give: Callable[[], None]) -> float:
        """CPU seconds of both processes."""
        began_s = time.process_time() + cpu_s(self.child.pid)
        give()
        await self.done.wait()
        took_s = time.process_time() + cpu_s(self.child.pid) - began_s
        self.child.close()
        return took_s


async def child(ref: SpiderRef, bodies: list[bytes]) -> float:
    """CPU seconds of calls to a child."""
    run = Run(ref, len(bodies))
    await run.warm()

    def give() -> None:
        for meta, body in zip(metas_of(len(bodies)), bodies, strict=True):
            run.child.submit_page(PageCall(meta, body), run.answered)

    return await run.measured(give)


async def staged(spec: JobSpec, bodies: list[bytes]) -> float:
    """CPU seconds of the parse stage."""
    run = Run(ref_of("j", 0, spec), len(bodies))
    await run.warm()
    log = Sender()
    stage = ParseStage(
        Topics("b."), Places(8), log, log, lambda *_: None, lambda: 7.0, Guard(trust=Trust((Path("/"),)))
    )
    stage.spiders = SpiderPages(lambda _: run.child, stage)
    stage.learn(JobCopy("j", spec))
    stage.domain("http://a.test/")
    messages = [
        Message(0, n, b"a.test", body, [(pages.HEADER, pages.encode(meta))])
        for n, (meta, body) in enumerate(zip(metas_of(len(bodies)), bodies, strict=True))
    ]
    waiting = iter(messages)

    def feed() -> None:
        assert stage.spiders is not None
        while stage.spiders.count < 200:
            message = next(waiting, None)
            if message is None:
                return
            stage.take(message)

    def gave() -> None:
        log.deliver()
        feed()
        run.count_down()

    stage.spiders.gave = gave
    return await run.measured(feed)


def _ran(way: Callable[[Any, list[bytes]], Coroutine[Any, Any, float]], of: object, bodies: list[bytes]) -> float:
    return uvloop.run(way(of, bodies))


def main() -> None:
    """Print CPU a page, and the multiple of the bare loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    count, rounds = (2000, 1) if short else (4000, 5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quotes.py"
        path.write_text(SPIDER)
        spec = JobSpec(spider=f"{path}:Quotes", scope=ScopeSpec(names=("a.test",)))
        for kind, quotes in KINDS.items():
            bodies = bodies_of(count, quotes)
            ways: dict[str, Callable[[], float]] = {
                "bare": partial(bare, bodies),
                "child": partial(_ran, child, ref_of("j", 0, spec), bodies),
                "stage": partial(_ran, staged, spec, bodies),
            }
            took: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, way in ways.items():
                    took[name].append(way() / count * 1e6)
            medians = {name: statistics.median(each) for name, each in took.items()}
            for name, median in medians.items():
                print(f"{kind:16}{name:8}{median:8.0f} µs a page{median / medians['bare']:8.2f}")


if __name__ == "__main__":
    main()
