"""Scrapy's item pipelines without its engine: signals, order, stats, and what becomes of each kind of item."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.streams.spiders import SpiderRef, load_runner, read_made
from crawlog.streams.spiders.pipelines import PipelinesService

SPIDER = """
from dataclasses import dataclass
import attr
import scrapy
from scrapy import signals
from scrapy.exceptions import DropItem

SAID = []


class Thing(scrapy.Item):
    n = scrapy.Field(serializer=lambda n: n * 100)
    by = scrapy.Field()


@dataclass
class Data:
    n: int
    by: str = ""


@attr.s(auto_attribs=True)
class Attrs:
    n: int
    by: str = ""


class First:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.crawler = crawler
        made.word = crawler.settings["WORD"]
        crawler.signals.connect(made.heard_drop, signals.item_dropped)
        crawler.signals.connect(made.heard_error, signals.item_error)
        crawler.signals.connect(made.heard_item, signals.item_scraped)
        crawler.signals.connect(made.heard_close, signals.spider_closed)
        crawler.signals.connect(made.heard_open, signals.spider_opened)
        return made

    def heard_drop(self, item, exception, spider):
        SAID.append(f"dropped {item['n']}: {exception}")

    def heard_error(self, item, failure):
        SAID.append(f"error {item['n']}: {failure.value!r}")

    def heard_item(self, item):
        SAID.append(f"scraped {type(item).__name__}")

    def heard_open(self, spider):
        SAID.append(f"opened {spider.name}")

    def heard_close(self, reason):
        SAID.append(f"closed {reason}")

    def open_spider(self, spider):
        SAID.append("first opens")

    def process_item(self, item, spider):
        from itemadapter import ItemAdapter
        ItemAdapter(item)["by"] = self.word
        return item

    def close_spider(self, spider):
        SAID.append("first closes")


class Second:
    async def process_item(self, item, spider):
        from itemadapter import ItemAdapter
        if ItemAdapter(item)["n"] == 2:
            raise DropItem("two")
        if ItemAdapter(item)["n"] == 3:
            raise ValueError("three")
        if ItemAdapter(item)["n"] == 7:
            return None
        if ItemAdapter(item)["n"] == 8:
            item["_id"] = object()
        return item

    def close_spider(self, spider):
        SAID.append("second closes")


class Things(scrapy.Spider):
    name = "things"
    custom_settings = {"ITEM_PIPELINES": {Second: 900, First: 100}, "WORD": "me"}

    def parse(self, response):
        yield Thing(n=1)

    def closed(self, reason):
        SAID.append(f"spider closed {reason}")
