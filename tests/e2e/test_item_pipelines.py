"""Item pipelines with real workers: the rows are those of Scrapy, also when sink and parse are killed amid a crawl."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings.settings import Settings
from tests.support.cluster import log_of
from tests.support.processes import Process, crawlog, done, ended
from tests.support.quotes import Quotes, quotes

__all__ = ["quotes"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.broker]

SPIDER = """
import scrapy
from scrapy.exceptions import DropItem


class Author(scrapy.Item):
    name = scrapy.Field(serializer=str.upper)
    where = scrapy.Field()


class Seen:
    def open_spider(self):
        self.names = set()
        print("seen opened")

    def process_item(self, item):
        if item["name"] in self.names:
            raise DropItem("seen")
        self.names.add(item["name"])
        return item

    def close_spider(self):
        print("seen closed", len(self.names))


class Long:
    async def process_item(self, item):
        if len(item["name"]) < 12:
            raise DropItem("short")
        item["where"] = "/".join(item["where"])
        return item


class Authors(scrapy.Spider):
    name = "authors"
    custom_settings = {"ITEM_PIPELINES": {Long: 200, Seen: 100}}
    start_urls = ["ORIGIN/"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield Author(name=quote.css("small.author::text").get(), where=("quotes", "site"))
        yield from response.follow_all(css="li.next a, span.tag-item a")

    def closed(self, reason):
        print("spider closed", reason)
"""

OWN = """
from crawlog import DropItem, Request, Spider


class Seen:
    def open_spider(self, spider):
        self.names = set()

    def process_item(self, item, spider):
        if item["name"] in self.names:
            raise DropItem("seen")
        self.names.add(item["name"])
        return item


class Long:
    async def process_item(self, item, spider):
        if len(item["name"]) < 12:
            raise DropItem("short")
        return {"name": item["name"].upper(), "where": "/".join(item["where"])}


class Authors(Spider):
    start_urls = ["ORIGIN/"]
    pipelines = [Seen, Long]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {"name": quote.css("small.author::text").get(), "where": ("quotes", "site")}
        yield from response.follow_all(css="li.next a, span.tag-item a")
"""


def written(folder: Path, text: str, site: Quotes) -> Path:
    """The spider's file."""
    file = folder / "authors.py"
    file.write_text(text.replace("ORIGIN", site.origin))
    return file


def by_scrapy(folder: Path, file: Path) -> Counter[str]:
    """The rows by Scrapy itself."""
    command = [sys.executable, "-m", "scrapy", "runspider", str(file), "-o", "theirs.jsonl", "-s", "LOG_LEVEL=ERROR"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return rows(folder / "theirs.jsonl")


def rows(file: Path) -> Counter[str]:
    """A multiset."""
    return Counter(json.dumps(json.loads(line), sort_keys=True) for line in file.read_text().splitlines())


class Crawl:
    """`crawlog run` of the spider, the same command each time."""

    def __init__(self, folder: Path, file: Path, log: Settings, **settings: Any) -> None:
        self.folder = folder
        self.output: Path | None = folder / "ours.jsonl"
        self.data = folder / "data"
        self.environ: dict[str, str] = {}
        self.said = folder / "said.log"
        pairs = {"network.allow_private": True, "politeness.delay_s": 0.05, "politeness.ip_rate": 0} | settings
        self.options = [f"-s{key}={json.dumps(value)}" for key, value in pairs.items()]
        self.options += [f"-s{key}={value}" for key, value in log_of(log).items()]
        self.file = file

    def rows(self) -> Counter[str]:
        """Those of its file."""
        assert self.output
        return rows(self.output)

    def start(self, *more: str) -> Process:
        """The command."""
        command = ["run", "--spider", self.file, "--data", self.data, "--json"]
        command += ["-o", self.output] if self.output else []
        with self.said.open("ab") as said:
            return crawlog(
                *map(str, command), *self.options, *more, cwd=self.folder, stdout=said, stderr=said,
                env=os.environ | self.environ,
            )  # fmt: skip

    def summary(self, run: Process) -> dict[str, Any]:
        """At its end."""
        assert run.wait(60) == 0, self.tail()
        told: dict[str, Any] = json.loads(self.said.read_text().strip().splitlines()[-1])
        return told

    def tail(self) -> str:
        """What was said last."""
        logs = [self.said, *sorted((self.data / "logs").glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2500:]}" for log in logs if log.exists())

    def kill(self, stage: str) -> int:
        """Kill -9 of the workers of a stage."""
        try:
            workers = json.loads((self.data / "run" / "holder.json").read_text())["workers"]
        except (OSError, ValueError):
            return 0
        pids = [pid for name, pid in workers.items() if name.startswith(stage) and psutil.pid_exists(pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def sink_log(self) -> str:
        """What the pipelines printed."""
        return "\n".join(log.read_text() for log in (self.data / "logs").glob("sink*.log*"))


@pytest.mark.parametrize(
    "text", [pytest.param(SPIDER, id="scrapy"), pytest.param(OWN, id="own", marks=pytest.mark.long)]
)
def test_the_rows_are_those_of_scrapy(text: str, tmp_path: Path, quotes: Quotes, cluster: Settings) -> None:
    """A set of what was seen, DropItem, a serializer; opened and closed once."""
    theirs = by_scrapy(tmp_path, written(tmp_path, SPIDER, quotes))
    crawl = Crawl(tmp_path, written(tmp_path, text, quotes), cluster)
    summary = crawl.summary(crawl.start())
    assert crawl.rows() == theirs
    assert (summary["rows"], summary["dead"]) == (theirs.total(), 0)
    if text == SPIDER:
        stats = summary["stats"]
        assert stats["item_scraped_count"] == theirs.total()
        assert stats["item_dropped_count"] == stats["item_dropped_reasons_count/DropItem"] > 0
        for log in (crawl.sink_log(), crawl.said.read_text()):  # the command shows what the spider prints
            assert [log.count(word) for word in ("seen opened", "seen closed", "spider closed finished")] == [1, 1, 1]


@pytest.mark.long
def test_kills_lose_and_double_no_row(tmp_path: Path, quotes: Quotes, cluster: Settings) -> None:
    """The sink three times, parse behind the items of a page and before its commit, each of its own points too."""
    file = written(tmp_path, SPIDER, quotes)
    theirs = by_scrapy(tmp_path, file)
    crawl = Crawl(tmp_path, file, cluster, **{"politeness.delay_s": 0.3})
    spent = tmp_path / "spent"
    spent.mkdir()
    points = "parse.page.done:3 pipelines.rows.written:1 pipelines.state.written:1 pipelines.closed:1"
    crawl.environ = {VARIABLE: f"{spent} {points}"}
    before = len(quotes.asked)
    run = crawl.start("--workers", "fetch=2,parse=2")
    kills, end = 0, time.monotonic() + 120
    while kills < 3 and run.poll() is None and time.monotonic() < end:
        if len(quotes.asked) - before >= 8 * (kills + 1):
            kills += crawl.kill("sink")
            time.sleep(1.0)
        time.sleep(0.05)
    summary = crawl.summary(run)
    assert kills == 3
    assert {file.name for file in spent.iterdir()} == {point.partition(":")[0] for point in points.split()}
    assert crawl.rows() == theirs
    assert summary["dead"] == 0


@pytest.mark.long
def test_mended_pipelines_make_the_rows_anew_without_a_request(
    tmp_path: Path, quotes: Quotes, cluster: Settings
) -> None:
    """`replay --group sink`, then the same command."""
    file = written(tmp_path, SPIDER, quotes)
    crawl = Crawl(tmp_path, file, cluster)
    crawl.summary(crawl.start())
    first, asked = crawl.rows(), len(quotes.asked)
    file.write_text(file.read_text().replace("< 12", "< 14"))
    order = ["replay", "--group", "sink", "--to-earliest", "--execute", "--data", crawl.data]
    with crawl.said.open("ab") as said:
        replay = crawlog(*map(str, order), *crawl.options, cwd=tmp_path, stdout=said, stderr=said)
    assert replay.wait(60) == 0, crawl.tail()
    crawl.summary(crawl.start())
    assert len(quotes.asked) == asked
    assert 0 < crawl.rows().total() < first.total()
    assert all(len(json.loads(row)["name"]) >= 14 for row in crawl.rows())


KEEPS = """
import json
from pathlib import Path
from crawlog import Spider


class Keep:
    def open_spider(self, spider):
        self.names = []

    def process_item(self, item, spider):
        self.names.append(item["name"])
        return item

    def close_spider(self, spider):
        Path("KEPT").write_text(json.dumps(self.names))


class Authors(Spider):
    start_urls = ["ORIGIN/"]
    pipelines = [Keep]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {"name": quote.css("small.author::text").get()}

    def closed(self, reason):
        with Path("REASONS").open("a") as file:
            print(reason, file=file)
"""


@pytest.mark.long
def test_pipelines_of_a_job_without_a_file_keep_its_items(tmp_path: Path, quotes: Quotes, cluster: Settings) -> None:
    """As with Scrapy: without -o the items pass the pipelines all the same, and once."""
    kept, reasons = tmp_path / "kept.json", tmp_path / "reasons"
    text = KEEPS.replace("KEPT", str(kept)).replace("REASONS", str(reasons))
    crawl = Crawl(tmp_path, written(tmp_path, text, quotes), cluster)
    crawl.output = None
    for reason in ("finished", "already_finished"):
        summary = crawl.summary(crawl.start())
        assert (summary["reason"], summary["rows"], summary["output"]) == (reason, None, None)
        assert (len(json.loads(kept.read_text())), reasons.read_text()) == (10, "finished\n")


@pytest.mark.long
def test_the_files_of_feeds_are_those_of_scrapy(tmp_path: Path, quotes: Quotes, cluster: Settings) -> None:
    """Rows behind the pipelines, each file with its own fields; the same command again leaves the files as they are."""
    feeds = f'100}}, "FEEDS": {{"{tmp_path}/ours-%(name)s.json": {{"format": "json"}}, "{tmp_path}/few.csv": '
    feeds += '{"format": "csv", "fields": {"name": "Name"}}}}'
    crawl = Crawl(tmp_path, written(tmp_path, SPIDER.replace("100}}", feeds), quotes), cluster)
    crawl.output = None
    for _ in range(2):
        crawl.summary(crawl.start())
    [whole] = tmp_path.glob("ours-*.json")
    made = json.loads(whole.read_text())
    theirs = by_scrapy(tmp_path, written(tmp_path, SPIDER, quotes))
    assert Counter(json.dumps(row, sort_keys=True) for row in made) == theirs
    with (tmp_path / "few.csv").open() as file:
        header, *few = csv.reader(file)
    assert (header, sorted(few)) == (["Name"], sorted([row["name"]] for row in made))


@pytest.mark.long
def test_stats_of_a_job_on_a_fleet_are_told_to_who_follows_it(tmp_path: Path, quotes: Quotes) -> None:
    """Those of its pages and those of its pipelines, also when it has ended before."""
    file = written(tmp_path, SPIDER, quotes)
    theirs = by_scrapy(tmp_path, file)
    given = ["--data", data := tmp_path / "data", "-s", "network.allow_private=true", "-s", "politeness.delay_s=0.05"]
    words = ["submit", "--spider", file, "-o", "a.jsonl", "-o", "b.csv", "--wait", "--json", *given]
    try:
        done(crawlog("up", "--workers", "fetch=1,parse=1", "-s", "politeness.ip_rate=0", *given, cwd=tmp_path))
        for _ in range(2):
            code, summary, err = ended(crawlog(*words, cwd=tmp_path))
            assert code == 0, err
            stats = summary["stats"]
            assert stats["item_scraped_count"] == theirs.total()
            assert stats["item_dropped_count"] == stats["item_dropped_reasons_count/DropItem"] > 0
        [made] = data.glob("outputs/*/a.jsonl")
        assert rows(made) == theirs
        said = "".join(log.read_text() for log in data.glob("logs/sink*.log*"))
        assert said.count("spider closed finished") == 1
    finally:
        crawlog("down", "--data", data).communicate()
