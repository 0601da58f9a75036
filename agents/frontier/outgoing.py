"""Records that follow from what is folded: founds forwarded to their own partition, and dead letters.

A checkpoint waits until they are in the log: what was folded before it is never folded again.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas import urls as u
from crawlog.schemas.dead import DeadLetter
from crawlog.streams import crash_points
from crawlog.streams.errors import EngineError, GiveUp
from crawlog.streams.fold import Effects
from crawlog.streams.log import Producer, Topics

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.state import Partition

DELIVERED_S = 30.0

MAX_ERROR = 1_000  # Characters of an error in a dead letter: it may name a URL


class FoldOutput(NamedTuple):
    """A record that follows from a folded one.

    Attributes:
        headers: Those of the dead letter that it is, or that takes its place where it is too large.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def records_of(
    names: Topics, number: int, offset: int, key: bytes | None, value: bytes | None, effects: Effects
) -> list[FoldOutput]:
    """Every record that effects ask for; all errors of a record are one dead letter."""

    def headers(error: str) -> list[tuple[str, bytes]]:
        return DeadLetter(names.urls, number, offset, "frontier", error[:MAX_ERROR], key, value).headers()

    large = "GiveUp: its URLs of another partition are too large for one record"
    records = [
        FoldOutput(names.urls, to, None, u.encode(forward), headers(large)) for to, forward in effects.forward.items()
    ]
    if effects.dead:
        more = f" (and {len(effects.dead) - 1} more)" if len(effects.dead) > 1 else ""
        records.append(FoldOutput(names.dead, 0, key, value, headers(effects.dead[0][: MAX_ERROR - len(more)] + more)))
    return records


def _send(producer: Producer, dead: str, record: FoldOutput, on_delivery: Callable[[int, int], None] | None) -> None:
    """Send a record. One that is too large is a dead letter that has only its place in crawl.urls."""
    topic, to, key, value, headers = record
    is_letter = topic == dead
    try:
        producer.send(
            topic, value, key=key, partition=to, headers=headers if is_letter else None, on_delivery=on_delivery
        )
    except GiveUp:
        producer.send(dead, None, partition=0, headers=headers, on_delivery=on_delivery)


class Forwarding:
    """Sends effects of live partitions, and counts those that the log has not acknowledged.

    Attributes:
        undelivered: By partition.
    """

    def __init__(self, producer: Producer, names: Topics) -> None:
        self._producer = producer
        self._names = names
        self.undelivered: Counter[int] = Counter()

    def send(self, number: int, offset: int, key: bytes | None, value: bytes | None, effects: Effects) -> None:
        for record in records_of(self._names, number, offset, key, value, effects):
            crash_points.point("forward.sending")
            _send(self._producer, self._names.dead, record, partial(self._sent, number))
            self.undelivered[number] += 1

    def _sent(self, number: int, _partition: int, _offset: int) -> None:
        crash_points.point("forward.acknowledged")
        self.undelivered[number] -= 1


class Outbox:
    """Sends effects from the restoring thread, with a producer of its own."""

    def __init__(self, producer: Producer, names: Topics) -> None:
        self._producer = producer
        self._names = names

    def send(self, partition: "Partition", message: "Message", effects: Effects) -> None:
        for record in records_of(
            self._names, partition.number, partition.offset - 1, message.key(), message.value(), effects
        ):
            crash_points.point("restore.forward.sending")
            _send(self._producer, self._names.dead, record, None)

    def send_done(self, number: int, record: u.UrlsRecord) -> None:
        crash_points.point("restore.dones.sending")
        self._producer.send(self._names.urls, u.encode(record), partition=number)

    def delivered(self) -> None:
        if not self._producer.flush(DELIVERED_S):
            raise EngineError(f"the log did not acknowledge forwarded records for {DELIVERED_S:.0f} s")
