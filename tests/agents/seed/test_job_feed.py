"""A job's seeds are the rows of another job: each URL in the log before the position moves."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from crawlog.agents.seed.job_feed import JobFeed, feed_sink, is_feed
from crawlog.schemas import log_lines
from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import FoundUrl, JobSpec, decode
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import write_control, write_job
from crawlog.streams.errors import RetryLater
from crawlog.streams.log import Producer, Topics, ensure_topics, read_partitions
from crawlog.streams.settings import Settings
from crawlog.streams.sink_groups import SinkSpec
from tests.support.storing import Feeding, feed

SINK = feed_sink(SinkSpec("lists", "", is_fleet=True), "fed", 0, ("url", "more"))


@pytest.fixture
def feeding(tmp_path: Path) -> Iterator[Feeding]:
    """The rows of the job that feeds."""
    made = Feeding(tmp_path, SINK)
    yield made
    made.state.close()


@pytest.fixture
def settings(cluster: Settings, tmp_path: Path) -> Settings:
    """Of a log with the job that is fed."""
    ensure_topics(cluster)
    write_job(cluster, Producer(cluster, "test"), Topics(cluster.kafka.prefix), "fed", JobSpec())
    return cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path})})


def founds(settings: Settings) -> list[FoundUrl]:
    """The seeds in the log."""
    topics = Topics(settings.kafka.prefix)
    bounds = log_bounds(settings, topics.urls, list(range(settings.kafka.partitions)))
    records = [decode(one.value()) for one in read_partitions(settings, topics.urls, bounds)]
    return [
        found for record in records if record.urls and (record.job, record.epoch) == ("fed", 0) for found in record.urls
    ]


@pytest.mark.broker
def test_urls_in_the_rows_of_a_job_are_seeds_of_the_other(settings: Settings, feeding: Feeding) -> None:
    """Also lists, and URLs relative to the row's page. What is no URL is named in the job's log, once at the end."""
    store = JobFeed(SINK, settings)
    assert is_feed(SINK)
    assert store.open(feeding.state.feed) == 0
    feeding.page(1, "http://a.test/1/", {"url": "http://b.test/x#top", "more": ["/2", "3"]}, {"title": "none"})
    at = feed(store, feeding.state, 0)
    assert sorted(one.url for one in founds(settings)) == ["http://a.test/1/3", "http://a.test/2", "http://b.test/x"]
    assert {(one.source, one.depth) for one in founds(settings)} == {("seed", 0)}

    store = JobFeed(SINK, settings)  # another process
    assert store.open(feeding.state.feed) == at
    feeding.page(2, "http://a.test/2", {"url": "http://b.test/y", "more": []})
    feed(store, feeding.state, at)
    assert len(founds(settings)) == 4
    store.finish()
    logs = Topics(settings.kafka.prefix).logs
    (record,) = read_partitions(settings, logs, log_bounds(settings, logs, [0]))
    (line,) = log_lines.decode(record.value()).lines
    assert line.text == "4 seeds of the rows of job lists; 2 gave none, such as url = None (title)"
    assert store.open(feeding.state.feed._replace(serial="of a state that was made again")) == 0


@pytest.mark.broker
def test_a_job_that_began_again_is_fed_by_its_own_feed_alone(settings: Settings, feeding: Feeding) -> None:
    """Seeds of the former epoch count no more."""
    store = JobFeed(SINK, settings)
    store.open(feeding.state.feed)
    producer, topics = Producer(settings, "test"), Topics(settings.kafka.prefix)
    write_control(producer, topics, [JobCopy("fed", msgspec.structs.replace(JobSpec(), rev=2), epoch=1)])
    with pytest.raises(RetryLater, match="begun again"):
        store.open(feeding.state.feed)
