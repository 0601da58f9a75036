"""An archive that is filled from a log: what of crawl.pages comes in, and what becomes of the rest."""

import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from crawlog.schemas import pages
from crawlog.schemas.dead import DeadLetter
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink import sink_of
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.warc import PageArchiver
from tests.support.warcs import META, indexed, urls, written

pytestmark = pytest.mark.broker

FULL = JobSpec(full_headers=True)


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


class Log:
    """The pages of a log, written by a test."""

    def __init__(self, settings: Settings) -> None:
        ensure_topics(settings)
        self.settings = settings
        self.topic = Topics(settings.kafka.prefix).pages
        self.producer = Producer(settings, "test")

    def page(self, number: int, body: bytes = b"", partition: int = 0, **changed: object) -> None:
        """A page of the job `news`, with a URL of its own."""
        meta = msgspec.structs.replace(META, **({"url": f"http://a.com/{number}", "headers": ()} | changed))
        self.raw(pages.headers(meta), body or f"body {number}".encode(), partition)

    def raw(self, headers: list[tuple[str, bytes]], body: bytes = b"", partition: int = 0) -> None:
        """Any record."""
        self.producer.send(self.topic, body, key=b"a.com", partition=partition, headers=headers)

    def archiver(
        self, folder: Path, dead: list[DeadLetter] | None = None, spec: SinkSpec | None = None
    ) -> PageArchiver:
        """Of all that was written."""
        assert self.producer.flush(30)
        bury = (dead if dead is not None else []).extend
        return PageArchiver(self.settings, spec or sink_of("news", f"warc:{folder}"), FULL, bury)

    def fill(self, folder: Path, dead: list[DeadLetter] | None = None) -> str:
        """Bring all in, and close; returns the line for the user."""
        with closing(self.archiver(folder, dead)) as archiver:
            archiver.fill()
            archiver.finish()
            return archiver.note

    def delete(self, partition: int, end: int) -> None:
        """Retention: the records before an offset are gone."""
        place = TopicPartition(self.topic, partition, end)
        admin = AdminClient(kafka_config(self.settings))
        for future in admin.delete_records([place]).values():
            future.result(30)


def test_the_pages_of_a_job_come_in_once_and_nothing_else(tmp_path: Path, cluster: Settings) -> None:
    """Other jobs' pages, garbage and earlier epochs are passed; what would forge records is a dead letter."""
    log, dead = Log(cluster), list[DeadLetter]()
    log.page(1)
    log.page(2, partition=1)
    log.page(3, job="other")
    log.raw([], b"garbage")
    log.raw([(pages.HEADER, b"{")])
    log.page(4, url="http://a.com/\r\nx", headers=())
    log.page(5, http=None, error="dns")
    assert log.fill(tmp_path, dead) == ""
    assert urls(tmp_path) == {"1": 1, "2": 1}
    assert [(one.topic, one.partition, one.offset, one.stage, one.job) for one in dead] == [
        (log.topic, 0, 4, "sink", "news")
    ]
    log.page(6)
    log.fill(tmp_path, dead)
    assert (urls(tmp_path), len(dead)) == ({"1": 1, "2": 1, "6": 1}, 1)
    late = msgspec.structs.replace(sink_of("news", f"warc:{tmp_path / 'late'}"), epoch=1)
    log.page(7, epoch=1)
    with closing(log.archiver(tmp_path, spec=late)) as archiver:
        archiver.fill()
    assert urls(tmp_path / "late") == {"7": 1}


def test_a_file_that_is_gone_is_made_again_from_the_log(tmp_path: Path, cluster: Settings) -> None:
    """And what the log has lost of it meanwhile is counted."""
    log = Log(cluster)
    for number in (1, 2):
        log.page(number)
        log.fill(tmp_path)
    (tmp_path / "news-00000.warc.gz").unlink()
    assert log.fill(tmp_path) == ""
    assert urls(tmp_path) == {"1": 1, "2": 1}
    log.delete(0, 1)
    (tmp_path / "news-00000.warc.gz").unlink()
    (tmp_path / "news-00001.cdxj").write_bytes(b"")
    assert "lost 1 records" in log.fill(tmp_path)
    assert (urls(tmp_path), len(indexed(tmp_path))) == ({"2": 1}, 1)


