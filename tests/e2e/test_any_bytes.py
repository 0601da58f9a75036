"""A stranger writes whatever Kafka takes into all ten topics of a fleet: nobody stops, what comes after is whole."""

import json
import shutil
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.engine import engine
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import TOPIC_KINDS
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.any_records import AnyRecords, Seed, send
from tests.support.crawls import PAGES, Numbered, data, site, workers
from tests.support.processes import crawlog, done, ended

__all__ = ["data", "site"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.long]

PARTITIONS = 2
RECORDS = 100_000
PARTS = 4
"""Fleets that get a part each: one test may take four minutes."""

OPTIONS = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0", "-s", f"kafka.partitions={PARTITIONS}"]

COMPACTED = ("control", "progress", "code", "hosts")
"""Topics whose policy is `compact`: Kafka refuses a record without a key."""


COMMANDS = {"jobs": (0,), "jobs logs before": (0,), "dead list": (0,), "verify": (0,), "verify --log": (0, 5)}
"""Commands that read what was written, and their exit codes: what a stranger's done names may be missing."""


def log_of(data: Path) -> Settings:
    """Settings that reach the log of a fleet."""
    running = engine.running(data)
    assert running is not None
    return running.point(load({"kafka.partitions": PARTITIONS}))


def seeds(log: Settings, topic: str) -> list[Seed]:
    """Records of the crawl before."""
    ((start, end),) = log_bounds(log, topic, [0]).values()
    return [
        Seed(one.key(), one.value(), list(one.headers() or []))  # type: ignore[arg-type]  # pairs
        for one in islice(read_records(log, topic, 0, start, end), 300)
    ]


def fuzz(log: Settings, count: int, part: int) -> Iterator[tuple[str, int, Seed]]:
    """As many records for the ten topics, in turn."""
    drawn = []
    for kind in TOPIC_KINDS:
        topic = log.kafka.prefix + kind.name
        drawn.append((kind, topic, AnyRecords(seeds(log, topic), zlib.crc32(f"{part} {kind.name}".encode()))))
    for number in range(count // len(drawn)):
        for kind, topic, records in drawn:
            record = records.draw()
            if kind.name in COMPACTED and record.key is None:
                record = record._replace(key=b"")
            yield topic, number % PARTITIONS if kind.split else 0, record


@pytest.mark.parametrize("part", range(PARTS))
def test_100_000_records_of_any_bytes_in_all_topics_stop_nobody(data: Path, site: Numbered, part: int) -> None:
    """Keys, values and headers without a value, names that are not UTF-8, thousands of headers, mutated JSON: the next
    job is whole, no worker has ended, and new ones fold all of it again; commands that read it end as they should.
    """
    site.holds_from = 1_000_000  # URLs are mutated too
    done(crawlog("up", "--data", data, *OPTIONS))
    begun = workers(data)
    done(crawlog("submit", site.url, *OPTIONS, "--job", "before", "-o", "before.jsonl", "--wait", "--data", data))
    log = log_of(data)
    send(log, fuzz(log, RECORDS // PARTS, part))
    rows = data.parent / "rows.jsonl"
    crawl = crawlog("run", site.url, *OPTIONS, "--job", "after", "-o", rows, "--json", "--data", data)
    code, summary, err = ended(crawl)
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err
    urls = [json.loads(line)["url"] for line in rows.read_text().splitlines()]
    assert sorted(urls) == sorted(f"{site.origin}/{number}" for number in range(1, PAGES + 1))
    assert workers(data) == begun
    done(crawlog("down", "--data", data))
    shutil.rmtree(data / "state")
    done(crawlog("up", "--data", data, *OPTIONS))
    for words, codes in COMMANDS.items():
        code, _, err = ended(crawlog(*words.split(), "--data", data))
        assert code in codes, (words, err)
    assert "killed" not in (data / "logs" / "up.log").read_text()
