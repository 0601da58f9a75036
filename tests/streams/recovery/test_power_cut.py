"""After a power cut: what a done names and crawl.pages has no more is queued again, once; pages are parsed again."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.streams import groups
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import consumer_config, kafka_config, log_bounds, log_identity
from crawlog.streams.engine import broker
from crawlog.streams.groups.commits import OURS
from crawlog.streams.log import provision, topics
from crawlog.streams.log.read import read_records
from crawlog.streams.recovery import power_cut
from crawlog.streams.recovery.power_cut import after_power_cut, fetch_unread
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.state.restore import Restorer
from crawlog.streams.url.place import Places
from tests.support.kept_log import KeptLog

SPEC = u.JobSpec(scope=u.ScopeSpec(kind="any"), max_depth=5)
PLACES = Places(8)
SITE = next(f"http://site{n}.com" for n in range(99) if PLACES.of(f"http://site{n}.com/").partition == 0)
FOUNDS = [u.FoundUrl(f"{SITE}/{n}", depth=2, source="link", hops=n, parent=f"{SITE}/") for n in range(3)]


def done(number: int, page: int) -> u.Result:
    """One of a URL that the second record found."""
    return u.Result(FOUNDS[number].url, (1 << 16) + number, "fetched", http=200, depth=2, at=2.0, page=(0, page))


def write(settings: Settings, names: topics.Topics) -> None:
    """A log whose last page did not get to the disk: two of three dones are of pages that are there."""
    producer = Producer(kafka_config(settings) | {"linger.ms": 0})
    for record in (
        u.UrlsRecord(job="j", spec=SPEC),
        u.UrlsRecord(job="j", urls=FOUNDS),
        u.UrlsRecord(job="j", results=[done(0, 0), done(1, 1), done(2, 2)]),
    ):
        producer.produce(names.urls, u.encode(record), partition=0)
    for number in range(2):
        header = pg.encode(pg.PageMeta(FOUNDS[number].url, "j", http=200))
        producer.produce(names.pages, b"page", partition=0, headers=[(pg.HEADER, header)])
    assert producer.flush(30) == 0
    consumer = Consumer(consumer_config(settings, topics.stage_group(settings, "parse")))
    consumer.commit(offsets=[TopicPartition(names.pages, 0, 2, OURS)], asynchronous=False)
    consumer.close()


@pytest.mark.broker
def test_a_page_that_is_gone_is_fetched_again(cluster: Settings, tmp_path: Path) -> None:
    """Its URL is queued as it was found, once, however often this is done; all else stays."""
    provision.ensure_topics(cluster)
    names = topics.Topics(cluster.kafka.prefix)
    write(cluster, names)
    said: list[str] = []
    after_power_cut(cluster, said.append)
    after_power_cut(cluster, said.append)
    assert said[1] == "pages gone, fetched again: 1; pages parsed again: 2"
    assert said[3] == "pages gone, fetched again: 0; pages parsed again: 0"
    low, end = log_bounds(cluster, names.urls, [0])[0]
    last = u.decode(list(read_records(cluster, names.urls, 0, low, end))[-1].value())
    assert [(one.url, one.hops, one.again) for one in last.urls or ()] == [(f"{SITE}/2", 2, "fetched")]
    held = groups.held(Admin(cluster), groups.Group(topics.stage_group(cluster, "parse"), "parse", names.pages))
    assert held[0].committed == 0
    state = Partition(tmp_path / "0", 0, PLACES, log_identity(cluster, names.urls), StateMemory(8), 64)
    Restorer(cluster, names.urls).restore([state], lambda *_: None, lambda _: None)
    counts = state.fold.jobs["j"].counts
    assert (counts.fetched, counts.queued, counts.seen) == (2, 1, 1)
    state.close()


@pytest.mark.parametrize(("boot", "is_lost"), [("this", False), ("another", True), (None, False)])
def test_a_power_cut_shows_by_the_boot_of_a_broker_that_never_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str | None, is_lost: bool
) -> None:
    """A kill leaves the same note, of this boot; a clean stop none; one without a boot says nothing."""
    monkeypatch.setattr(broker, "boot_id", lambda: "this")
    assert not broker.lost_power(tmp_path)
    note = {"pid": 1, "started": 0.0} | ({"boot": boot} if boot else {})
    (tmp_path / "broker.json").write_text(json.dumps(note))
    assert broker.lost_power(tmp_path) is is_lost


def test_pages_that_went_before_parse_read_them_are_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they were found, in their partition. A second call asks for none; a page that came since needs none."""
    log, names = KeptLog(), topics.Topics(Settings().kafka.prefix)
    log.serve(monkeypatch, "crawlog.streams.recovery.newest_pages", power_cut.__name__)
    for record in (
        u.UrlsRecord(job="j", urls=FOUNDS),
        u.UrlsRecord(job="j", epoch=2, results=[done(0, 0), done(1, 1), done(2, 2)]),
        u.UrlsRecord(job="j", epoch=2, results=[done(1, 5)]),
    ):
        log.write(names.urls, u.encode(record), partition=3)
    assert fetch_unread(Settings(), {3: range(2)}) == 1
    assert fetch_unread(Settings(), {3: range(2)}) == 0
    written = u.decode(log.last(names.urls, 3))
    assert (written.job, written.epoch) == ("j", 2)
    assert [(one.url, one.depth, one.hops, one.again) for one in written.urls or ()] == [(f"{SITE}/0", 2, 0, "fetched")]
