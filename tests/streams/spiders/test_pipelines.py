"""Item pipelines: their order, what they may be, and what becomes of an item."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import scrapy.exceptions
from scrapy.pipelines.files import FilesPipeline

from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders.pipelines import (
    DropItem,
    MadeItem,
    Pipelines,
    PipelinesService,
    check_pipelines,
    of_spider,
    read_made,
)

NONE = "TypeError: Odd.process_item gave None: it gives an item, or raises DropItem"

said: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    """Nothing was said."""
    said.clear()


class Adds:
    """Scrapy's methods with the spider, as they were for long."""

    def open_spider(self, spider: Any) -> None:
        """Said."""
        said.append(("open", spider.name))

    def process_item(self, item: dict[str, Any], spider: Any) -> dict[str, Any]:
        """One more field."""
        return item | {"by": spider.name}

    def close_spider(self, spider: Any) -> None:
        """Said."""
        said.append(("close", spider.name))


class Waits:
    """Without the spider, as they are now, and async; made by `from_crawler`."""

    def __init__(self, crawler: Any) -> None:
        self.name = crawler.spider.name
        self.most = crawler.settings["most"]

    @classmethod
    def from_crawler(cls, crawler: Any) -> "Waits":
        """With its settings."""
        return cls(crawler)

    async def open_spider(self) -> None:
        """Said."""
        said.append("waits opened")

    async def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        """Later items are ready sooner."""
        await asyncio.sleep(0.01 / item["n"])
        if item["n"] > self.most:
            raise DropItem("too many")
        return item | {"waited": self.name}


class Odd:
    """Neither opened nor closed."""

    def process_item(self, item: dict[str, Any], **_: Any) -> Any:
        """By the number."""
        if item["n"] == 2:
            raise scrapy.exceptions.DropItem("two")
        if item["n"] == 3:
            raise ZeroDivisionError("three")
        return None if item["n"] == 4 else item


def pipelines(*kinds: Any) -> Pipelines:
    """Of a spider of our own."""
    spider = SimpleNamespace(name="shop", settings={"most": 5}, pipelines=kinds, closed=said.append)
    return of_spider(spider, msgspec.json.decode, msgspec.json.encode)


async def called(service: PipelinesService, name: str, *lines: bytes) -> list[MadeItem]:
    """The answer of the child."""
    answer = await service.call(name, b"\n".join(lines))
    return read_made(answer, len(lines) if name == "rows" else 0).items


async def test_items_pass_the_pipelines_in_order_and_become_rows_in_theirs() -> None:
    """One class serves Scrapy and us: with the spider or without, async or not."""
    service = PipelinesService(SimpleNamespace(facts="facts", pipelines=lambda: pipelines(Adds, Waits)))
    assert await called(service, "open") == []
    made = await called(service, "rows", b'~{"n":1}', b'~{"n":2}', b'={"n":3}', b'~{"n":9}')
    assert [msgspec.json.decode(one.row) for one in made] == [
        {"n": 1, "by": "shop", "waited": "shop"},
        {"n": 2, "by": "shop", "waited": "shop"},
        {"n": 3, "by": "shop", "waited": "shop"},
        None,
    ]
    await called(service, "close", b"finished")
    assert said == [("open", "shop"), "waits opened", ("close", "shop"), "finished"]


async def test_who_looks_for_file_at_the_end_is_told_that_it_comes_later(capsys: pytest.CaptureFixture[str]) -> None:
    """Its rows are in FILE.partial until the job is finished, which it is behind the last hook."""

    class Uploads:
        def close_spider(self) -> None:
            raise FileNotFoundError("quotes.jsonl")

    service = PipelinesService(SimpleNamespace(facts="facts", pipelines=lambda: pipelines(Uploads)))
    with pytest.raises(FileNotFoundError):
        await called(service, "close", b"finished")
    assert "FILE of `-o` is made after them" in capsys.readouterr().err


async def test_what_drops_and_what_fails_gives_no_row() -> None:
    """Scrapy's DropItem is ours; an error has its line and its traceback."""
    made = [await pipelines(Odd).made(b'~{"n":%d}' % n) for n in range(1, 5)]
    assert [bytes(one.row) for one in made] == [b'{"n":1}', b"null", b"null", b"null"]
    assert [one.error for one in made] == ["", "", "ZeroDivisionError: three", NONE]
    assert "in process_item" in made[2].trace
    assert (await pipelines().made(b"~{")).error.startswith("DecodeError")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_what_would_end_a_program_fails_one_item(kind: type[BaseException]) -> None:
    """Such as `sys.exit`, or a task that was cancelled: else all rows would wait for ever."""

    class Ends:
        def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
            if item["n"] == 2:
                raise kind("two")
            return item

    service = PipelinesService(SimpleNamespace(facts="facts", pipelines=lambda: pipelines(Ends)))
    made = await called(service, "rows", b'~{"n":1}', b'~{"n":2}', b'~{"n":3}')
    assert [one.error for one in made] == ["", f"{kind.__name__}: two", ""]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("shop.Pipeline", "list of classes"),
        (Adds, "list of classes"),
        ([dict], "no method process_item"),
        ([FilesPipeline], "FilesPipeline is for spiders of Scrapy's"),
    ],
)
def test_what_are_no_pipelines_is_refused(wrong: Any, told: str) -> None:
    """Before anything is asked."""
    check_pipelines([Adds, Odd()], "shop.py")
    with pytest.raises(Misconfigured, match=told):
        check_pipelines(wrong, "shop.py")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{}\n{}\n{}", "2 items for 1"),
        (b"{}", "0 items for 1"),
        (b'{"items":[' + b"{}," * 200_000 + b"{}]}\n{}", "more than 100,000 stats"),
    ],
)
def test_an_answer_of_pipelines_is_counted_before_it_is_decoded(answer: bytes, why: str) -> None:
    """Their process runs the user's code, which may write any answer; millions of items would hold up the sink."""
    with pytest.raises(ValueError, match=why):
        read_made(answer, 1)
