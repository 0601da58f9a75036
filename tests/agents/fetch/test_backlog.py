"""What is known of crawl.pages, and what may be cut from it: only what is parsed, and old."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from crawlog.agents.fetch import backlog
from crawlog.agents.fetch.backlog import PagesLog
from crawlog.streams.cluster.client import consumer_config, log_bounds
from crawlog.streams.fetch.back_pressure import Pressure
from crawlog.streams.groups.commits import Position
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings

MB = 1 << 20


@pytest.mark.parametrize(("unparsed_mb", "allowed"), [(0, 100), (50, 100), (75, 50), (99, 2), (100, 0), (500, 0)])
def test_from_half_the_limit_on_fewer_requests_are_allowed(unparsed_mb: int, allowed: int) -> None:
    """None at the limit."""
    pressure = Pressure(100 * MB)
    pressure.wrote(0, 0, unparsed_mb * MB)
    assert pressure.allowed(100) == allowed


def test_pages_of_another_worker_count_with_our_mean_size() -> None:
    """A new owner has written nothing: it knows records, not bytes."""
    pressure = Pressure(100 * MB)
    pressure.parsed(0, 0, 10)
    assert pressure.unparsed_bytes == 0
    pressure.wrote(0, 10, 3 * MB)
    pressure.parsed(0, 0, 11)
    assert pressure.unparsed_bytes == 33 * MB
    pressure.parsed(0, 11, 11)
    assert pressure.unparsed_bytes == 0


async def test_a_partition_that_went_elsewhere_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new owner counts it; here it would count for ever, as nobody tells how far it is parsed."""
    kept = PagesLog(Settings(), "pages")
    monkeypatch.setattr(kept, "_look", lambda numbers: dict.fromkeys(numbers, (0, 4)))
    kept.pressure.wrote(0, 3, 600 * MB)
    await kept.look([0, 1])
    assert kept.pressure.allowed(100) == 0
    await kept.look([1])
    kept.pressure.wrote(1, 4, MB)
    assert kept.pressure.allowed(100) == 0  # as many as before are foreign, of our mean size
    await kept.look([])
    assert (kept.pressure.unparsed_bytes, kept.pressure.allowed(100)) == (0, 100)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100), st.booleans()), max_size=60))
