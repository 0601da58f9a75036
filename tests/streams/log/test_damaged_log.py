"""A log whose files were changed: every reader says where, and none goes on behind it."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import OFFSET_END, KafkaError, Message, Producer, TopicPartition

from crawlog.agents.control import ControlThread
from crawlog.agents.parse.stored_bodies import Bodies
from crawlog.schemas import control, pages, progress
from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta
from crawlog.streams.cluster.client import kafka_config, log_identity
from crawlog.streams.engine.engine import Engine
from crawlog.streams.errors import DamagedLog
from crawlog.streams.fleet import ProgressReader, ReadFault, Tail
from crawlog.streams.fleet import tail as tails
from crawlog.streams.jobs import FleetReports
from crawlog.streams.log import provision, topics
from crawlog.streams.log.read import read_partitions, read_records
from crawlog.streams.recovery.damage import find_cuts
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.state.restore import Restorer
from crawlog.streams.url.place import Places
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.damaging import WAYS, Batch, batches, flip_record

pytestmark = pytest.mark.broker

PLACES = Places(8)
SITE = next(site for n in range(100) if PLACES.of((site := f"http://site{n}.com") + "/").partition == 0)
RECORDS = 12
REST = [way for way in WAYS if way not in ("record", "length")]
"""The others are damages of a batch's head too, as the length is; tests/streams/log/test_check.py has each."""
HURT = 6
"""The batch that is damaged, which holds the record at this offset alone."""


def write(settings: Settings) -> str:
    """Partition 0 of crawl.urls with a record a batch; the topic's name."""
    provision.ensure_topics(settings)
    topic = topics.Topics(settings.kafka.prefix).urls
    producer = Producer(kafka_config(settings))
    spec = u.JobSpec(scope=u.ScopeSpec(kind="any"))
    for number in range(RECORDS):
        record = u.UrlsRecord(job="j", urls=[u.FoundUrl(f"{SITE}/{number}/{n}") for n in range(5)])
        value = u.encode(record if number else u.UrlsRecord(job="j", spec=spec))
        producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0
    return topic


def one(settings: Settings, topic: str, _folder: Path) -> list[int]:
    """`read_records`."""
    return [message.offset() or 0 for message in read_records(settings, topic, 0, 0, RECORDS)]


def several(settings: Settings, topic: str, _folder: Path) -> list[int]:
    """`read_partitions`."""
    return [message.offset() or 0 for message in read_partitions(settings, topic, {0: (0, RECORDS), 1: (0, 0)})]


def restored(settings: Settings, topic: str, folder: Path) -> list[int]:
    """A state that was deleted is folded again."""
    state = Partition(folder / "0", 0, PLACES, log_identity(settings, topic), StateMemory(8), cached_pages=64)
    try:
        Restorer(settings, topic).restore([state], lambda *_: None, lambda _: None, threading.Event())
        return list(range(state.offset))
    finally:
        state.close()


@pytest.mark.parametrize(
    ("reader", "way"),
    [
        *((reader, "record") for reader in (one, several, restored)),
        (one, "length"),
        *(pytest.param(reader, "length", marks=pytest.mark.long) for reader in (several, restored)),
        *(pytest.param(reader, way, marks=pytest.mark.long) for reader in (one, several, restored) for way in REST),
    ],
)
def test_a_damaged_batch_is_said_and_not_read(
    reader: Callable[[Settings, str, Path], list[int]], way: str, cluster: Settings, engine: Engine, tmp_path: Path
) -> None:
    """Its topic, partition and offset; neither invented records nor silence come from it."""
    topic = write(cluster)
    assert reader(cluster, topic, tmp_path / "whole") == list(range(RECORDS))
    hurt: Batch = batches(engine, topic, 0)[HURT]
    assert hurt.offset == HURT
    WAYS[way](hurt)
    with pytest.raises(DamagedLog) as said:
        reader(cluster, topic, tmp_path / "damaged")
    assert (said.value.topic, said.value.partition) == (topic, 0)
    assert HURT <= said.value.offset <= HURT + 3
    assert f"{topic}[0] cannot be read at offset {said.value.offset}" in str(said.value)


def produce(settings: Settings, topic: str, key: bytes | None, value: bytes, header: bytes = b"") -> None:
    """A batch of one record in partition 0."""
    producer = Producer(kafka_config(settings))
    producer.produce(topic, value, key, partition=0, headers=[(pages.HEADER, header)])
    assert producer.flush(30) == 0


async def test_a_worker_does_not_go_on_behind_a_damaged_command(cluster: Settings, engine: Engine) -> None:
    """It would obey no command of that record, while another worker does."""
    provision.ensure_topics(cluster)
    names = topics.Topics(cluster.kafka.prefix)
    command = control.Command("pause", "host", "http://a.com:80")
    for _ in range(3):
        produce(cluster, names.control, control.key(command), control.encode(command))
    flip_record(batches(engine, names.control, 0)[1])
    failures: list[Exception] = []

    ControlThread(cluster, names, lambda _: None, failed=failures.append).start(asyncio.get_running_loop())
    async with asyncio.timeout(60):
        while not failures:  # noqa: ASYNC110  # a thread tells it
            await asyncio.sleep(0.01)
    assert isinstance(failures[0], DamagedLog)
    assert (failures[0].topic, failures[0].offset) == (names.control, 1)


