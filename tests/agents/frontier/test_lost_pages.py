"""Dones of pages that have none, from a real log."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from crawlog.agents.frontier import restoring
from crawlog.agents.frontier.restoring import LostPages
from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.errors import DamagedLog
from crawlog.streams.log import provision, topics
from crawlog.streams.log.read import read_partitions
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places
from tests.support.folding import State, done, job, sequence

PLACES = Places(8)


def home(number: int, count: int) -> list[str]:
    """URLs that belong to a partition."""
    sites = (f"http://site{n}.com/" for n in range(10_000))
    return [site for site in sites if PLACES.of(site).partition == number][:count]


class Lost:
    """States in memory and a log of pages."""

    def __init__(self, settings: Settings) -> None:
        provision.ensure_topics(settings)
        self.settings = settings
        self.names = topics.Topics(settings.kafka.prefix)

    def write(self, number: int, *metas: pg.PageMeta | None) -> None:
        """Append pages; None is a record that is no page."""
        producer = Producer(kafka_config(self.settings) | {"linger.ms": 0})
        for meta in metas:
            headers: list[tuple[str, str | bytes | None]] = [(pg.HEADER, pg.encode(meta))] if meta is not None else []
            producer.produce(self.names.pages, b"x" * 30_000, partition=number, headers=headers)
        assert producer.flush(30) == 0

    def state(self, number: int) -> State:
        """A state with eight URLs queued."""
        queued = [u.FoundUrl(url) for url in home(number, 8)]
        found = u.encode(u.UrlsRecord(job="j", urls=queued))
        return State(job(), found, places=PLACES, partition=number)

    def dones(self, *states: State) -> list[tuple[int, list[Any]]]:
        """The pages that the missing dones name, by partition."""
        partitions: Any = [SimpleNamespace(number=one.partition, fold=one.fold) for one in states]
        made = LostPages(self.settings, self.names).dones(partitions, PLACES)
        return [(number, [result.page for result in record.results or ()]) for number, record in made]


def page(number: int, index: int) -> pg.PageMeta:
    """The page of a URL of a partition."""
    return pg.PageMeta(home(number, 8)[index], "j", http=200, row=sequence(1, index))


@pytest.mark.broker
def test_pages_behind_the_newest_done_are_read_in_all_partitions(cluster: Settings) -> None:
    """Robots.txt and records that are no pages are passed over; a partition with nothing queued is not read."""
    lost = Lost(cluster)
    one, two, idle = lost.state(1), lost.state(2), State(job(), places=PLACES, partition=3)
    lost.write(1, *(page(1, index) for index in range(3)), None, pg.PageMeta("http://x.com/", "j", kind="robots"))
    lost.write(1, page(1, 3), page(1, 3))
    lost.write(2, page(2, 0), page(2, 1))
    lost.write(3, page(3, 0))
    one.take(done(home(1, 1)[0], sequence(1), page=(1, 0)))
    assert lost.dones(one, two, idle) == [(1, [(1, 1), (1, 2), (1, 5)]), (2, [(2, 0), (2, 1)])]


@pytest.mark.broker
def test_a_restart_without_such_pages_reads_none(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long crawl.pages is: 100 pages of 30 kB lie before the newest done."""
    read: list[int | None] = []

    def counted(*where: Any) -> Iterator[Message]:
        for message in read_partitions(*where):
            read.append(message.offset())
            yield message

    monkeypatch.setattr(restoring, "read_partitions", counted)
    lost = Lost(cluster)
    state = lost.state(1)
    lost.write(1, *(page(1, 0) for _ in range(100)))
    state.take(done(home(1, 1)[0], sequence(1), page=(1, 99)))
    assert lost.dones(state) == []
    assert read == []


def test_a_log_that_cannot_be_read_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URLs are requested again then."""

    def damaged(*_: Any) -> dict[int, tuple[int, int]]:
        raise DamagedLog("crawl.pages", 1, 7, "bad crc")

    monkeypatch.setattr(restoring, "log_bounds", damaged)
    state = State(job(), u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl("http://a.com/")])))
    partitions: Any = [SimpleNamespace(number=0, fold=state.fold)]
    assert LostPages(Settings(), topics.Topics("")).dones(partitions, Places(1)) == []
