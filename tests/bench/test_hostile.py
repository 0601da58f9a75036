"""Every behaviour of `bench.hostile_site` gets the outcome that it must, and none blocks the client."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import hostile, hostile_site
from crawlog.agents.client.connections import GuardedResolver
from tests.support.cluster import needs_site

ADVISORIES = {
    "GHSA-7j7m-v7m3-jqm7": ("a gzip bomb",),
    "GHSA-2qfp-q593-8484": ("a br bomb", "a deflate bomb"),
    "GHSA-6mq8-rvhq-8wgg": ("a zstd bomb", "a gzip bomb in gzip", "robots.txt as a bomb"),
    "GHSA-h4cc-hm5h-fmm9": ("a megabyte of empty gzip members", "a megabyte of empty zstd frames", "many gzip members"),
    "GHSA-g84x-mcqj-x9qq": ("chunks of one byte",),
    "GHSA-w2fm-2cpv-w7v5": ("endless trailers",),
    "GHSA-h7wm-ph43-c39p": ("an endless body", "an endless chunked body", "a body of 10 GB"),
    "GHSA-23j4-mw76-5v7h": ("a redirect to file:", "a redirect to data:", "a redirect to ftp:", "a redirect to s3:"),
    "GHSA-cwxj-rr6w-m6w7": ("the header names a module",),
    "CVE-2026-34520": ("a NUL in a header", "a control byte in a header"),
}
"""Advisories of Scrapy and aiohttp, and the behaviours that try them; credentials are in test_outbound.py."""

LAG_MS = 1000.0
"""Four at once on a busy machine; 130 ms on a quiet one. Without its limit any of them takes several seconds."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The hostile site."""
    with hostile.serving(tmp_path_factory.mktemp("hostile") / "certificates") as port:
        yield port


def test_behaviours_are_many_and_have_names_of_their_own() -> None:
    """And an advisory names behaviours that are there."""
    names = {behaviour.name for behaviour in hostile_site.BEHAVIOURS}
    assert len(names) == len(hostile_site.BEHAVIOURS) >= 60
    assert {name for tried in ADVISORIES.values() for name in tried} <= names


@pytest.mark.parametrize("advisory", ADVISORIES)
async def test_no_advisory_blocks_the_loop(advisory: str, port: int) -> None:
    """What becomes of each is the crawl's test, below."""
    lag = await hostile.lags(port, ADVISORIES[advisory])
    assert lag.keys() == set(ADVISORIES[advisory])
    assert max(lag.values()) < LAG_MS


async def test_the_dns_cache_is_bounded() -> None:
    """GHSA-hcc4-c3v8-rx92: ten thousand names later, the newest thousand are known."""
    resolver = GuardedResolver(allow_private=False, cached=1000, ttl_s=60.0)
    await resolver.close()

    class Answers:
        async def resolve(self, host: str, *_: Any) -> list[dict[str, Any]]:
            return [{"hostname": host, "host": "93.184.216.34", "port": 0, "family": 2, "proto": 0, "flags": 0}]

    resolver._resolver = Answers()  # type: ignore[assignment]  # as much of a resolver as is asked
    for first in range(0, 10_000, 1000):
        await asyncio.gather(*(resolver.resolve(f"h{number}.example") for number in range(first, first + 1000)))
    assert len(resolver._known) == 1000
    assert ("h9999.example", 2) in resolver._known
    assert not resolver._asking


@pytest.mark.broker
@pytest.mark.slow
@needs_site
@pytest.mark.long
def test_a_crawl_of_all_of_them_beside_good_hosts(port: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each outcome as named, no worker dies, no good page is lost, nothing else is asked for."""
    certificates = next(request.getfixturevalue("tmp_path_factory").getbasetemp().glob("hostile*/certificates"))
    crawled = hostile.crawl(tmp_path / "crawl", hostile.SHORT, port, certificates)
    late = tuple(name for name, found in crawled.wrong.items() if all("timeout" in outcome for outcome in found))
    if late:  # other tests had the processor when the clock ran out: once more, these alone
        again = hostile.crawl(tmp_path / "again", replace(hostile.SHORT, only=late, good=(1, 1)), port, certificates)
        assert again.problems == []
    crawled.wrong = {name: found for name, found in crawled.wrong.items() if name not in late}
    assert crawled.problems == []
    assert {stage: crawled.rss_mb(stage) for stage in ("fetch", "parse", "sink") if crawled.rss_mb(stage) > 400} == {}
