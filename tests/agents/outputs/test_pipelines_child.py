"""The real process of the pipelines: what it answers, and what ends it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crawlog.agents.outputs import row_maker
from crawlog.agents.outputs.row_maker import PipelinesChild, pipelines_of
from crawlog.agents.sandbox import ChildRules
from crawlog.streams.errors import Misconfigured, SpiderDied
from crawlog.streams.settings.settings import Settings
from crawlog.streams.spiders import SpiderRef, read_made

SPIDER = """
import os, sys, time
from crawlog import DropItem, Spider

class Odd:
    def open_spider(self, spider):
        if spider.opens == "badly":
            raise OSError("no database")

    def process_item(self, item, spider):
        if item["n"] == 2:
            os._exit(3)
        if item["n"] == 3:
            while True:
                pass
        if item["n"] == 4:
            raise DropItem("four")
        print("garbage")
        return item

class Odds(Spider):
    opens = "well"
    start_urls = ["http://a.test/"]
    pipelines = [Odd]

    def parse(self, response):
        yield {"n": 1}
"""


POOLED = """
from crawlog import Spider

class Connection:
    def __init__(self, pool):
        self.pool = pool
        pool.free -= 1
        self.itself = self

    def __del__(self):
        self.pool.free += 1

class Store:
    free = 15

    def process_item(self, item, spider):
        if not self.free:
            raise TimeoutError("the pool is empty")
        Connection(self)
        return item

class Pooled(Spider):
    start_urls = ["http://a.test/"]
    pipelines = [Store]

    def parse(self, response):
        yield {"n": 1}
"""
"""Connections in cycles go back to their pool when garbage is collected, as those of SQLAlchemy without `close`."""


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[PipelinesChild]:
    """With a short patience."""
    made = PipelinesChild(_ref(tmp_path), ChildRules(), patience_s=5.0)
    yield made
    made.close()


def _ref(folder: Path, *args: tuple[str, str]) -> SpiderRef:
    file = folder / "odds.py"
    file.write_text(SPIDER)
    return SpiderRef(str(file), args)


async def test_it_answers_with_rows(child: PipelinesChild) -> None:
    """What the pipelines print goes to the worker's log."""
    await child.call("open")
    made = read_made(await child.call("rows", b'~{"n":1}\n~{"n":4}\n={"n":5}'), 3)
    assert [bytes(item.row) for item in made.items] == [b'{"n":1}', b"null", b'{"n":5}']


async def test_a_pipeline_that_relies_on_the_garbage_collector_loses_no_item(tmp_path: Path) -> None:
    """An item has few objects, so Python's own threshold alone would come too late for a small pool."""
    file = tmp_path / "pooled.py"
    file.write_text(POOLED)
    child = PipelinesChild(SpiderRef(str(file)), ChildRules(), 30.0)
    await child.call("open")
    made = read_made(await child.call("rows", b"\n".join([b'~{"n":1}'] * 50)), 50)
    child.close()
    assert [item.error for item in made.items if item.error] == []


@pytest.mark.parametrize(
    ("line", "told"), [(b'~{"n":2}', "exited with code 3"), (b'~{"n":3}', "pipelines.timeout_s = 5")]
)
async def test_what_ends_it_ends_no_worker(child: PipelinesChild, line: bytes, told: str) -> None:
    """`os._exit`, and a loop without end: the maker of rows begins with a fresh one."""
    await child.call("open")
    with pytest.raises(SpiderDied, match=told):
        await child.call("rows", line)


async def test_what_its_code_raises_is_told(tmp_path: Path) -> None:
    """A database that is away; a file that is gone."""
    child = PipelinesChild(_ref(tmp_path, ("opens", "badly")), ChildRules(), 30.0)
    with pytest.raises(Misconfigured, match="OSError: no database"):
        await child.call("open")
    child.close()
    child = PipelinesChild(SpiderRef(str(tmp_path / "none.py")), ChildRules(), 30.0)
    with pytest.raises(Misconfigured, match=r"none\.py"):
        await child.call("open")
    child.close()
    await asyncio.sleep(0)


async def test_a_job_that_the_log_does_not_know_has_no_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its raw items wait, and the run says why."""
    monkeypatch.setattr(row_maker, "known_job", lambda *_: None)
    with pytest.raises(Misconfigured, match="does not name its spider"):
        await pipelines_of(Settings(), "j")
