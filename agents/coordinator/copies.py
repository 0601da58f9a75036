"""Copies job records that orders changed from partition 0 to the other partitions, then to crawl.control.

the job in partition 0 ─► its record to partitions 1 … N-1 ─► acknowledged ─► crawl.control: JobCopy, Finished
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas import control, urls
from crawlog.schemas.control import Control, Finished, JobCopy
from crawlog.schemas.urls import UrlsRecord
from crawlog.streams import crash_points

if TYPE_CHECKING:
    from crawlog.streams.log import Producer, Topics


class Outgoing(NamedTuple):
    """A change of a job that goes out.

    Attributes:
        is_taken: Whether the record changed: then the other partitions get it first.
        ending: The end to write with it, if it is known already.
    """

    copy: JobCopy
    is_taken: bool
    ending: Finished | None = None


class Copies:
    """Sends changes of jobs, in the order in which they were folded.

    Args:
        partitions: Of crawl.urls.
    """

    def __init__(self, producer: "Producer", topics: "Topics", partitions: int) -> None:
        self._producer = producer
        self._topics = topics
        self._partitions = partitions

    def send(self, change: Outgoing) -> None:
        """Sends a change; returns at once."""
        # The fold keeps a record of a deletion, not an order, although a rewind takes back where it lies.
        first = 0 if change.copy.spec.state == "deleted" else 1
        others = self._partitions - first if change.is_taken else 0
        if not others:
            self._copy(change)
            return
        record = urls.encode(UrlsRecord(job=change.copy.job, epoch=change.copy.epoch, spec=change.copy.spec))
        acknowledged = _countdown(others, lambda: self._copy(change))
        for partition in range(first, self._partitions):
            crash_points.point("coordinator.copying")
            self._producer.send(self._topics.urls, record, partition=partition, on_delivery=acknowledged)

    def _copy(self, change: Outgoing) -> None:
        crash_points.point("coordinator.copied")
        self.note(change.copy)
        crash_points.point("coordinator.told")
        if change.ending is not None:
            self.end(change.ending)

    def order(self, record: UrlsRecord) -> None:
        """Writes an order to partition 0."""
        crash_points.point("coordinator.ordering")
        self._producer.send(self._topics.urls, urls.encode(record), partition=0, on_delivery=_ordered)

    def end(self, ending: Finished) -> None:
        """Writes the end of a job."""
        crash_points.point("coordinator.ending")
        self.note(ending)
        crash_points.point("coordinator.ended")

    def note(self, record: Control) -> None:
        """Writes a record to crawl.control."""
        self._producer.send(self._topics.control, control.encode(record), key=control.key(record), partition=0)


def _ordered(_partition: int, _offset: int) -> None:
    crash_points.point("coordinator.ordered")


def _countdown(count: int, then: Callable[[], None]) -> Callable[[int, int], None]:
    """A callback of the producer that acts at the last of `count` acknowledgements."""
    left = [count]

    def acknowledged(_partition: int, _offset: int) -> None:
        left[0] -= 1
        if not left[0]:
            then()

    return acknowledged
