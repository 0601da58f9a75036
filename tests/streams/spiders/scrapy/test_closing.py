"""A spider of Scrapy that is closed by itself: when it is opened, or by a setting of Scrapy's."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider

from crawlog.streams.spiders import CallResult, SpiderRef, load_runner, read_made
from crawlog.streams.spiders.pipelines import PipelinesService
from crawlog.streams.spiders.scrapy import scrapy_runner
from crawlog.streams.spiders.scrapy.crawler import reason_of
from tests.support.adapting import SITE, asking, given_by, page_of, runner_of, started


class Refused(Spider):
    """Has a handler that closes it when it is opened."""

    name = "refused"

    async def start(self) -> Any:
        """One request."""
        yield Request(f"{SITE}/a")

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        """As Scrapy's."""
        made = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(made.opened, signals.spider_opened)
        return made

    def opened(self) -> None:
        """Closes it."""
        raise CloseSpider("no licence")

    def parse(self, response: Any) -> Any:
        """An item."""
        yield {"url": response.url}


def test_a_handler_of_spider_opened_closes_the_job_before_the_first_request() -> None:
    """As Scrapy's engine does. A page that was fetched all the same is not lost."""
    [result] = started(runner_of(Refused))
    assert (result.closes, result.requests, result.error) == ("no licence", [], "")
    result = given_by(runner_of(Refused), page_of(asking("parse"), "<p>"))
    assert (result.closes, len(result.items)) == ("no licence", 1)


@pytest.mark.parametrize(
    ("reason", "closes"),
    [
        ("no licence", "no licence"),
        (403, "403"),
        (ValueError("no licence"), "no licence"),
        (type("Text", (str,), {})("no licence"), "no licence"),
        ("bad \ud800", "bad ?"),
        (ValueError(), "cancelled"),
        (None, "cancelled"),
        ("", "cancelled"),
    ],
)
def test_any_object_may_be_the_reason_of_a_close(reason: Any, closes: str) -> None:
    """As in Scrapy. The log and the sockets of the processes have text."""
    result = CallResult(closes=reason_of(CloseSpider(reason)))
    assert msgspec.json.decode(msgspec.json.encode(result), type=CallResult).closes == closes


def of_start(settings: dict[str, Any]) -> list[str]:
    """The reasons of the parts that a slow `start` gives: each an item, the last one a request; it would go on."""

    async def start(self: Any) -> Any:  # a method
        for number in range(4):
            yield {"number": number}
            await asyncio.sleep(0.01)
        yield Request(f"{SITE}/a")

    kind = type("Given", (Spider,), {"name": "given", "start": start, "__module__": __name__})
    return [result.closes for result in started(runner_of(kind, settings))]


def test_items_of_start_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless `start` ends by them, with the part that reaches the limit."""
    monkeypatch.setattr(scrapy_runner, "BATCH", 1)
    assert of_start({"CLOSESPIDER_ITEMCOUNT": 2}) == ["", "closespider_itemcount"]
    assert of_start({"CLOSESPIDER_TIMEOUT": 0.0001}) == ["closespider_timeout"]


def test_start_without_items_closes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process sees no page: those give items elsewhere."""
    monkeypatch.setattr(scrapy_runner, "BATCH", 1)
    assert of_start({"CLOSESPIDER_TIMEOUT_NO_ITEM": 0.0001, "CLOSESPIDER_PAGECOUNT_NO_ITEM": 1}) == [""] * 5


def test_a_start_that_waits_is_ended_by_its_time() -> None:
    """It may wait for a message of another program, for ever."""

    async def start(_spider: Any) -> Any:
        await asyncio.Event().wait()
        yield Request(f"{SITE}/a")

    kind = type("Waiting", (Spider,), {"name": "waiting", "start": start, "__module__": __name__})
    parts = started(runner_of(kind, {"CLOSESPIDER_TIMEOUT": 0.01}))
    assert (parts[-1].closes, [part.requests for part in parts if part.requests]) == ("closespider_timeout", [])


OPENING = """
import scrapy
from scrapy import signals
from scrapy.exceptions import CloseSpider

SAID = []

class Opening:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        crawler.signals.connect(made.opened, signals.spider_opened)
        return made

    def opened(self):
        SAID.append("opened")

    async def open_spider(self):
        raise CloseSpider("no database")

    def process_item(self, item):
        return item

class Own(scrapy.Spider):
    name = "own"
    custom_settings = {"ITEM_PIPELINES": {Opening: 1}}
"""


async def test_a_pipeline_that_closes_the_spider_when_it_is_opened_stops_the_job(tmp_path: Path) -> None:
    """All is opened all the same, as in Scrapy, and items pass: what cannot work there is a dead letter."""
    file = tmp_path / "own.py"
    file.write_text(OPENING)
    runner: Any = load_runner(SpiderRef(str(file)))
    service = PipelinesService(runner)
    answer = read_made(await service.call("open", b""), 0)
    assert (answer.closes, sys.modules[type(runner.spider).__module__].SAID) == ("no database", ["opened"])
    answer = read_made(await service.call("rows", b'={"n":1}'), 1)
    assert ([bytes(one.row) for one in answer.items], answer.closes) == ([b'{"n": 1}'], "")
