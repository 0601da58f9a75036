"""The floor: aiohttp, uvloop, selectolax and a set in one process; volatile, and no crawler anybody would use.

Robots.txt is asked for once a host and obeyed by prefix, tracking parameters are cut off, one JSON row a page: the least
that gives the same pages as a crawler. `python bare.py SEEDS OUT`
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import TextIO
from urllib.parse import urljoin, urlsplit

import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser

CONCURRENCY = 256


class Loop:
    """A crawl of the seeds' hosts, all in memory."""

    def __init__(self, session: aiohttp.ClientSession, seeds: list[str], out: TextIO) -> None:
        self.session = session
        self.out = out
        self.hosts = {urlsplit(seed).netloc for seed in seeds}
        self.disallowed: dict[str, tuple[str, ...]] = {}
        self.seen = set(seeds)
        self.todo: asyncio.Queue[str] = asyncio.Queue()
        for seed in seeds:
            self.todo.put_nowait(seed)

    async def robots(self, host: str) -> None:
        async with self.session.get(f"http://{host}/robots.txt") as response:
            lines = (await response.text()).splitlines() if response.status == 200 else []
        self.disallowed[host] = tuple(line[9:].strip() for line in lines if line.startswith("Disallow:") and line[9:].strip())

    async def work(self) -> None:
        while True:
            url = await self.todo.get()
            try:
                await self.page(url)
            except (aiohttp.ClientError, TimeoutError) as error:
                print(url, repr(error), file=sys.stderr)
            self.todo.task_done()

    async def page(self, url: str) -> None:
        async with self.session.get(url, allow_redirects=False) as response:
            body = await response.read()
            status = response.status
        tree = LexborHTMLParser(body)
        links = set()
        origin = url[: url.index("/", 8)]
        for node in tree.css("a[href]"):
            href = node.attrs["href"] or ""
            href = href.partition("#")[0]
            if "utm_" in href:
                href = href[: href.index("utm_") - 1]
            if href.startswith("http://"):
                links.add(href)
            elif href.startswith("/") and not href.startswith("//"):
                links.add(origin + href)
            elif href and not href.startswith(("mailto:", "javascript:")):
                links.add(urljoin(url, href))
        for link in links - self.seen:
            host, slash, path = link[7:].partition("/")
            if host in self.hosts and not (slash + path).startswith(self.disallowed[host]):
                self.seen.add(link)
                self.todo.put_nowait(link)
        title = tree.css_first("title")
        row = {"url": url, "status": status, "title": title.text() if title else None, "links": len(links)}
        self.out.write(json.dumps(row) + "\n")


async def crawl(seeds: list[str], out: TextIO) -> None:
    """Crawls until nothing is left to do."""
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True) as session:
        loop = Loop(session, seeds, out)
        await asyncio.gather(*(loop.robots(host) for host in loop.hosts))
        workers = [asyncio.create_task(loop.work()) for _ in range(CONCURRENCY)]
        await loop.todo.join()
        for worker in workers:
            worker.cancel()


def main() -> None:
    """Reads the seeds' file, writes the rows' file."""
    seeds = Path(sys.argv[1]).read_text().split()
    with Path(sys.argv[2]).open("w") as out:
        uvloop.run(crawl(seeds, out))


if __name__ == "__main__":
    main()
