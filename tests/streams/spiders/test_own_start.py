"""What `start` of crawlog's own spiders leaves in memory, and what is told of it."""

import asyncio
import gc
import re
from pathlib import Path

import pytest

from crawlog.streams.errors import Misconfigured
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


REPEATED = """
from crawlog import Request, Spider, every

class Rows(Spider):
    @every(hours=6)
    def start(self):
        yield Request("http://a.test/1")
        yield Request("http://a.test/2", dont_filter=True)

    def parse(self, response): ...
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("@every(hours=6)", "@every", "line 5: TypeError: @every needs a length of time: @every(hours=6)"),
        ("@every(hours=6)", "@every(5)", "@every needs a length of time"),
        ("@every(hours=6)", "@every('soon')", "'soon' is no length of time; write 45s, 30m, 6h"),
        ("    def parse", "    age = 'soon'\n    def parse", "age: 'soon' is no length of time; write 45s, 30m, 6h"),
        ("    def parse", "    age = [1]\n    def parse", "age: "),
        ("@every(hours=6)", "@every()", "@every needs a second or more: @every(hours=6)"),
        ("@every(hours=6)", "@every(hours=-6)", "@every needs a second or more"),
        ("    def parse", "    @every(days=1)\n    def parse", "@every stands on parse; only `start` begins again"),
    ],
)
def test_an_every_that_means_nothing_is_refused_when_the_spider_is_loaded(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    """With its line, before anything is asked."""
    path = tmp_path / "rows.py"
    path.write_text(REPEATED.replace(old, new))
    with pytest.raises(Misconfigured, match=re.escape(told)):
        load_runner(SpiderRef(str(path)))


@pytest.mark.parametrize(
    ("of_class", "args", "age"),
    [
        ('age = "7d"', (), "7d"),
        ('age = "7d"', (("age", "1h"),), "7d"),  # an argument of the spider's own
        ('age = "7d"; settings = {"recrawl.age": "1d"}', (), "1d"),
        ("pass", (), None),
    ],
)
def test_the_age_of_a_spiders_class_is_a_setting_of_its_job(
    tmp_path: Path, of_class: str, args: tuple[tuple[str, str], ...], age: str | None
) -> None:
    """What the spider's own settings say comes first."""
    path = tmp_path / "rows.py"
    path.write_text(REPEATED.replace("    def parse", f"    {of_class}\n    def parse"))
    assert load_runner(SpiderRef(str(path), args)).facts.settings.get("recrawl.age") == age


def test_each_start_of_an_every_has_unfiltered_requests_of_its_own(tmp_path: Path) -> None:
    """The same one asks for them once, however often it begins; a plain URL is the same URL in all of them."""
    path = tmp_path / "rows.py"
    path.write_text(REPEATED)

    async def ids(after: float) -> list[int]:
        runner = load_runner(SpiderRef(str(path), after=after))
        assert runner.facts.every == 21_600
        return [one.id async for part in runner.start() for one in part.requests]

    (plain, first), (_, again), (same, later) = (asyncio.run(ids(after)) for after in (0.0, 0.0, 7.5))
    assert (plain, first) == (same, again)
    assert later != first


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
