"""The log itself: offsets of groups that are lost or moved, records that expire, a topic that is made anew."""

import random
import time

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault
from crawlog.streams.cluster.client import kafka_config, partition_edges
from crawlog.streams.engine import engine
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load

ANSWER_S = 30.0
GROUPS = ("crawlog-fetch", "crawlog-parse", "crawlog-sink")
INPUTS = {"crawlog-fetch": "crawl.urls", "crawlog-parse": "crawl.pages", "crawlog-sink": "crawl.items"}


class _Stopped(Fault):
    """Everything is killed, the log is changed meanwhile, and the same command goes on."""

    again_percent = 20.0

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Once, in the middle."""
        silence_s = float("inf")
        if crawl.until(dice.uniform(0.3, 0.7), 600) and crawl.note(self.name):
            crawl.kill_all()
            local = engine.start(load({"run.data": str(crawl.data)}), crawl.data, lambda _: None)
            try:
                self.change(crawl, local.point(Settings()))
            finally:
                local.stop()
            again = time.monotonic()
            crawl.start()
            silence_s = crawl.until_asked(again)
        return {"first fetch after s": silence_s}

    def change(self, crawl: Crawl, log: Settings) -> None:
        """The change of the log."""
        raise NotImplementedError


class OffsetsLost(_Stopped):
    """The offsets of all groups are deleted: they begin where their own states say, or at the log's start."""

    name = "offsets-lost"
    says = "the offsets of all groups are deleted"

    def change(self, crawl: Crawl, log: Settings) -> None:  # noqa: ARG002  # the base's signature
        """Deletes the groups, once the broker has seen that their members are dead."""
        admin = AdminClient(kafka_config(log))
        found = [one.group_id for one in admin.list_consumer_groups().result().valid]
        for group in found:
            if group.startswith(GROUPS):
                _wait_until_empty(admin, group)
                admin.delete_consumer_groups([group], request_timeout=ANSWER_S)[group].result()


class OffsetsLatest(_Stopped):
    """The groups that keep their own position are moved to the end: it must not matter.

    Parse has no state of its own: its offset says which pages are parsed, so moving it skips pages.
    `crawlog replay` exists for that.
    """

    name = "offsets-latest"
    says = "the offsets of the fetch and sink groups are moved to the end of the log"

    def change(self, crawl: Crawl, log: Settings) -> None:  # noqa: ARG002  # the base's signature
        """Commits the ends, as `kafka-consumer-groups --reset-offsets --to-latest` does."""
        admin = AdminClient(kafka_config(log))
        for group in [one.group_id for one in admin.list_consumer_groups().result().valid]:
            stage = next((stage for stage in GROUPS if group.startswith(stage) and stage != "crawlog-parse"), None)
            if stage is not None:
                _wait_until_empty(admin, group)
                _commit_ends(log, group, INPUTS[stage])


class Expired(_Stopped):
    """Records of crawl.urls that every state has folded are trimmed, as retention would."""

    name = "expired"
    says = "the folded half of crawl.urls is deleted, the states are kept"

    def change(self, crawl: Crawl, log: Settings) -> None:
        """Deletes the first half of each partition: the checkpoints are long past it."""
        crawl.is_cut = True
        ends = _ends(log, "crawl.urls")
        wanted = [TopicPartition("crawl.urls", number, end // 2) for number, end in ends.items()]
        admin = AdminClient(kafka_config(log))  # its answers never come once it is gone
        for answer in admin.delete_records(wanted, request_timeout=ANSWER_S).values():
            answer.result()


class Recreated(_Stopped):
    """crawl.urls is deleted and made anew: the crawl begins again, and says so."""

    name = "recreated"
    says = "crawl.urls is deleted; the next run makes it anew"
    again_percent = 100.0

    def change(self, crawl: Crawl, log: Settings) -> None:
        """Deletes it and waits until it is gone."""
        crawl.is_cut = True
        admin = AdminClient(kafka_config(log))
        admin.delete_topics(["crawl.urls"], request_timeout=ANSWER_S)["crawl.urls"].result()
        end = time.monotonic() + ANSWER_S
        while "crawl.urls" in admin.list_topics(timeout=ANSWER_S).topics and time.monotonic() < end:
            time.sleep(0.1)


def _wait_until_empty(admin: AdminClient, group: str) -> None:
    """The broker forgets dead members when their session is over."""
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end:
        if not admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group].result().members:
            return
        time.sleep(0.2)


def _ends(log: Settings, topic: str) -> dict[int, int]:
    """The next offset of each partition."""
    consumer = Consumer(kafka_config(log) | {"group.id": "judge-ends"})
    partitions = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
    try:
        return {number: end for number, (_, end) in partition_edges(consumer, topic, partitions).items()}
    finally:
        consumer.close()


def _commit_ends(log: Settings, group: str, topic: str) -> None:
    consumer = Consumer(kafka_config(log) | {"group.id": group})
    places = [TopicPartition(topic, number, end) for number, end in _ends(log, topic).items()]
    try:
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()
