"""The ten topics: one table with their keys, cleanup and readers, and their names under a prefix.

The number of partitions is fixed when the topics are created, and equal for all topics keyed by domain or URL: the
place of a URL and the state depend on it. Only the records of crawl.logs expire by themselves: crawlog trims
crawl.pages, by offset.
"""

from typing import TYPE_CHECKING, NamedTuple

from crawlog.streams.settings import PREFIX

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class TopicKind(NamedTuple):
    """A row of the table.

    Attributes:
        name: Without the prefix.
        key: The key of its records, in words.
        split: Whether it has `kafka.partitions` partitions; else it has one.
        cleanup: Kafka's `cleanup.policy`.
        kept: Retention, in words.
        stage: The stage that reads it as a consumer group; empty for none.
    """

    name: str
    key: str
    split: bool
    cleanup: str
    kept: str
    stage: str = ""


TOPIC_KINDS = (
    TopicKind("urls", "domain", split=True, cleanup="delete", kept="for the crawl's life", stage="fetch"),
    TopicKind("pages", "domain", split=True, cleanup="delete", kept="log.pages_keep_days", stage="parse"),
    TopicKind("items", "job, URL", split=True, cleanup="delete", kept="for the crawl's life", stage="sink"),
    TopicKind("changes", "job, URL", split=True, cleanup="delete", kept="for the crawl's life"),
    TopicKind("dead", "as it was", split=False, cleanup="delete", kept="for the crawl's life"),
    TopicKind("control", "name", split=False, cleanup="compact", kept="the newest per key"),
    TopicKind("progress", "worker, partition", split=False, cleanup="compact", kept="the newest per key"),
    TopicKind("code", "project/version/sha256/part", split=False, cleanup="compact", kept="the newest per key"),
    TopicKind("hosts", "partition, bucket", split=False, cleanup="compact", kept="the newest per key"),
    TopicKind("logs", "job", split=False, cleanup="delete", kept="7 days, 256 MiB"),
)


class Topics:
    """Full names of the topics."""

    def __init__(self, prefix: str) -> None:
        self.urls = f"{prefix}urls"
        self.pages = f"{prefix}pages"
        self.items = f"{prefix}items"
        self.changes = f"{prefix}changes"
        self.dead = f"{prefix}dead"
        self.control = f"{prefix}control"
        self.progress = f"{prefix}progress"
        self.code = f"{prefix}code"
        self.hosts = f"{prefix}hosts"
        self.logs = f"{prefix}logs"

        self.inputs = {"frontier": self.urls, "parse": self.pages, "sink": self.items}
        """The input topic of each stage, by the stage's name in dead letters."""

        self.read_by = {"fetch": self.urls, "parse": self.pages, "sink": self.items}
        """The same, by the stage's name as a worker."""


def stage_group(settings: "Settings", stage: str) -> str:
    """The consumer group of a stage; topics of another prefix have groups of their own."""
    prefix = settings.kafka.prefix
    return f"{'' if prefix == PREFIX else prefix}crawlog-{stage}"
