"""Small jobs on a fleet that stays: one after another, then side by side, under one `crawlog up`.

    python -m bench.service_jobs                200 jobs of 5 pages, both ways
    python -m bench.service_jobs --jobs 20      fewer

The default spider, delay 0. Measured for each job: from the submission to its first request at the site, and to its end
in crawl.control; for each worker: its resident memory at the half and at the end of each way.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench.results import table
from crawlog.agents.seed import Source, plant
from crawlog.schemas import control
from crawlog.schemas.control import Finished
from crawlog.streams.cluster import consumer_config, log_end
from crawlog.streams.log import Producer, Topics
from crawlog.streams.settings import load
from crawlog.streams.settings.settings import Settings
from tests.support.processes import crawlog
from tests.support.sites import Answer, Threaded

PAGES = 5

LIMIT_S = 300.0
"""For the end of a way, beside two seconds a job."""

CHOSEN = {"network.allow_private": True, "robots.obey": False, "politeness.delay_s": 0.0}


class Pages:
    """A site with `PAGES` pages a job; it notes when each job's first one is asked for."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.asked = 0
        self._server = Threaded(self._answer)
        self.origin = self._server.origin

    def _answer(self, path: str) -> Answer:
        self.asked += 1
        _, job, number = path.split("/")
        self.first.setdefault(job, time.monotonic())
        after = int(number) + 1
        link = f'<a href="/{job}/{after}">on</a>' if after <= PAGES else ""
        return 200, "text/html", f"<title>{number}</title>{link}".encode()

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


class Ends:
    """The ends that crawl.control gets from now on."""

    def __init__(self, settings: Settings) -> None:
        topic = Topics(settings.kafka.prefix).control
        self._consumer = Consumer(consumer_config(settings))
        self._consumer.assign([TopicPartition(topic, 0, log_end(settings, topic))])
        self.at: dict[str, float] = {}
        self.pages: dict[str, int] = {}

    def poll(self, wait_s: float) -> None:
        """Takes those that are there."""
        for message in self._consumer.consume(1_000, wait_s):
            if message.error() is not None:
                continue
            record = control.decode(message.key(), message.value())
            if isinstance(record, Finished):
                self.at[record.job] = time.monotonic()
                self.pages[record.job] = record.counts.fetched if record.counts else 0

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()


class Way(NamedTuple):
    """What one way of submitting jobs has given.

    Attributes:
        finished: Jobs that ended with all their pages.
        first_s, end_s: From each submission to the first request, and to the end; sorted.
        rss: By worker, memory at the half and at the end, bytes.
    """

    name: str
    jobs: int
    finished: int
    took_s: float
    first_s: list[float]
    end_s: list[float]
    rss: dict[str, tuple[int, int]]


@contextmanager
def fleet(folder: Path) -> Iterator[Settings]:
    """`crawlog up` on a folder of its own, and the settings that lead to its broker."""
    pairs = [word for key, value in CHOSEN.items() for word in ("-s", f"{key}={json.dumps(value)}")]
    up = crawlog("up", "--data", folder, *pairs)
    _, err = up.communicate()
    if up.returncode:
        raise SystemExit(err)
    try:
        from crawlog.streams import engine

        settings = load(CHOSEN | {"run.data": str(folder)})
        broker = engine.running(folder)
        assert broker is not None
        yield broker.point(settings)
    finally:
        crawlog("down", "--data", folder).communicate()


def memory(folder: Path) -> dict[str, int]:
    """Resident memory of each worker, bytes."""
    holder = json.loads((folder / "run" / "holder.json").read_text())
    return {name: psutil.Process(pid).memory_info().rss for name, pid in holder["workers"].items()}


def measured(name: str, count: int, site: Pages, settings: Settings, *, together: bool) -> Way:
    """Submits jobs, each once the one before it has ended or all at once, and follows them to their ends."""
    producer, ends, sent = Producer(settings, "bench"), Ends(settings), dict[str, float]()
    began = time.monotonic()
    half: dict[str, int] = {}
    jobs = [f"{name}-{number}" for number in range(count)]

    def until(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not is_so() and time.monotonic() < deadline:
            ends.poll(0.02)

    for number, job in enumerate(jobs):
        sent[job] = time.monotonic()
        plant(settings, producer, job, Source([f"{site.origin}/{job}/1"]), report=lambda _: None)
        if not together:
            until(partial(ends.at.__contains__, job))
        if number + 1 == max(count // 2, 1):
            half = memory(settings.run.data)
    until(lambda: len(ends.at) == count)
    took_s = time.monotonic() - began
    ends.close()
    last = memory(settings.run.data)
    return Way(
        name,
        count,
        sum(ends.pages.get(job) == PAGES for job in jobs),
        took_s,
        sorted(site.first[job] - sent[job] for job in jobs if job in site.first),
        sorted(ends.at[job] - sent[job] for job in jobs if job in ends.at),
        {worker: (half[worker], now) for worker, now in last.items() if worker in half},
    )


def both(count: int) -> list[Way]:
    """One after another, then side by side, on one fleet."""
    folder, site = Path(tempfile.mkdtemp(prefix="crawlog-jobs-")), Pages()
    try:
        with fleet(folder / "data") as settings:
            warm = measured("warm", 2, site, settings, together=False)
            assert warm.finished == warm.jobs, warm
            return [
                measured("after", count, site, settings, together=False),
                measured("beside", count, site, settings, together=True),
            ]
    finally:
        site.close()
        shutil.rmtree(folder, ignore_errors=True)


def shown(ways: list[Way]) -> str:
    """The ways as a table."""
    rows = []
    for way in ways:
        growth = ", ".join(f"{name} {last / half - 1:+.1%}" for name, (half, last) in sorted(way.rss.items()))
        first = f"{statistics.median(way.first_s):.2f} / {way.first_s[-1]:.2f}" if way.first_s else "-"
        end = f"{statistics.median(way.end_s):.2f} / {way.end_s[-1]:.2f}" if way.end_s else "-"
        rows.append((way.name, f"{way.finished} of {way.jobs}", f"{way.took_s:.1f}", first, end, growth))
    return table(("way", "finished", "s", "first request s", "end s", "memory, second half"), rows)


def main() -> int:
    """1 when a job did not end with all its pages."""
    parser = argparse.ArgumentParser(prog="python -m bench.service_jobs")
    parser.add_argument("--jobs", type=int, default=200)
    ways = both(parser.parse_args().jobs)
    print(shown(ways))
    return int(any(way.finished != way.jobs for way in ways))


if __name__ == "__main__":
    sys.exit(main())
