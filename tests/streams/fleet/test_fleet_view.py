"""The fleet's state, read from a real log: two copies agree, and a live one follows."""

import time
from contextlib import closing

import pytest

from crawlog.schemas import control, progress
from crawlog.schemas.control import JobCopy, StartEnded
from crawlog.schemas.progress import IDLE, JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_control
from crawlog.streams.fleet import FleetView, fleet_view
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.settings import Settings
from tests.support.processes import until

pytestmark = pytest.mark.broker


def report(partition: int, fetched: int) -> Progress:
    """A report of a fetch worker of `up`."""
    jobs = {"j": JobCounts(fetched=fetched)}
    return Progress("fetch-0", "fetch", partition, time.time(), pid=7, jobs=jobs, supervisor="up", host="m1")


def test_a_view_begun_after_a_rest_says_what_an_older_one_says(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition's newest report holds, however old it is and whoever has reported since."""
    monkeypatch.setattr(fleet_view, "RECENT_S", 0.001)
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_control(producer, topics, [JobCopy("j", JobSpec(at=1.0))])

    def send(*reports: Progress) -> None:
        for one in reports:
            producer.send(topics.progress, progress.encode(one), key=progress.key(one), partition=0)
        assert producer.flush(10)

    send(*(report(partition, 1) for partition in range(8)))
    with closing(FleetView(cluster).start()) as live:
        send(*(report(partition, 2) for partition in range(8)))
        send(Progress("parse-0", "parse", 0, time.time(), pid=9), report(0, 3))
        assert live.wait_until(lambda state: state.picture.counts("j").fetched == 17, 10)
        once = FleetView.read(cluster)
        assert once.jobs() == live.jobs()
        assert [(one.state, one.counts.fetched) for one in once.jobs()] == [("running", 17)]


def test_a_view_goes_on_after_its_positions_were_lost(cluster: Settings) -> None:
    """With a real broker: a consumer whose position is lost can seek none."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    with closing(FleetView(cluster)) as view:
        view.catch_up()

        def shows(name: str) -> bool:
            view.poll(0.1)
            return name in view.look(lambda state: [*state.names(), *(one.id for one in state.workers(time.time()))])

        view._tail.go_to(topics.control, 100_000)
        write_control(producer, topics, [JobCopy("k", JobSpec())])
        until(lambda: shows("k"), "the job")
        view._tail.go_to(topics.progress, 100_000)

        def reports() -> bool:
            producer.send(topics.progress, progress.encode(report(0, 2)), key=b"0", partition=0)
            producer.flush(10)
            return shows("fetch-0")

        until(reports, "the worker")


def test_two_views_agree_and_a_live_one_follows(cluster: Settings) -> None:
    """Also after a restart: what a view knows is in the log."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_control(producer, topics, [JobCopy("j", JobSpec(at=1.0)), StartEnded("j", at=1.0)])
    with closing(FleetView(cluster).start()) as live:
        for partition in range(8):
            producer.send(topics.progress, progress.encode(report(partition, 2)), key=b"%d" % partition, partition=0)
        producer.send(topics.control, None, key=control.key(StartEnded("j", at=1.0)), partition=0)
        assert producer.flush(10)
        assert live.wait_until(lambda state: len(list(state.picture.of("fetch"))) == 8, 10)
        once = FleetView.read(cluster)
        assert once.jobs() == live.jobs()
        (job,) = live.jobs()
        assert (job.name, job.state, job.counts.fetched) == ("j", "running", 16)
        assert [one.id for one in live.status().workers] == ["fetch-0"]
        assert live.has_fleet()
        assert live.wait_until(lambda state: state.control.start("j") is None, 10)
        write_control(producer, topics, [JobCopy("k", JobSpec(at=2.0, state="cancelled"))])
        assert live.wait_until(lambda state: "k" in state.names(), 10)
        assert [(one.name, one.state) for one in live.jobs()] == [("k", "cancelled"), ("j", "running")]


def test_the_lag_of_a_stage_whose_workers_own_nothing_is_its_whole_topic(cluster: Settings) -> None:
    """As that of a stage without workers: nobody reads it."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    place = Progress("", "parse", 0, time.time(), offset=2)
    idle = Progress("parse-0", IDLE, -1, time.time(), pid=9, idle_stage="parse")
    for one in (place, idle):
        producer.send(topics.progress, progress.encode(one), key=progress.key(one), partition=0)
    for _ in range(3):
        producer.send(topics.pages, b"", partition=0)
    assert producer.flush(10)
    parse = FleetView.read(cluster).stages()[1]
    assert (parse.stage, parse.workers, parse.lag) == ("parse", 1, 3)