def test_pages_that_retention_removed_before_they_were_read_are_told(tmp_path: Path, cluster: Settings) -> None:
    """With their number; what is there comes in, and the line stays for later readers."""
    log = Log(cluster)
    log.page(1)
    log.fill(tmp_path)
    for number in (2, 3, 4):
        log.page(number)
    assert log.producer.flush(30)
    log.delete(0, 3)
    for _ in range(2):
        assert "lost 2 records before they were read" in log.fill(tmp_path)
    assert urls(tmp_path) == {"1": 1, "4": 1}


def test_a_304_names_the_older_page_of_the_log(tmp_path: Path, cluster: Settings) -> None:
    """Also where that page is of an archive that was not filled; one that is gone is named by its id alone."""
    log = Log(cluster)
    log.page(1)
    log.page(1, b" ", http=304, status_line="HTTP/1.1 304 x", same_as=(0, 0), epoch=1)
    log.page(1, b" ", http=304, status_line="HTTP/1.1 304 x", same_as=(1, 99), epoch=1)
    log.page(9, b" ", http=304, status_line="HTTP/1.1 304 x", same_as=(0, 0), epoch=1)  # another URL: not that page
    late = msgspec.structs.replace(sink_of("news", f"warc:{tmp_path}"), epoch=1)
    with closing(log.archiver(tmp_path, spec=late)) as archiver:
        archiver.fill()
        assert archiver.pages == 3
    lines = [msgspec.json.decode(line.split(b" ", 2)[2], type=dict[str, str]) for line in indexed(tmp_path)]
    assert ["digest" in one for one in lines] == [True, False, False]
    assert written(tmp_path)["revisit", "http://a.com/1"] == 2


def test_an_archive_begins_with_its_job(tmp_path: Path, cluster: Settings) -> None:
    """Pages of a long time before it was submitted are not read; an hour of clocks that differ is."""
    log = Log(cluster)
    log.page(1)
    assert log.producer.flush(30)
    later = msgspec.structs.replace(FULL, at=time.time() + 7200)
    for name, spec, found in (("a", later, 0), ("b", msgspec.structs.replace(later, at=time.time() + 1800), 1)):
        with closing(PageArchiver(log.settings, sink_of("news", f"warc:{tmp_path / name}"), spec)) as archiver:
            archiver.fill()
            assert archiver.pages == found


def test_a_job_without_headers_has_no_archive(tmp_path: Path, cluster: Settings) -> None:
    """The message names the setting."""
    with pytest.raises(Misconfigured, match=r"pages\.headers=full"):
        PageArchiver(cluster, sink_of("news", f"warc:{tmp_path}"), JobSpec())


def test_a_fill_that_is_ended_goes_on_later(tmp_path: Path, cluster: Settings) -> None:
    """A worker that must go has written whole pages."""
    log, asked = Log(cluster), list[int]()
    for number in range(5):
        log.page(number)

    def goes_on() -> bool:
        asked.append(1)
        return len(asked) <= 2

    with closing(log.archiver(tmp_path)) as archiver:
        archiver.fill(goes_on)
        assert archiver.pages == 2
    assert urls(tmp_path) == {"0": 1, "1": 1}
    log.fill(tmp_path)
    assert urls(tmp_path) == {str(number): 1 for number in range(5)}


def test_meta_of_a_page_keeps_the_exchange() -> None:
    """As old records, which have none of it, are read."""
    assert (PageMeta("http://a.com/", "j").sent, PageMeta("http://a.com/", "j").status_line) == ((), "")
    assert pages.decode(pages.encode(META)) == META
