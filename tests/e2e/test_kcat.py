"""Any Kafka client can use the log: kcat seeds a crawl that is up, and its garbage stops nothing."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Message

from crawlog.schemas import dead
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.engine import engine
from crawlog.streams.log.read import read_records
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.cluster import needs_site
from tests.support.synthetic_site import Site

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    needs_site,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat"),
]

LIMIT_S = 120.0
STREAMS, SIDES = ("urls", "pages"), ("control", "progress")
"""Those that somebody reads while a crawl is up; what is wrong in crawl.items is found by the sink that reads it."""


class Up:
    """`crawlog up` on a folder, and the site that is crawled."""

    pages = 0

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.config = folder / "kcat.conf"
        self.site = Site(4, 10, flags={"bytes": 2000, "links": 10})
        pairs = ("network.allow_private=true", "politeness.delay_s=0.01", "kafka.partitions=4")
        self._options = [word for pair in pairs for word in ("-s", pair)]

    def command(self, name: str) -> str:
        """`crawlog up`, `crawlog down` or `crawlog kcat-config`; what it prints."""
        options = self._options if name == "up" else []
        command = [sys.executable, "-m", "crawlog", name, "--data", str(self.data), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def settings(self) -> Settings:
        """Settings that reach its log."""
        running = engine.running(self.data)
        assert running is not None
        return running.point(load({"kafka.partitions": 4}))

    def kcat(self, topic: str, value: bytes, *options: str) -> None:
        """Produce one record."""
        config = ["kcat", "-F", str(self.config)]
        command = [*config, "-P", "-t", f"crawl.{topic}", "-D", "\\0", *options]
        subprocess.run(command, input=value, check=True, timeout=LIMIT_S, env={**os.environ, "LC_ALL": "C"})

    def letters(self) -> list[dead.DeadLetter]:
        """What lies in crawl.dead."""
        start, end = log_bounds(self.settings, "crawl.dead", [0])[0]
        records = read_records(self.settings, "crawl.dead", 0, start, end)
        return [dead.from_headers(headers_of(record), record.key(), record.value()) for record in records]

    def buried(self) -> set[tuple[str, bytes | None]]:
        """Topics and values of what lies there."""
        return {(letter.topic, letter.value) for letter in self.letters()}


def headers_of(record: Message) -> dict[str, bytes]:
    """A record's headers by name."""
    return dict(cast("list[tuple[str, bytes]]", record.headers() or []))


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A crawl that waits for work."""
    running = Up(tmp_path)
    with running.site:
        running.pages = len(running.site.urls())
        running.command("up")
        running.config.write_text(running.command("kcat-config"))
        yield running
        running.command("down")


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def seed(url: str) -> bytes:
    """The simplest record there is."""
    return json.dumps({"url": url}).encode()


@pytest.mark.long
def test_records_of_kcat_are_crawled_wherever_they_land_and_its_garbage_is_a_dead_letter(up: Up) -> None:
    """Three kinds of garbage on each topic. Without a key, under kcat's own partitioner, and in each partition by hand:
    one crawl of each host, whole.
    """
    garbage = (b"\xff\xfe not text", b'{"v": 99, "urls": []}', b'{"no": "sense"}')
    thrown = set()
    for topics in (
        STREAMS,
        SIDES,
    ):  # garbage on the side topics is found by a worker that runs: the first letters say so
        for topic in topics:
            for value in garbage:
                up.kcat(topic, value, "-k", "job/x", "-p", "0")
                thrown.add((f"crawl.{topic}", value))
        until(lambda: not thrown - up.buried(), "dead letters")
    first, second, third, fourth = up.site.seeds
    up.kcat("urls", seed(first))
    up.kcat("urls", seed(second), "-k", "a key of no meaning")
    for partition in range(4):
        up.kcat("urls", seed(third), "-p", str(partition))
    up.kcat("urls", fourth.encode())
    until(lambda: up.site.stats().unique == up.pages, "every page")
    assert up.site.stats().duplicates == 0
    assert up.buried() == thrown
    assert all(letter.error and letter.offset >= 0 for letter in up.letters())
