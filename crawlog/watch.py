"""Reads crawl.progress into a picture, and asks where the logs end: a consumer and an admin client, kept open."""

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from .schemas import progress
from .streams.kafka import consumer_config
from .streams.topics import Admin, Topics, group

if TYPE_CHECKING:
    from .picture import Picture
    from .streams.settings import Settings

BATCH = 500
"""Reports taken at a time; a worker sends one per second and partition."""


class Watch:
    """What the workers report from now on.

    Args:
        picture: Gets every report.
    """

    def __init__(self, settings: "Settings", picture: "Picture") -> None:
        names = Topics(settings.kafka.prefix)
        self._inputs = {"fetch": names.urls, "parse": names.pages, "sink": names.items}
        self._dead = names.dead
        self._picture = picture
        self._admin = Admin(settings)
        self._count = settings.kafka.partitions
        self._consumer = Consumer(consumer_config(settings))
        self._progress = names.progress
        self._begin(None)

    def poll(self, wait_s: float) -> None:
        """Takes what is there, and waits for the first report so long; a broker that is away is waited for."""
        for record in self._consumer.consume(BATCH, wait_s):
            if record.error() is not None:
                self._begin(record.error())
            elif (report := progress.decode(record.value())) is not None:
                self._picture.take(report)

    def _begin(self, error: KafkaError | None) -> None:
        """Read from the end on; where the position was lost, such as after a topic was made anew, again."""
        if error is not None and error.code() != KafkaError._AUTO_OFFSET_RESET:
            return
        end = self._admin.ends((self._progress,), 1)[self._progress][0]
        self._consumer.assign([TopicPartition(self._progress, 0, end)])

    def ends(self, stage: str) -> tuple[int, ...]:
        """The next offset of each partition of a stage's input.

        Raises: EngineError: no answer.
        """
        return self.all_ends((stage,))[stage]

    def all_ends(self, stages: tuple[str, ...] = ("fetch", "parse", "sink")) -> dict[str, tuple[int, ...]]:
        """The same for several stages, in one request."""
        found = self._admin.ends((self._inputs[stage] for stage in stages), self._count)
        return {stage: found[self._inputs[stage]] for stage in stages}

    def dead_end(self) -> int:
        """The next offset of crawl.dead."""
        return self._admin.ends((self._dead,), 1)[self._dead][0]

    def lag(self, stage: str, sink: str = "") -> int:
        """Records that a stage's group has not committed; of the sink's groups the one of this id."""
        name, ends = self._inputs[stage], self.ends(stage)
        committed = self._admin.committed(group(self._admin.settings, f"{stage}-{sink}" if sink else stage), name)
        return sum(max(0, end - committed.get((name, partition), 0)) for partition, end in enumerate(ends))

    def close(self) -> None:
        """Lets go of the consumer."""
        self._consumer.close()
