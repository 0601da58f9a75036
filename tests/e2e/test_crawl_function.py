"""`crawlog.crawl` on the real engine, against a site on loopback, and from a plain script."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crawlog import Summary, crawl
from tests.support.processes import LIMIT_S, until
from tests.support.sites import Answer, Threaded

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAGES = 12

SCRIPT = """
import asyncio, sys
from crawlog import Spider, crawl

class Titles(Spider):
    settings = {"network.allow_private": True, "politeness.delay_s": 0.02}
    follow_links = True

    def __init__(self, of="nothing"):
        self.of = of

    def parse(self, response):
        yield {"title": response.css("title::text").get(), "of": self.of}

if __name__ == "__main__":
    summary = asyncio.run(crawl([sys.argv[1]], spider=Titles, output="rows.jsonl", arguments={"of": "x"}))
    print(summary.reason, summary.counts.fetched, summary.rows)
"""


class Site:
    """Pages in a row; from `holds_from` pages on it answers no more until it `goes_on`."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.holds_from = PAGES + 1
        self.goes_on = threading.Event()
        self.server = Threaded(self._answer)
        self.url = f"{self.server.origin}/1"

    def _answer(self, path: str) -> Answer:
        number = path.strip("/")
        if not number.isdigit() or int(number) > PAGES:
            return 404, "text/html", b""
        self.asked[path] += 1
        if len(self.asked) >= self.holds_from:
            self.goes_on.wait(LIMIT_S)
        link = f'<a href="/{int(number) + 1}">on</a>' if int(number) < PAGES else ""
        return 200, "text/html", f"<title>{number}</title>{link}".encode()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of its own."""
    made = Site()
    yield made
    made.goes_on.set()
    made.server.close()


def crawled(site: Site, folder: Path) -> "asyncio.Task[Summary]":
    """A crawl of all of the site that has begun."""
    settings = {"run.data": folder / "data", "network.allow_private": True, "politeness.delay_s": 0.02}
    return asyncio.ensure_future(crawl([site.url], settings=settings, output=folder / "rows.jsonl"))


@pytest.mark.long
async def test_a_cancelled_crawl_stops_cleanly_and_the_next_call_goes_on(site: Site, tmp_path: Path) -> None:
    """Nothing is left running; then all rows are there, and no page but one in flight was fetched twice."""
    site.holds_from = 5
    before = set(psutil.Process().children(recursive=True))  # the suite has processes of its own
    task = crawled(site, tmp_path)
    await asyncio.to_thread(until, lambda: len(site.asked) == site.holds_from, "the fifth page")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = set(psutil.Process().children(recursive=True)) - before
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    site.goes_on.set()
    summary = await crawled(site, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (summary.reason, summary.resumed, summary.rows) == ("finished", True, PAGES)
    assert summary.counts is not None
    assert summary.counts.fetched == PAGES
    assert sorted(row["title"] for row in rows) == sorted(map(str, range(1, PAGES + 1)))
    assert [path for path, count in site.asked.items() if count > 1] in ([], ["/5"])
    assert (await crawled(site, tmp_path)).reason == "already_finished"


def test_it_works_from_a_plain_script_with_a_spider_in_it(site: Site, tmp_path: Path) -> None:
    """The workers import the script's file; its last lines run in the script alone."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-P", "script.py", site.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, f"finished {PAGES} {PAGES}\n"), done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["of"] for row in rows] == ["x"] * PAGES
