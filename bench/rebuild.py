"""Rebuild: a partition's state folded from its log, from offset 0, as after a lost disk and by `crawlog verify`.

    python -m bench.rebuild            full size; writes its section of RESULTS.md
    python -m bench.rebuild --short    a tenth of it

The log is on a real broker: a job, founds as parse writes them (500 URLs a record, 50 links of a page at a time, each
with its parent), two offers of three already known, and a done for each URL queued, 20 a record. An entry is one URL of
a found or a done. CPU of the rebuilding process counts: consumer, fold and RocksDB with all their threads, not the
broker's. It is done twice, exact and with a Bloom filter.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

from confluent_kafka import Producer

from bench.results import options_of, run_as, section, table, versions
from bench.seen import offers, url_of
from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import kafka_config, log_identity
from crawlog.streams.engine import engine
from crawlog.streams.kernel import collect_seldom
from crawlog.streams.log import provision, topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.state.restore import Restorer, bounding
from crawlog.streams.url.place import Places
from tests.support.synthetic_site import WORK

OFFERS = 2_000_000
DISTINCT = 700_000
DONES = 20
"""Results in one record: what a busy worker gathers within 5 ms."""

Dedup = Literal["exact", "bloom"]

PACE = 100_000
"""Entries a CPU second, at least."""


class Result(NamedTuple):
    """Cost of one rebuild."""

    title: str
    records: int
    entries: int
    log_mb: float
    cpu_s: float
    wall_s: float

    @property
    def pace(self) -> float:
        """Entries a CPU second."""
        return self.entries / self.cpu_s


def log(total: int, distinct: int, dedup: Dedup) -> Iterator[tuple[bytes, int]]:
    """Records and the entries in each: what a partition's log holds of a crawl that is two thirds done."""
    spec = u.JobSpec(scope=u.ScopeSpec(kind="any"), dedup=dedup)
    yield u.encode(u.UrlsRecord(job="bench", at=1.0, spec=spec)), 0
    offset = 1
    known: set[int] = set()
    done: list[u.Result] = []
    for chunk in offers(total, distinct, mixed=False):
        for at in range(0, len(chunk), u.MAX_BATCH_URLS):
            batch = chunk[at : at + u.MAX_BATCH_URLS]
            founds = [
                u.FoundUrl(url_of(n, domain), depth=3, source="link", parent=url_of(n // 50, domain))
                for n, domain in batch
            ]
            yield u.encode(u.UrlsRecord(job="bench", at=1.0, urls=founds)), len(founds)
            for index, (number, domain) in enumerate(batch):
                if number not in known:
                    known.add(number)
                    page = (0, len(known))
                    row = (offset << 16) + index
                    done.append(
                        u.Result(url_of(number, domain), row, "fetched", http=200, at=2.0, took_s=0.1, page=page)
                    )
            offset += 1
            while len(done) >= 10_000:  # a while after they were found
                results, done = done[:DONES], done[DONES:]
                yield u.encode(u.UrlsRecord(job="bench", results=results)), len(results)
                offset += 1


def write(settings: Settings, topic: str, total: int, distinct: int, dedup: Dedup) -> tuple[int, int, int]:
    """Put the log into partition 0; records, entries and bytes."""
    producer = Producer(kafka_config(settings) | {"linger.ms": 50, "compression.type": "lz4"})
    records = entries = size = 0
    for value, count in log(total, distinct, dedup):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        records, entries, size = records + 1, entries + count, size + len(value)
    assert producer.flush(60) == 0
    return records, entries, size


def rebuild(settings: Settings, title: str, total: int, distinct: int, dedup: Dedup) -> Result:
    """Fold a partition's log into an empty folder."""
    prefix = f"rebuild-{dedup}."
    settings = settings.model_copy(
        update={"kafka": settings.kafka.model_copy(update={"prefix": prefix, "partitions": 1})}
    )
    provision.ensure_topics(settings)
    topic = topics.Topics(prefix).urls
    records, entries, size = write(settings, topic, total, distinct, dedup)
    folder = WORK / "rebuild" / "state"
    shutil.rmtree(folder, ignore_errors=True)
    memory = StateMemory(settings.state.memory_mb)
    partition = Partition(folder, 0, Places(1), log_identity(settings, topic), memory, settings.state.cached_pages)
    bounded = bounding(settings.state.checkpoint_changes, [partition])
    cpu, wall = time.process_time(), time.monotonic()
    folded = Restorer(settings, topic).restore([partition], lambda *_: None, bounded)
    partition.checkpoint()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    assert folded == {0: records}
    counts = partition.fold.jobs["bench"].counts
    missed = distinct - counts.queued - counts.fetched
    assert 0 <= missed <= (0 if dedup == "exact" else distinct // 10_000), counts  # a Bloom filter errs at its rate
    partition.close()
    return Result(title, records, entries, size / 1e6, cpu, wall)


def report(results: list[Result]) -> str:
    """The table."""
    head = ["rebuild", "records", "URL entries", "log MB", "entries/CPU s", "entries/s"]
    rows = [
        [
            one.title,
            f"{one.records:,}",
            f"{one.entries:,}",
            f"{one.log_mb:,.0f}",
            f"{one.pace:,.0f}",
            f"{one.entries / one.wall_s:,.0f}",
        ]
        for one in results
    ]
    return table(head, rows)


def main() -> int:
    """Measures both ways; 1 when the pace is missed at full size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the size; nothing is written")
    args = options_of(parser)
    scale = 10 if args.short else 1
    data = WORK / "rebuild" / "data"
    shutil.rmtree(data, ignore_errors=True)
    settings = Settings()
    broker = engine.start(settings, data, lambda line: print(line, file=sys.stderr))
    collect_seldom()  # as a worker does
    try:
        at = broker.point(settings)
        results = [
            rebuild(at, "exact", OFFERS // scale, DISTINCT // scale, "exact"),
            rebuild(at, "Bloom filter", OFFERS // scale, DISTINCT // scale, "bloom"),
        ]
    finally:
        broker.stop()
        shutil.rmtree(WORK / "rebuild", ignore_errors=True)
    missed = [
        f"{one.title}: {one.pace:,.0f} entries a CPU second, ≥ {PACE:,} wanted" for one in results if one.pace < PACE
    ]
    body = report(results) + "\n\n" + ("\n".join(missed) if missed else "All goals reached.")
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "rocksdict", "confluent-kafka"]).items())
        shape = "founds of 500 URLs with their parents, two of three known; dones of 20; one partition, from offset 0"
        section(
            "rebuild",
            "Rebuild of a partition",
            body,
            {
                "run": run_as("rebuild"),
                "shape": shape,
                "load": f"{os.getloadavg()[0]:.0f} in the last minute, this included",
                "versions": packages,
            },
        )
    return 1 if missed and not args.short else 0


if __name__ == "__main__":
    sys.exit(main())
