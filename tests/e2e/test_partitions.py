"""How many partitions a log has: on record since it was begun, and what becomes of one to which some are added."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # not re-exported

from crawlog.schemas import control
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import kafka_config, log_bounds
from crawlog.streams.control import read_control
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import provision
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from tests.support.processes import crawlog, done, ended, until
from tests.support.sites import Answer, Threaded

pytestmark = pytest.mark.broker

TIMEOUT_S = 180.0


def grow(settings: Settings, kind: str, to: int = 12) -> None:
    """Adds partitions to a topic, as `kafka-topics --alter` does."""
    admin = Admin(settings)
    for future in admin.client.create_partitions([NewPartitions(settings.kafka.prefix + kind, to)]).values():
        future.result()
    deadline = time.monotonic() + TIMEOUT_S
    while len(admin.metadata().topics[settings.kafka.prefix + kind].partitions) < to:
        assert time.monotonic() < deadline  # the controller has answered, the broker tells of it a moment later
        time.sleep(0.02)


def test_a_new_log_says_how_many_partitions_it_has(cluster: Settings) -> None:
    """In the first record of crawl.control."""
    provision.ensure_topics(cluster)
    assert list(read_control(cluster, Topics(cluster.kafka.prefix)).records.values()) == [control.Layout(8)]
    provision.ensure_topics(cluster)
    assert log_bounds(cluster, Topics(cluster.kafka.prefix).control, [0])[0] == (0, 1)


def test_a_log_of_an_older_version_goes_on_and_says_it_from_then_on(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number of partitions is that of its topics."""
    with monkeypatch.context() as older:
        older.setattr(provision, "_note_layout", lambda _: None)
        provision.ensure_topics(cluster)
    assert read_control(cluster, Topics(cluster.kafka.prefix)).records == {}
    assert provision.partition_count(cluster) == 8
    provision.ensure_topics(cluster)
    assert list(read_control(cluster, Topics(cluster.kafka.prefix)).records.values()) == [control.Layout(8)]


@pytest.mark.parametrize("kind", ["urls", "pages", "items"])
def test_a_topic_that_has_grown_is_refused_and_the_message_says_what_to_do(cluster: Settings, kind: str) -> None:
    """Also with the number that it has now: a domain's URLs would lie in two partitions."""
    provision.ensure_topics(cluster)
    old = cluster.kafka.prefix
    grow(cluster, kind)
    grown = cluster.model_copy(update={"kafka": cluster.kafka.model_copy(update={"partitions": 12})})
    wanted = rf"{kind} has 12 partitions, but its log was begun with 8: .*`crawlog seed --from-log {old} "
    for ask in (provision.partition_count, provision.ensure_topics):
        for settings in (cluster, grown):
            with pytest.raises(Misconfigured, match=wanted):
                ask(settings)


class Site:
    """Pages in a chain; its last one is named by the test."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.last = 1_000_000
        self._server = Threaded(self._answer)
        self.seed = f"{self._server.origin}/1"

    def _answer(self, path: str) -> Answer:
        self.asked.append(path)
        number = path[1:]
        if not number.isdigit():
            return 404, "text/html", b""
        link = f'<a href="/{int(number) + 1}">' if int(number) < self.last else ""
        return 200, "text/html", f"<title>{path}</title>{link}".encode()

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of this test alone."""
    made = Site()
    yield made
    made.close()


@pytest.mark.slow
def test_a_run_makes_the_topics_that_somebody_deleted(site: Site, tmp_path: Path, cluster: Settings) -> None:
    """Those by which it looks for a fleet. Commands that only read say which ones are missing."""
    site.last = 3
    there = ["--bootstrap", cluster.kafka.bootstrap, "--data", tmp_path / "data", "-s", "politeness.delay_s=0.05"]
    there += ["-s", f"kafka.prefix={cluster.kafka.prefix}"]
    run = ["run", site.seed, "--job", "j", "-o", tmp_path / "rows.jsonl", "--json", "-s", "network.allow_private=true"]
    code, summary, err = ended(crawlog(*run, *there))
    assert (code, summary["rows"]) == (0, 3), err
    names = [Topics(cluster.kafka.prefix).control, Topics(cluster.kafka.prefix).progress]
    client = Admin(cluster).client
    for future in client.delete_topics(names, operation_timeout=TIMEOUT_S).values():
        future.result()
    until(lambda: not {*names} & {*client.list_topics(timeout=TIMEOUT_S).topics}, "the deletion")
    code, _, err = ended(crawlog("jobs", *there))
    assert (code, f"has no topic {', '.join(names)}." in err) == (3, True), err
    site.last = 9
    code, summary, err = ended(crawlog(*run, f"{site.seed[:-1]}9", *there))
    assert (code, summary["rows"]) == (0, 4), err


@pytest.mark.slow
@pytest.mark.long
def test_partitions_added_while_a_crawl_runs_end_it_and_misplace_nothing(
    site: Site, tmp_path: Path, cluster: Settings
) -> None:
    """The run says which topic has grown. With the message's commands a log of another prefix is crawled to the end."""
    there = ["--bootstrap", cluster.kafka.bootstrap, "--data", tmp_path / "data", "-s", "network.allow_private=true"]
    there += ["-s", "politeness.delay_s=0.05"]
    old, output = cluster.kafka.prefix, tmp_path / "rows.jsonl"
    crawl = crawlog("run", site.seed, "--job", "j", "-o", output, *there, "-s", f"kafka.prefix={old}")
    until(lambda: len(site.asked) >= 10 or crawl.poll() is not None, "ten pages")
    grow(cluster, "urls")
    grow(cluster, "items")
    grow(cluster, "pages")
    code, _, err = ended(crawl)
    assert code == 2, err
    assert "has 12 partitions, but its log was begun with 8" in err
    consumer = Consumer(kafka_config(cluster) | {"group.id": "looker"})
    for kind in ("urls", "pages", "items"):
        for number in range(8, 12):
            assert consumer.get_watermark_offsets(TopicPartition(f"{old}{kind}", number)) == (0, 0)
    consumer.close()

    site.last = 15
    new = [*there, "-s", f"kafka.prefix=new-{old}", "-s", "kafka.partitions=12"]
    done(crawlog("seed", "--from-log", old, "--job", "j", *new))
    code, summary, err = ended(crawlog("run", "--job", "j", "-o", output, "--json", *new))
    assert (code, summary["reason"]) == (0, "finished"), err
    rows = [json.loads(line)["url"].rpartition("/")[2] for line in output.read_text().splitlines()]
    assert sorted(rows, key=int) == [str(number) for number in range(1, 16)]
