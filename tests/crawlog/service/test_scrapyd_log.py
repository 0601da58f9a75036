"""The end of a job's log, as the service shows it: its stats are read once."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.jobs import job_closing
from crawlog.schemas.control import Command, Finished, JobCopy, key
from crawlog.schemas.urls import JobSpec
from crawlog.service.routing import FLEET, SETTINGS, WORK, Work
from crawlog.service.scrapyd_fleet import ScrapydFleet
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import FleetState

COPY = JobCopy("j", JobSpec(rev=3, state="finished", at=1.0), epoch=1)
END = Finished("j", 5.0, epoch=1, rev=3)


class Reads:
    """Reads of crawl.items, each of which waits."""

    def __init__(self) -> None:
        self.count = 0
        self.error: EngineError | None = None
        self.may_end = threading.Event()

    def read(self, *_: Any) -> dict[str, float]:
        """One read."""
        self.count += 1
        self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return {"item_scraped_count": 7.0}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """In place of the log's."""
    found = Reads()
    monkeypatch.setattr(job_closing, "page_stats", found.read)
    return found


@pytest.fixture
def fleet() -> Iterator[ScrapydFleet]:
    """Of one job that has ended."""
    work = Work(4, "test")
    state = FleetState()
    for record in (COPY, END):
        state.hear(key(record), record)
    app: Any = {SETTINGS: None, FLEET: SimpleNamespace(look=lambda ask: ask(state)), WORK: work}
    yield ScrapydFleet(app)
    work.close()


def texts(lines: list[Any]) -> str:
    """The lines as one text."""
    return "\n".join(line.text for line in lines)


async def test_the_stats_of_a_job_are_read_once_whoever_asks(fleet: ScrapydFleet, reads: Reads) -> None:
    """Tools ask for the logs of all jobs, again and again."""
    asked = [asyncio.create_task(fleet._closing("j")) for _ in range(5)]
    await asyncio.sleep(0.05)
    asked[0].cancel()
    reads.may_end.set()
    for one in asked[1:]:
        assert "'item_scraped_count': 7," in texts(await one)
    assert "'item_scraped_count': 7," in texts(await fleet._closing("j"))
    assert (reads.count, await fleet._closing("k")) == (1, [])


async def test_a_log_whose_stats_cannot_be_read_says_so_and_is_read_again(fleet: ScrapydFleet, reads: Reads) -> None:
    """Its other lines are there all the same."""
    reads.may_end.set()
    reads.error = EngineError("the broker is away")
    assert texts(await fleet._closing("j")) == (
        "Scrapy's stats are not known: the broker is away\nSpider closed (finished)"
    )
    reads.error = None
    assert "'item_scraped_count': 7," in texts(await fleet._closing("j"))
    assert reads.count == 2


async def test_the_stats_of_a_job_whose_end_is_not_noted_are_read_again(fleet: ScrapydFleet, reads: Reads) -> None:
    """A command stopped it, so its record stays as it is, and pages are parsed behind the first read."""
    reads.may_end.set()
    state = fleet._app[FLEET].look(lambda state: state)
    for record in (JobCopy("k", JobSpec(rev=3, at=1.0)), Command("stop", job="k", at=2.0)):
        state.hear(key(record), record)
    for count in (1, 2):
        assert "'item_scraped_count': 7," in texts(await fleet._closing("k"))
        await asyncio.sleep(0)
        assert reads.count == count