"""


@pytest.fixture
def runner(tmp_path: Path) -> Any:
    """The spider, loaded."""
    file = tmp_path / "things.py"
    file.write_text(SPIDER)
    return load_runner(SpiderRef(str(file)))


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_a_spider_that_looks_for_file_when_it_is_closed_is_told_that_it_comes_later(
    runner: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapy logs the error of its `closed`; the log names the way."""

    def closed(_: object, reason: str) -> None:
        raise FileNotFoundError(reason)

    monkeypatch.setattr(type(runner.spider), "closed", closed)
    service = PipelinesService(runner)
    await service.call("open", b"")
    await service.call("close", b"finished")
    assert "FILE of `-o` is made after them" in caplog.text


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_pipelines_signals_and_rows_are_those_of_scrapy(runner: Any) -> None:
    """All kinds of items; DropItem and errors; the order of opening and closing."""
    module = sys.modules[type(runner.spider).__module__]
    values = runner.kinds.values
    given = [{"n": 1}, module.Thing(n=2), {"n": 3}, module.Thing(n=4), module.Data(5), module.Attrs(6)]
    lines = [b"~" + msgspec.json.encode({"$item": values.packed(item, "an item")}) for item in given]
    service = PipelinesService(runner)
    await service.call("open", b"")
    made = read_made(await service.call("rows", b"\n".join(lines)), len(lines))
    await service.call("close", b"finished")
    assert [msgspec.json.decode(item.row) for item in made.items] == [
        {"n": 1, "by": "me"},
        None,
        None,
        {"n": 400, "by": "me"},
        {"n": 5, "by": "me"},
        {"n": 6, "by": "me"},
    ]
    assert [item.error for item in made.items if item.error] == ["ValueError: three"]
    assert made.stats["item_scraped_count"] == 4
    assert made.stats["item_dropped_reasons_count/DropItem"] == 1
    said = module.SAID
    assert said[:2] == ["first opens", "opened things"]
    assert sorted(said[2:8]) == [
        "dropped 2: two",
        "error 3: ValueError('three')",
        "scraped Attrs",
        "scraped Data",
        "scraped Thing",
        "scraped dict",
    ]
    assert sorted(said[8:10]) == ["first closes", "second closes"]
    assert sorted(said[10:]) == ["closed finished", "spider closed finished"]


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_dropped_items_and_errors_have_a_line_in_the_log(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Made by LOG_FORMATTER, at the level that the settings or the exception name."""
    pack = runner.kinds.values.packed
    lines = [b"~" + msgspec.json.encode({"$item": pack({"n": n}, "an item")}) for n in (1, 2, 3)]
    service = PipelinesService(runner)
    await service.call("open", b"")
    await service.call("rows", b"\n".join(lines))
    said = {record.levelname: record for record in caplog.records if record.name.endswith("scrapy.arrived")}
    assert said.keys() == {"WARNING", "ERROR"}
    assert said["WARNING"].getMessage().startswith("Dropped: two")
    assert said["ERROR"].getMessage().startswith("Error processing {'n': 3")
    first, place, *_, last = (said["ERROR"].exc_text or "").splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: three")
    assert "things.py" in place


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        (lambda _: {"n": 7}, "NoneType", "NoneType: TypeError: "),
        (lambda _: {"n": 8}, "dict", "dict: TypeError: Object of type object is not JSON serializable"),
        (lambda module: module.Thing(n=None), "Thing", "Thing: TypeError: unsupported operand"),
    ],
    ids=["no item", "a value that JSON does not have", "a serializer that fails"],
)
async def test_an_item_that_the_exporter_cannot_write_was_scraped_and_has_no_row(
    given: Callable[[Any], Any], kind: str, why: str, runner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Scrapy, where its pipelines had it and the feed alone lacks it: no error of theirs, no dead letter."""
    module = sys.modules[type(runner.spider).__module__]
    packed = runner.kinds.values.packed(given(module), "an item")
    service = PipelinesService(runner)
    await service.call("open", b"")
    answer = await service.call("rows", b"~" + msgspec.json.encode({"$item": packed}))
    made = read_made(answer, 1)
    assert [(bytes(item.row), item.error) for item in made.items] == [(b"null", "")]
    assert (made.stats["item_scraped_count"], made.stats["item_error_count"]) == (1, 1)
    assert module.SAID[2:] == [f"scraped {kind}"]
    assert f"an item has no row: {why}" in caplog.text


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_a_log_formatter_that_fails_costs_no_item(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A level that logging does not have, for example."""
    runner.crawler.logformatter.dropped = lambda *_: {"level": "LOUD"}
    packed = runner.kinds.values.packed({"n": 2}, "an item")
    service = PipelinesService(runner)
    await service.call("open", b"")
    answer = await service.call("rows", b"~" + msgspec.json.encode({"$item": packed}))
    assert [item.error for item in read_made(answer, 1).items] == [""]
    assert "its method dropped failed" in caplog.text


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_numbers_that_json_does_not_have_are_null_behind_pipelines_too(runner: Any) -> None:
    """They reach the pipelines as they are."""
    packed = runner.kinds.values.packed({"n": 1, "price": math.nan}, "an item")
    service = PipelinesService(runner)
    await service.call("open", b"")
    answer = await service.call("rows", b"~" + msgspec.json.encode({"$item": packed}))
    [made] = read_made(answer, 1).items
    assert msgspec.json.decode(made.row) == {"n": 1, "price": None, "by": "me"}


def test_a_spider_that_is_told_of_its_end_needs_the_process_too(tmp_path: Path) -> None:
    """`closed` is called there; a spider with neither gives rows at once."""
    file = tmp_path / "ends.py"
    plain = "import scrapy\nclass Ends(scrapy.Spider):\n    name = 'ends'\n    def parse(self, response): pass\n"
    file.write_text(plain)
    assert not load_runner(SpiderRef(str(file))).facts.has_pipelines
    file.write_text(plain + "    def closed(self, reason): pass\n")
    assert load_runner(SpiderRef(str(file))).facts.has_pipelines


HEARS = """
import scrapy
from pydispatch import dispatcher
from scrapy import signals

SAID = []


class Hears(scrapy.Spider):
    name = "hears"

    def spider_closed(self, spider, reason):
        SAID.append(f"{spider.name} {reason}")
"""


@pytest.mark.parametrize(
    "connects",
    [
        """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.spider_closed, signal=signals.spider_closed)
        return spider
""",
        """
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        dispatcher.connect(self.spider_closed, signals.spider_closed)
""",
    ],
    ids=["from_crawler", "pydispatch"],
)
@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_a_receiver_of_spider_closed_is_called_by_that_process(
    connects: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Scrapy's documentation connects one in `from_crawler`, and as older spiders do in `__init__`."""
    monkeypatch.setattr("pydispatch.dispatcher.connections", {})  # else it hears other tests
    file = tmp_path / "hears.py"
    file.write_text(HEARS + connects)
    runner: Any = load_runner(SpiderRef(str(file)))
    assert runner.facts.has_pipelines
    service = PipelinesService(runner)
    await service.call("open", b"")
    await service.call("close", b"finished")
    assert sys.modules[type(runner.spider).__module__].SAID == ["hears finished"]


STATS = """
import scrapy
from scrapy.statscollectors import MemoryStatsCollector, StatsCollector

SAID = []

class Told(StatsCollector):
    def open_spider(self, spider):
        SAID.append(f"opened {spider.name}")

    def _persist_stats(self, stats):
        SAID.append(stats)

class Counting(MemoryStatsCollector):
    def inc_value(self, *args, **kwargs):
        super().inc_value(*args, **kwargs)

class Stats(scrapy.Spider):
    name = "stats"
    custom_settings = {"STATS_CLASS": Told, "STATS_DUMP": False}

class Plain(scrapy.Spider):
    name = "plain"
    custom_settings = {"STATS_CLASS": Counting}
"""


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_a_stats_collector_of_the_project_is_opened_and_closed_once_a_job(tmp_path: Path) -> None:
    """In the pipelines' process, which runs for it alone too; the start says that it has the counts of that process."""
    file = tmp_path / "stats.py"
    file.write_text(STATS)
    runner: Any = load_runner(SpiderRef(f"{file}:Stats"))
    assert runner.facts.has_pipelines
    assert any("Told is opened and closed in the pipelines' process" in note for note in runner.facts.notes)
    assert not runner.facts.dumps_stats
    said = sys.modules[type(runner.spider).__module__].SAID
    await runner.open()
    assert said == []
    service = PipelinesService(runner)
    for name, argument in (("open", b""), ("rows", b'={"n":1}'), ("close", b"enough")):
        await service.call(name, argument)
    opened, stats = said
    assert opened == "opened stats"
    assert (stats["item_scraped_count"], stats["finish_reason"]) == (1, "enough")


def test_a_stats_collector_that_waits_for_no_end_needs_no_process(tmp_path: Path) -> None:
    """Nor does Scrapy's own."""
    file = tmp_path / "stats.py"
    file.write_text(STATS)
    facts = load_runner(SpiderRef(f"{file}:Plain")).facts
    assert (facts.has_pipelines, facts.dumps_stats) == (False, True)
