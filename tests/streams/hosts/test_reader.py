"""The reader of crawl.hosts on a real broker."""

import pytest

from crawlog.schemas import hosts as h
from crawlog.schemas.hosts import HostBucket, HostFigures
from crawlog.streams.hosts import HostReader, reader
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.settings import Settings
from tests.support.processes import until


@pytest.mark.broker
def test_all_hosts_are_read_anew_after_the_disk_was_full(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the table lacks room for the second bucket, and SQLite leaves it damaged."""
    monkeypatch.setattr(reader, "AGAIN_S", 0.1)
    ensure_topics(cluster)
    producer, topic = Producer(cluster, "test"), Topics(cluster.kafka.prefix).hosts
    for bucket in range(3):
        figures = [HostFigures(f"http://{bucket}-{number}.example:80") for number in range(100)]
        producer.send(topic, h.encode(HostBucket(figures)), key=h.key(0, bucket), partition=0)
    assert producer.flush(30)
    hosts = HostReader(cluster)
    first = hosts.table
    first._base.execute("PRAGMA file.max_page_count = 2")
    hosts.start()
    try:
        until(lambda: hosts.table.is_complete, "all hosts to be read")
        assert hosts.table is not first
        assert hosts.table.page().counts["all"] == 300
    finally:
        hosts.close()
