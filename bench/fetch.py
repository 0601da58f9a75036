"""CPU of one request, step by step: no broker, no Faust; pages of the synthetic site, or real ones sent with gzip.

    python -m bench.fetch                      20 hosts x 300 pages, 5 rounds
    python -m bench.fetch --real               real pages
    python -m bench.fetch --short              20 hosts x 20 pages, 2 rounds

Each step has all of the one before it. `aiohttp` is a session as its documentation shows it. `connections` is the
session of a worker: the egress guard, the lease before each write, limits of heads and of silence. `client` is
`Client.get`: the job's rules, a deadline, type and limits of the body, the headers that matter. `service` is a fetch
worker without Kafka: frontier, fold and state, turns at addresses, page and done as records, which are acknowledged in
the next turn of the loop. Three requests to each host at a time; the loop is uvloop, as in a worker. Nothing is written
to RESULTS.md: `speed` and `real` have the whole.
"""

import argparse
import asyncio
import shutil
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
import uvloop

from crawlog.agents.client import Client, HttpRequest
from crawlog.agents.client.client import _timeout, sent_as
from crawlog.agents.fetch.fetch_agent import Fetcher
from crawlog.schemas import urls
from crawlog.schemas.urls import FoundUrl, JobSpec, ScopeSpec, UrlsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.kernel import collect_seldom
from crawlog.streams.settings.machine import Run
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import NO_FILE, load
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.url.place import Places
from tests.support.corpora import FOLDER
from tests.support.fetching import URLS, Record, alone, own
from tests.support.synthetic_site import WORK, Site

AT_ONCE = 3
"""Requests to a host at a time."""

AGENT = "bench"
FOUNDS = 60
"""URLs in one found record, as many as a page has links."""

Get = Callable[[str], Awaitable[None]]


async def asked(pages: list[str], get: Get) -> float:
    """CPU seconds for all pages, each host's by a few takers; some go before, to make the connections."""
    hosts: dict[str, list[str]] = {}
    for url in pages:
        hosts.setdefault(url.split("/")[2], []).append(url)

    async def taken(some: list[str]) -> None:
        left = iter(some)

        async def taker() -> None:
            for url in left:
                await get(url)

        await asyncio.gather(*(taker() for _ in range(AT_ONCE)))

    await asyncio.gather(*(taken(each[:AT_ONCE]) for each in hosts.values()))
    began = time.process_time()
    await asyncio.gather(*(taken(each) for each in hosts.values()))
    return time.process_time() - began


async def by_aiohttp(pages: list[str], _settings: Settings) -> float:
    """A session with no limit of connections, no cookies, and bodies as they come: as a worker has it."""
    connector = aiohttp.TCPConnector(limit=0)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, auto_decompress=False) as session:

        async def get(url: str) -> None:
            async with session.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
                await answer.read()

        return await asked(pages, get)


async def by_connections(pages: list[str], settings: Settings) -> float:
    """A worker's session."""
    client = Client(settings, AGENT, lambda: True)
    rules = client._own.rules  # noqa: SLF001  # a step that nothing else takes by itself
    timeout, context = (
        _timeout(rules.connect_timeout_s, rules.first_byte_timeout_s),
        client._context(rules),  # noqa: SLF001  # as above
    )
    headers = client._sent(rules)  # noqa: SLF001  # as above

    async def get(url: str) -> None:
        session = client._session  # noqa: SLF001  # as above
        async with session.request(
            "GET", sent_as(url), headers=headers, allow_redirects=False, timeout=timeout, ssl=context
        ) as answer:
            await answer.read()

    try:
        return await asked(pages, get)
    finally:
        await client.close()


async def by_client(pages: list[str], settings: Settings) -> float:
    """A worker's client."""
    client = Client(settings, AGENT, lambda: True)

    async def get(url: str) -> None:
        answer = await client.get(HttpRequest(url, job="j", as_came=True))
        assert answer.http == 200, answer.error
        assert answer.kept

    try:
        return await asked(pages, get)
    finally:
        await client.close()


async def by_service(pages: list[str], settings: Settings) -> float:
    """A fetch worker with one partition; its founds are folded before."""
    folder = settings.run.data / "fetch"
    shutil.rmtree(folder, ignore_errors=True)
    stage, log = alone(settings, pytest.MonkeyPatch())
    log.records = deque(maxlen=0)  # all pages would fill the memory
    fetcher = Fetcher(stage)
    memory = StateMemory(settings.state.memory_mb)
    partition = Partition(folder, 0, Places(1), LogIdentity("bench", "bench"), memory, settings.state.cached_pages)
    await own(stage, partition)
    folded = asyncio.Event()

    def fold(offset: int, record: Record) -> None:
        stage.take(0, offset, record.key, record.value, time.time())
        stage.wake()
        if partition.fold.jobs["j"].counts.fetched == len(pages):
            folded.set()

    record = UrlsRecord(job="j", at=1.0, spec=JobSpec(scope=ScopeSpec(kind="any")))
    fold(0, Record(URLS, None, urls.encode(record), []))
    for at in range(0, len(pages), FOUNDS):
        found = [FoundUrl(url) for url in pages[at : at + FOUNDS]]
        record = UrlsRecord(job="j", at=1.0, urls=found)
        fold(partition.offset, Record(URLS, None, urls.encode(record), []))
    partition.checkpoint()
    log.ends[URLS] = partition.offset
    log.fold = fold
    began = time.process_time()
    dispatching = asyncio.create_task(fetcher.run())
    await folded.wait()
    took_s = time.process_time() - began
    dispatching.cancel()
    await asyncio.wait([dispatching])
    stage._close()  # noqa: SLF001  # what a stop does
    return took_s


STEPS = {"aiohttp": by_aiohttp, "connections": by_connections, "client": by_client, "service": by_service}


def main() -> int:
    """Prints microseconds a request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--step", choices=STEPS, help="this one alone, for a profile")
    args = parser.parse_args()
    collect_seldom()
    told = {
        "network.allow_private": True,
        "politeness.delay_s": 0.0,
        "politeness.per_host": AT_ONCE,
        "robots.obey": False,
        "fetch.concurrency": 256,
    }
    settings = load(told, NO_FILE, {}).model_copy(update={"run": Run(data=WORK)})
    flags: dict[str, object] = {"real": FOLDER / "pages"} if args.real else {"bytes": 30_000, "links": 60}
    took: dict[str, list[float]] = {}
    with Site(20, 20 if args.short else 300, flags=flags) as site:
        pages = sorted(site.urls())
        for _ in range(2 if args.short else 5):
            for name, step in STEPS.items():
                if args.step in (None, name):
                    took.setdefault(name, []).append(1e6 * uvloop.run(step(pages, settings)) / len(pages))
    before = 0.0
    for name, each in took.items():
        median = statistics.median(each)
        print(f"{name:12} {median:6.1f} µs a request ({min(each):.1f} to {max(each):.1f})  +{median - before:.1f}")
        before = median
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
