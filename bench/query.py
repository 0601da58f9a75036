"""Query: SQL over a log of a million rows and a million pages, the first time and again.

    python -m bench.query            full size; writes its section of RESULTS.md
    python -m bench.query --short    a hundredth of it

The log is on a real broker: rows of eight columns (numbers, texts, a list), one a record, every hundredth page parsed
again; pages with a body of 200 bytes. Each query is a command of its own, from its start to its end: the first time,
the second time, and after a thousand more records. CPU is that of the command, not the broker's.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from confluent_kafka import Producer

from bench.results import options_of, run_as, section, table, versions
from crawlog.schemas import items, pages
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.control import write_job
from crawlog.streams.engine import engine
from crawlog.streams.log import CommandProducer, Topics, ensure_topics
from crawlog.streams.settings.settings import Settings
from tests.support.synthetic_site import WORK

ROWS = 1_000_000
MORE = 1_000
SECOND_S = 2.0
"""Time of the second query on a million rows, at most, seconds."""

DATA = WORK / "query" / "data"

QUERIES = {
    "rows: count, mean": "SELECT count(*), avg(price) FROM rows",
    "rows: groups of a text": "SELECT category, count(*) AS n, max(price) FROM rows GROUP BY 1 ORDER BY n DESC LIMIT 5",
    "rows: the ten dearest": "SELECT url, title, price FROM rows ORDER BY price DESC LIMIT 10",
    "pages: by status": "SELECT status, count(*), sum(bytes) FROM pages GROUP BY 1",
}


class Cost(NamedTuple):
    """Seconds of a command."""

    wall_s: float
    cpu_s: float


class Times(NamedTuple):
    """The costs of one query."""

    query: str
    first: Cost
    second: Cost
    more: Cost


def records(start: int, end: int) -> Iterator[tuple[ItemsRecord, PageMeta]]:
    """Items and pages by number; every hundredth page is the one before, parsed again."""
    for number in range(start, end):
        page = number - number % 100 // 99
        url = f"https://shop{page % 997}.example/products/{page}"
        row = {
            "url": url,
            "title": f"Product {page} of a shop with long titles",
            "price": page * 7919 % 100_000 / 100,
            "stock": page % 50,
            "category": f"category {page % 40}",
            "is_new": page % 3 == 0,
            "tags": ["a", "b"],
            "sku": f"{page:012d}",
        }
        record = ItemsRecord("bench", url, (page % 8, page), [msgspec.Raw(msgspec.json.encode(row))])
        yield record, PageMeta(url, "bench", http=404 if page % 50 == 0 else 200, content_type="text/html", took_s=0.1)


def write(settings: Settings, start: int, end: int) -> None:
    """Puts records into the log."""
    topics = Topics(settings.kafka.prefix)
    producer = Producer(kafka_config(settings) | {"linger.ms": 50, "compression.type": "lz4"})
    for item, page in records(start, end):
        partition = item.page[0]
        for topic, value, headers in (
            (topics.items, items.encode(item), []),
            (topics.pages, b"x" * 200, pages.headers(page)),
        ):
            while True:
                try:
                    producer.produce(topic, value, items.key(item.job, item.url), partition, headers=dict(headers))
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0


def cost(sql: str) -> Cost:
    """What a command takes."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "crawlog", "query", sql, "--data", str(DATA)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    """Measures; 1 when a second query takes too long at full size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a hundredth of the size; nothing is written")
    args = options_of(parser)
    count = ROWS // 100 if args.short else ROWS
    shutil.rmtree(DATA.parent, ignore_errors=True)
    settings = Settings()
    broker = engine.start(settings, DATA, lambda line: print(line, file=sys.stderr))
    try:
        at = broker.point(settings)
        ensure_topics(at)
        write_job(at, CommandProducer(at, "bench"), Topics(at.kafka.prefix), "bench", JobSpec())
        write(at, 0, count)
        first = {name: cost(sql) for name, sql in QUERIES.items()}
        second = {name: cost(sql) for name, sql in QUERIES.items()}
        more = {}
        for number, (name, sql) in enumerate(QUERIES.items()):
            write(at, count + number * MORE, count + (number + 1) * MORE)
            more[name] = cost(sql)
        size_mb = sum(path.stat().st_size for path in (DATA / "query").rglob("*.parquet")) / 1e6
    finally:
        broker.stop()
        shutil.rmtree(DATA.parent, ignore_errors=True)
    found = [Times(name, first[name], second[name], more[name]) for name in QUERIES]
    body = report(found, count, size_mb)
    print(body)
    if args.write:
        shape = (
            f"{count:,} rows and as many pages in eight partitions; whole commands; the first query of a table reads it"
        )
        facts = {
            "run": run_as("query"),
            "shape": shape,
            "load": f"{os.getloadavg()[0]:.0f} in the last minute, this included",
            "versions": ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "duckdb", "pyarrow"]).items()),
        }
        section("query", "SQL over a million rows", body, facts)
    return 1 if not args.short and any(one.second.wall_s > SECOND_S for one in found) else 0


def report(found: list[Times], count: int, size_mb: float) -> str:
    """The table."""
    head = ["query; s (CPU s)", "first", "second", f"after {MORE:,} more"]
    rows = [[one.query, *(f"{took.wall_s:.1f} ({took.cpu_s:.1f})" for took in one[1:])] for one in found]
    missed = [
        f"{one.query}: {one.second.wall_s:.1f} s the second time, ≤ {SECOND_S:.0f} wanted"
        for one in found
        if one.second.wall_s > SECOND_S
    ]
    judged = "\n".join(missed) if missed else "All goals reached."
    return f"{table(head, rows)}\n\nKept: {size_mb:,.0f} MB of Parquet for {count:,} rows and pages.\n{judged}"


if __name__ == "__main__":
    sys.exit(main())
