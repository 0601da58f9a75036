"""The `start` of a spider: killed halfway, endless, broken, closed. The judge is what the site was asked for."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from crawlog.streams import crash_points
from tests.support.crawls import there
from tests.support.processes import LIMIT_S, Process, crawlog
from tests.support.sites import Answer, Threaded

__all__ = ["there"]  # a fixture

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HEAD = """
import asyncio
from crawlog import Request, Spider, every

class Numbers(Spider):
    settings = {"politeness.delay_s": 0.0, "network.allow_private": True, "robots.obey": False}

    def __init__(self, origin, last="60"):
        self.origin, self.last = origin, int(last)

    def parse_number(self, response, number):
        yield {"number": number, "title": response.css("title::text").get()}

    def parse(self, response):
        yield {"number": 2}
"""

SLOWLY = """
    async def start(self):
        yield {"number": -1, "title": "of start"}
        for number in range(self.last):
            url = f"{self.origin}/{number}"
            yield Request(url, self.parse_number, cb_kwargs={"number": number}, dont_filter=not number % 3)
            await asyncio.sleep(0.05)
"""

ENDLESS = """
    async def start(self):
        number = 0
        while True:
            yield Request(f"{self.origin}/{number}", self.parse_number, cb_kwargs={"number": number})
            number += 1
"""

BROKEN = """
    async def start(self):
        yield Request(f"{self.origin}/1", self.parse_number, cb_kwargs={"number": 1})
        raise KeyError("no such section")
"""


class Pages:
    """A site that has every page, and counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._server = Threaded(self._answer)
        self.origin = self._server.origin
        self.close = self._server.close

    def _answer(self, path: str) -> Answer:
        self.asked[path] += 1
        return 200, "text/html", f"<title>{path}</title>".encode()


@pytest.fixture
def pages() -> Iterator[Pages]:
    """A site of this test alone."""
    made = Pages()
    yield made
    made.close()


Command = Callable[..., Process]


@pytest.fixture
def command(tmp_path: Path, pages: Pages) -> Command:
    """Runs a spider with this `start` on the site."""

    def run(start: str, *more: object) -> Process:
        (tmp_path / "numbers.py").write_text(HEAD + start)
        options = ["--spider", tmp_path / "numbers.py", "-a", f"origin={pages.origin}", "--data", tmp_path / "data"]
        return crawlog("run", *options, "-o", tmp_path / "rows.jsonl", "--json", *more)

    return run


def rows(tmp_path: Path) -> Counter[int]:
    """The numbers of the rows."""
    return Counter(json.loads(line)["number"] for line in (tmp_path / "rows.jsonl").read_text().splitlines())


def kill_all(process: Process) -> None:
    """Kill -9: the command, its workers, its broker, the spider's processes."""
    every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in every:
        with_signal = one.send_signal
        try:
            with_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(every[1:], timeout=LIMIT_S)
    process.communicate()


@pytest.mark.long
def test_a_start_that_is_killed_halfway_begins_again_and_what_is_known_falls_away(
    tmp_path: Path, pages: Pages, command: Command
) -> None:
    """Everything is killed three times while `start` gives requests: each one is one row, few are asked twice."""
    for share in (10, 25, 45):
        process = command(SLOWLY)
        deadline = time.monotonic() + LIMIT_S
        while len(pages.asked) < share and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()
        kill_all(process)
    process = command(SLOWLY)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["reason"] == "finished"
    assert rows(tmp_path) == Counter(range(-1, 60))
    assert set(pages.asked) == {f"/{number}" for number in range(60)}
    assert sum(pages.asked.values()) <= 60 + 3 * 16
    again = command(SLOWLY)
    assert json.loads(again.communicate()[0])["reason"] == "already_finished"
    before = pages.asked.copy()
    assert command(SLOWLY, "--fresh").wait() == 0
    assert sum(pages.asked.values()) == sum(before.values()) + 60


