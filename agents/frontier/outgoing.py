"""Records that follow from what is folded: founds forwarded to their own partition, and dead letters.

A checkpoint waits until they are in the log: what was folded before it is never folded again.
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from crawlog.schemas import urls as u
from crawlog.schemas.dead import DeadLetter
from crawlog.streams import crash_points
from crawlog.streams.errors import EngineError
from crawlog.streams.fold import Effects
from crawlog.streams.log import Producer, Topics

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.state import Partition

DELIVERED_S = 30.0

Outgoing = tuple[str, int, bytes | None, bytes | None, list[tuple[str, bytes]] | None]


def records_of(
    names: Topics, number: int, offset: int, key: bytes | None, value: bytes | None, effects: Effects
) -> list[Outgoing]:
    """(topic, partition, key, value, headers) of every record that effects ask for."""
    records: list[Outgoing] = [
        (names.urls, to, None, u.encode(forward), None) for to, forward in effects.forward.items()
    ]
    for error in effects.dead:
        letter = DeadLetter(names.urls, number, offset, "frontier", error, key, value)
        records.append((names.dead, 0, key, value, letter.headers()))
    return records


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
        """Send the effects of a record."""
        for topic, to, record_key, record, headers in records_of(self._names, number, offset, key, value, effects):
            crash_points.point("forward.sending")
            self.undelivered[number] += 1
            self._producer.send(
                topic, record, key=record_key, partition=to, headers=headers, on_delivery=partial(self._sent, number)
            )

    def _sent(self, number: int, _partition: int, _offset: int) -> None:
        crash_points.point("forward.acknowledged")
        self.undelivered[number] -= 1


class Outbox:
    """Sends effects from the restoring thread, with a producer of its own."""

    def __init__(self, producer: Producer, names: Topics) -> None:
        self._producer = producer
        self._names = names

    def send(self, partition: "Partition", message: "Message", effects: Effects) -> None:
        """Send the effects of a record; `delivered` waits for them."""
        for topic, to, key, value, headers in records_of(
            self._names, partition.number, partition.offset - 1, message.key(), message.value(), effects
        ):
            self._producer.send(topic, value, key=key, partition=to, headers=headers)

    def send_done(self, number: int, record: u.UrlsRecord) -> None:
        """Send a record of dones to their partition."""
        crash_points.point("restore.dones.sending")
        self._producer.send(self._names.urls, u.encode(record), partition=number)

    def delivered(self) -> None:
        """Wait until the log has all of them."""
        if not self._producer.flush(DELIVERED_S):
            raise EngineError(f"the log did not acknowledge forwarded records for {DELIVERED_S:.0f} s")
