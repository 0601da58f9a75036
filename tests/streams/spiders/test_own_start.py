"""What `start` of crawlog's own spiders leaves in memory, and what is told of it."""

import asyncio
import gc
from pathlib import Path

import pytest

from crawlog.streams.spiders import Runner, SpiderRef, load_runner

FILE = """
from crawlog import Request, Spider

class Rows(Spider):
    def start(self):
        shared = {}
        for number in range(1000):
            self.number = number
            row = {"mark of start": [number]}
            yield Request(f"http://a.test/{number}", self.parse, cb_kwargs={"row": row, "shared": shared})

    def parse(self, response, row, shared): ...
"""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """The runner of the file."""
    path = tmp_path / "rows.py"
    path.write_text(FILE)
    return load_runner(SpiderRef(str(path)))


def test_values_of_a_part_of_start_are_held_no_longer_than_it(runner: Runner) -> None:
    """An endless `start` kept those of each request."""

    async def held() -> int:
        async for part in runner.start():
            part.requests.clear()
        return sum(isinstance(one, dict) and "mark of start" in one for one in gc.get_objects())

    assert asyncio.run(held()) < 10


def test_warnings_of_start_are_told_once(runner: Runner) -> None:
    """An object in several requests, an attribute that `start` changes."""

    async def told() -> list[str]:
        return [warning async for part in runner.start() for warning in part.warnings]

    warnings = asyncio.run(told())
    assert [warning.partition(":")[2].split(":")[0].strip() for warning in warnings] == [
        "a callback changes self.number",
        "the dict cb_kwargs['shared'] is in several requests",
    ]