@pytest.mark.long
def test_a_command_that_dies_at_each_of_its_writes_goes_on(
    tmp_path: Path, pages: Pages, command: Command, there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before requests, before an item, before and after the note of the end: each one is one row, asked once."""
    spent = tmp_path / "spent"
    spent.mkdir()
    points = ("start.sending:2", "start.item.sending:1", "start.noting:1", "start.noted:1")
    monkeypatch.setenv(crash_points.VARIABLE, f"{spent} {' '.join(points)}")
    start = SLOWLY.replace("0.05", "0")
    ends = [command(start, *there).wait() for _ in range(len(points) + 1)]
    assert ends == [-signal.SIGKILL] * len(points) + [0]
    assert {path.name for path in spent.iterdir()} == {point.partition(":")[0] for point in points}
    assert rows(tmp_path) == Counter(range(-1, 60))
    assert set(pages.asked) == {f"/{number}" for number in range(60)}


@pytest.mark.long
def test_an_endless_start_goes_at_the_pace_of_the_job(
    tmp_path: Path, pages: Pages, command: Command, there: list[str]
) -> None:
    """It ends with the job, and the log does not fill with what nobody fetches."""
    process = command(ENDLESS, "--max-pages", 100, *there)
    out, err = process.communicate()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["reason"] == "max_pages"
    assert 100 <= summary["fetched"] < 2_000
    assert summary["held"] + summary["queued"] < 30_000
    assert sum(rows(tmp_path).values()) == summary["rows"]
    stopped = command(ENDLESS, "--job", "endless", *there)
    deadline = time.monotonic() + LIMIT_S
    while len(pages.asked) < 3_000 and time.monotonic() < deadline and stopped.poll() is None:
        time.sleep(0.05)
    spiders = [one for one in psutil.Process(stopped.pid).children(recursive=True) if "spider" in one.name()]
    assert spiders
    stopped.send_signal(signal.SIGINT)
    stopped.communicate()
    assert stopped.returncode == 130
    assert not psutil.wait_procs(spiders, timeout=LIMIT_S)[1]


def test_a_start_that_fails_keeps_what_it_gave(
    tmp_path: Path, pages: Pages, command: Command, there: list[str]
) -> None:
    """The run ends with the exit code of a page's error; a mended spider begins again, and what is known falls away."""
    process = command(BROKEN, *there)
    out, err = process.communicate()
    assert process.returncode == 4
    assert json.loads(out)["start_error"] == "KeyError: 'no such section'"
    assert "`start` failed: KeyError: 'no such section'" in err
    assert "numbers.py" in err
    assert rows(tmp_path) == Counter([1])
    mended = BROKEN.replace('raise KeyError("no such section")', 'yield Request(f"{self.origin}/2")')
    process = command(mended, *there)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert rows(tmp_path) == Counter([1, 2])
    assert pages.asked == Counter(["/1", "/2"])


REPEATED = """
    @every(seconds=2)
    def start(self):
        yield Request(f"{self.origin}/1", self.parse_number, cb_kwargs={"number": 1})
        yield Request(f"{self.origin}/2", dont_filter=True)
"""


@pytest.mark.long
def test_a_start_with_every_begins_again_in_each_run_that_is_due(
    tmp_path: Path, pages: Pages, command: Command, there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends the unfiltered request each time, a known URL never, whatever dies; FILE is made between."""
    spent = tmp_path / "spent"
    spent.mkdir()
    points = ("start.noting:1", "start.noted:1")
    assert command(REPEATED, *there).wait() == 0
    monkeypatch.setenv(crash_points.VARIABLE, f"{spent} {' '.join(points)}")
    deadline = time.monotonic() + LIMIT_S
    while len(list(spent.iterdir())) < len(points) and time.monotonic() < deadline:  # one that is not due does nothing
        assert command(REPEATED, *there).wait() in {0, -signal.SIGKILL}
    repeated = pages.asked["/2"]
    while pages.asked["/2"] < repeated + 2 and time.monotonic() < deadline:
        process = command(REPEATED, *there)
        out, err = process.communicate()
        assert process.returncode == 0, err
    assert json.loads(out)["reason"] == "watching"
    assert pages.asked["/1"] <= 1 + len(points)  # in flight at a kill, it is asked for again
    made = rows(tmp_path)
    assert made[1] == 1
    assert repeated + 2 - len(points) <= made[2] <= pages.asked["/2"]


@pytest.mark.long
def test_up_goes_on_with_the_start_of_a_run_that_was_killed(tmp_path: Path, pages: Pages, command: Command) -> None:
    """It has every job of its data folder."""
    process = command(SLOWLY)
    deadline = time.monotonic() + LIMIT_S
    while len(pages.asked) < 5 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    kill_all(process)
    where = ["--data", tmp_path / "data", "-s", "network.allow_private=true"]
    up = crawlog("up", *where)
    assert up.wait() == 0, up.communicate()
    while len(pages.asked) < 60 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    crawlog("down", *where).wait()
    before = pages.asked.copy()
    assert len(before) == 60
    assert command(SLOWLY).wait() == 0
    assert rows(tmp_path) == Counter(range(-1, 60))
    assert pages.asked == before


CLOSING = """
import asyncio
import scrapy
from scrapy.exceptions import CloseSpider

class Numbers(scrapy.Spider):
    name = "numbers"
    custom_settings = {"DOWNLOAD_DELAY": 0, "ROBOTSTXT_OBEY": False}

    def __init__(self, origin, **more):
        super().__init__(**more)
        self.origin = origin

    async def start(self):
        for number in range(200):
            yield scrapy.Request(f"{self.origin}/{number}", self.parse_number, cb_kwargs={"number": number})
            await asyncio.sleep(0.05)

    def parse_number(self, response, number):
        if number == 10:
            raise CloseSpider("ten are enough")
        yield {"number": number}
"""


@pytest.mark.long
def test_a_spider_that_closes_its_job_ends_the_run(tmp_path: Path, pages: Pages, there: list[str]) -> None:
    """`start` ends with it; FILE is made. The same command has nothing to do, `--fresh` crawls again."""
    (tmp_path / "numbers.py").write_text(CLOSING)
    options = ["--spider", tmp_path / "numbers.py", "-a", f"origin={pages.origin}", "--data", tmp_path / "data"]
    options += ["-o", tmp_path / "rows.jsonl", "--json", "-s", "network.allow_private=true"]
    for more, reason in ((), "closed"), ((), "already_finished"), (("--fresh",), "closed"):
        before = len(pages.asked)
        process = crawlog("run", *options, *there, *more)
        out, err = process.communicate()
        summary = json.loads(out)
        assert (process.returncode, summary["reason"]) == (0, reason), err
        assert summary["closed"] == "ten are enough"
        assert 10 <= len(pages.asked) < 190
        assert set(range(10)) <= set(rows(tmp_path))
        assert set(rows(tmp_path).values()) == {1}
        if reason == "already_finished":
            assert len(pages.asked) == before