def test_what_is_parsed_no_longer_counts(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever the order of writes and looks: when all is parsed nothing is left, and it is never less than nothing."""
    pressure = Pressure(MB)
    ends: dict[int, int] = {}
    for partition, size, look in steps:
        end = ends.get(partition, 0)
        if look:
            pressure.parsed(partition, min(size, end), end)
        else:
            pressure.wrote(partition, end, size)
            ends[partition] = end + 1
        assert pressure.unparsed_bytes >= 0
        assert pressure.unparsed_pages >= 0
    for partition, end in ends.items():
        pressure.parsed(partition, end, end)
    assert (pressure.unparsed_bytes, pressure.unparsed_pages) == (0, 0)


def ahead(pages: int, pace: int) -> Pressure:
    """So many small pages unparsed, of a parse that takes so many a second."""
    pressure = Pressure(100 * MB)
    for second in range(10):
        pressure.parsed(0, second * pace, 10 * pace)
        pressure.looked(float(second))
    for offset in range(pages):
        pressure.wrote(0, 10 * pace + offset, 1)
    pressure.parsed(0, 10 * pace, 10 * pace + pages)
    return pressure


@pytest.mark.parametrize(("pages", "allowed"), [(0, 100), (2000, 100), (3000, 50), (3960, 2), (4000, 1), (9000, 1)])
def test_fetching_keeps_to_the_pace_of_parse(pages: int, allowed: int) -> None:
    """Two seconds ahead it slows, four ahead it asks for one page at a time, so that it never stands."""
    assert ahead(pages, pace=1000).allowed(100) == allowed


def test_a_parse_that_is_away_or_slow_is_not_waited_for() -> None:
    """While it takes nothing the limit of bytes alone holds, and a few pages are few at any pace."""
    assert ahead(9000, pace=0).allowed(100) == 100
    assert ahead(512, pace=1).allowed(100) == 100
    assert Pressure(MB).allowed(100) == 100


def test_who_takes_over_begins_at_the_commit_and_is_waited_for() -> None:
    """What its predecessor had in hand counts again, with the mean size, until it is taken again; then no more."""
    pressure = Pressure(100 * MB)
    for offset in range(80):
        pressure.wrote(0, offset, MB)
    pressure.parsed(0, 75, 80)
    assert (pressure.unparsed_bytes, pressure.allowed(100)) == (5 * MB, 100)
    pressure.parsed(0, 10, 80)
    assert (pressure.unparsed_bytes, pressure.allowed(100)) == (70 * MB, 60)
    pressure.wrote(0, 80, MB)
    pressure.parsed(0, 81, 81)
    assert pressure.unparsed_bytes == 0


class Trimmed:
    """Stands in for the cluster: what offsets a time has, and what was cut."""

    def __init__(self, young_from: dict[int, int]) -> None:
        self.young_from = young_from
        self.cut: dict[int, int] = {}
        self.asked_ms: set[int] = set()
        self.errors: dict[int, KafkaError] = {}

    def offsets_for_times(self, times: list[TopicPartition], _timeout: float) -> list[Any]:
        """The first offset that is as young; -1 where all are older."""
        self.asked_ms |= {place.offset for place in times}
        return [self._young(place.partition) for place in times]

    def _young(self, partition: int) -> Any:
        return SimpleNamespace(partition=partition, offset=self.young_from[partition], error=self.errors.get(partition))

    def __call__(self, _config: dict[str, Any]) -> "Trimmed":
        """As an admin client."""
        return self

    def delete_records(self, places: list[TopicPartition]) -> dict[TopicPartition, Any]:
        """Cut."""
        self.cut = {place.partition: place.offset for place in places}
        return {}


def test_only_what_is_parsed_and_old_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by time alone: what is not parsed stays, however old; and what is parsed stays for its days."""
    cluster = Trimmed({0: 10, 1: 10, 2: -1, 3: 0})
    monkeypatch.setattr(backlog, "AdminClient", cluster)
    monkeypatch.setattr("crawlog.agents.fetch.backlog.kafka_config", lambda _: {})
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    PagesLog(Settings(), "pages")._trim(cluster, {0: 7, 1: 12, 2: 5, 3: 9})  # type: ignore[arg-type]  # as much of a cluster as is asked
    assert cluster.cut == {0: 7, 1: 10, 2: 5, 3: 0}
    assert cluster.asked_ms == {(1_000_000 - 7 * 86_400) * 1000}


def test_nothing_is_cut_while_nobody_knows_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without an answer has an offset that means: all are older."""
    cluster = Trimmed({0: 10, 1: -1})
    cluster.errors[1] = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    monkeypatch.setattr(backlog, "AdminClient", cluster)
    monkeypatch.setattr("crawlog.agents.fetch.backlog.kafka_config", lambda _: {})
    with pytest.raises(KafkaException):
        PagesLog(Settings(), "pages")._trim(cluster, {0: 7, 1: 12})  # type: ignore[arg-type]  # as above
    assert cluster.cut == {}


@pytest.fixture
def log_of_pages(cluster: Settings, tmp_path: Path) -> Iterator[tuple[Settings, PagesLog]]:
    """Ten pages in one partition, four of them parsed, three in hand; pages are old at once."""
    settings = cluster.model_copy(update={"log": cluster.log.model_copy(update={"pages_keep_days": 1e-9})})
    ensure_topics(settings)
    topic = Topics(settings.kafka.prefix).pages
    producer = Producer(settings, "test")
    for _ in range(10):
        producer.send(topic, b"x" * 100, partition=3)
    assert producer.flush(10)
    parse = Consumer(consumer_config(settings, group=stage_group(settings, "parse")))
    parse.commit(offsets=[TopicPartition(topic, 3, 4, metadata=Position(4, 7).metadata)], asynchronous=False)
    parse.close()
    kept = PagesLog(settings, topic)
    yield settings, kept
    kept.close()


@pytest.mark.broker
async def test_a_look_learns_how_far_parse_is_and_cuts_what_is_old(
    log_of_pages: tuple[Settings, PagesLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real cluster: three of ten pages are to be waited for, but those in hand are not cut."""
    settings, kept = log_of_pages
    kept.pressure.wrote(3, 9, 100)
    await kept.look([3])
    assert kept.pressure.unparsed_bytes == 100 + 2 * 100
    topic = Topics(settings.kafka.prefix).pages
    assert log_bounds(settings, topic, [3])[3] == (0, 10), "it is not looked for old pages each time"
    monkeypatch.setattr(backlog, "TRIM_S", 0.0)
    await kept.look([3])
    assert log_bounds(settings, topic, [3])[3] == (4, 10)


async def test_a_look_at_nothing_asks_nobody() -> None:
    """A worker without partitions needs no connection."""
    await PagesLog(Settings(), "nowhere").look([])