class OneReport:
    """A consumer of crawl.progress whose next report is damaged."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.began_at: list[int] = []

    def consume(self, *_: object) -> list[Message]:
        """The error."""
        return [Message(topic=self.topic, partition=0, offset=7, error=KafkaError(KafkaError._BAD_MSG))]

    def assign(self, places: list[TopicPartition]) -> None:
        """Read on from there."""
        self.began_at += [place.offset for place in places]

    incremental_assign = assign

    def incremental_unassign(self, *_: object) -> None:
        """Read no more."""


def test_a_damaged_report_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one replaces it within a second, so no worker and no run ends for it."""
    names = topics.Topics("crawl.")
    consumer = OneReport(names.progress)
    monkeypatch.setattr(tails, "Consumer", lambda _: consumer)
    tail = Tail(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), {names.progress: 7})
    (fault,) = tail.poll(0.0)
    assert isinstance(fault, ReadFault)
    assert isinstance(fault.error, DamagedLog)
    assert consumer.began_at == [7, OFFSET_END]


def report(settings: Settings, partition: int) -> None:
    """A report of progress, in a batch of its own."""
    one = progress.Progress(f"parse-{partition}", "parse", partition, 0.0, offset=7 + partition)
    topic = topics.Topics(settings.kafka.prefix).progress
    produce(settings, topic, b"parse/%d" % partition, msgspec.json.encode(one))


@pytest.mark.parametrize("way", ["record", *(pytest.param(way, marks=pytest.mark.long) for way in ("length", *REST))])
def test_damaged_reports_keep_no_cut_from_being_found(
    way: str, cluster: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before them, and behind them if they can be read, tell how far workers were; the damage is said once."""
    monkeypatch.setattr(
        "crawlog.streams.log.read.CLUSTER_TIMEOUT_S", 3.0
    )  # a broker that cannot read its file is silent
    monkeypatch.setattr("crawlog.streams.log.read.AROUND_S", 5.0)
    provision.ensure_topics(cluster)
    names = topics.Topics(cluster.kafka.prefix)
    for partition in range(4):
        report(cluster, partition)
    WAYS[way](batches(engine, names.progress, 0)[2])
    said: list[str] = []
    found = {(cut.topic, cut.partition, cut.known) for cut in find_cuts(cluster, names, said.append)}
    assert {(names.pages, 0, 7), (names.pages, 1, 8)} <= found
    assert (names.pages, 2, 9) not in found
    assert ((names.pages, 3, 10) in found) or way != "record"
    assert len(said) == 1
    assert said[0].startswith(f"{names.progress}[0] is damaged at offset ")


def test_reports_are_heard_behind_damage_that_the_broker_cannot_read(
    cluster: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is silent from each place before its next index entry, so the newest ones are asked for."""
    monkeypatch.setattr("crawlog.streams.fleet.tail.SILENT_S", 1.0)
    provision.ensure_topics(cluster)
    names = topics.Topics(cluster.kafka.prefix)
    for partition in range(3):
        report(cluster, partition)
    WAYS["length"](batches(engine, names.progress, 0)[2])
    picture = FleetReports()
    until = time.monotonic() + 60
    with closing(ProgressReader(cluster, picture)) as watch:
        while not picture.newest and time.monotonic() < until:
            for partition in range(8):
                report(cluster, partition)
            watch.poll(0.1)
    assert picture.newest


def test_a_body_in_a_damaged_batch_counts_as_gone(cluster: Settings, engine: Engine) -> None:
    """Its URL is then fetched again; parse would wait for the body for ever."""
    provision.ensure_topics(cluster)
    topic = topics.Topics(cluster.kafka.prefix).pages
    metas = [PageMeta(f"http://a.com/{n}", "j") for n in range(6)]
    for meta in metas:
        produce(cluster, topic, None, meta.url.encode(), pages.encode(meta))
    flip_record(batches(engine, topic, 0)[3])
    bodies = Bodies(cluster, topic)
    try:
        found = bodies.read({(1, n): msgspec.structs.replace(meta, same_as=(0, n)) for n, meta in enumerate(metas)})
    finally:
        bodies.close()
    assert [body for (_, body) in found.values()] == [f"http://a.com/{n}".encode() for n in range(3)] + [b""] * 3


@needs_site
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["urls", pytest.param("pages", marks=pytest.mark.long)])
def test_a_run_on_a_damaged_log_ends_and_says_so_once(
    kind: str, cluster: Settings, engine: Engine, tmp_path: Path
) -> None:
    """Once its state is gone it folded invented URLs, or its workers were started again for ever without a word."""
    names = topics.Topics(cluster.kafka.prefix)
    topic = names.urls if kind == "urls" else names.pages
    with Cluster(tmp_path, hosts=1, pages=6, settings={"politeness.delay_s": 0.01} | log_of(cluster)) as crawl:
        crawl.start()
        crawl.finish()
        number, hurt = next((n, found) for n in range(8) if len(found := batches(engine, topic, n)) > 1)
        reset = ["replay", "--group", "parse", "--to-earliest", "--execute", f"--data={crawl.data}"]
        assert kind == "urls" or crawlog(crawl, *reset) == 0, crawl.tail()
        flip_record(hurt[-1])
        shutil.rmtree(crawl.data / "state")
        crawl.said.unlink()
        crawl.start(*["--fresh"] * (kind == "urls"))  # else there is nothing to do
        code = crawl.ends(240)
    said = crawl.said.read_text()
    assert code == 65, crawl.tail()
    assert said.count("the log is damaged") == 1
    assert f"{topic}[{number}] cannot be read at offset {hurt[-1].offset}: " in said
    assert "Traceback" not in said


def crawlog(crawl: Cluster, *command: str) -> int:
    """Another command on the same crawl; its exit code."""
    pairs = [f"-s{key}={value}" for key, value in crawl.settings.items() if key.startswith("kafka.")]
    with crawl.said.open("ab") as said:
        ran = subprocess.run(
            [sys.executable, "-m", "crawlog", *command, *pairs], cwd=crawl.folder, stdout=said, stderr=said, check=False
        )
    return ran.returncode
