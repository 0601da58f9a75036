"""Reads bodies from crawl.pages again: of pages that were not modified, and of waiting pages that dropped theirs.

A plain consumer without a group seeks to the wanted records, batch by batch, and reads no further. A page comes back
without a body in four cases: its record is gone, is another page, cannot be unpacked, or lies in a damaged batch or
behind one in the same read. Its URL is then fetched once more.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from crawlog.schemas.pages import PageMeta
from crawlog.streams.cluster import DAMAGE_CODES, consumer_config, is_transient, partition_edges
from crawlog.streams.coded_pages import OlderPage, older_page
from crawlog.streams.log import ReadPatience, is_log_end, record_headers
from crawlog.streams.settings import Settings

BATCH = 256  # Pages looked up together

# Bodies read in one batch, unpacked bytes, but at least one body; the others come with the next batch.
MOST_BYTES = 16 << 20

NEAR = 8  # Longest distance in offsets between two wanted records that are read in one run, without a seek

_READS_LITTLE = {
    "enable.partition.eof": True,
    "max.partition.fetch.bytes": 256 << 10,  # bytes beyond a run are discarded; a larger record still comes whole
    "queued.max.messages.kbytes": 1024,
}

Place = tuple[int, int]  # (partition, offset) in crawl.pages

Headers = list[tuple[str, bytes]]  # Of a record


class Bodies:
    """Reads bodies, one batch at a time; call it in a thread."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._consumer: Consumer | None = None

    def read(self, wanted: Mapping[Place, PageMeta]) -> dict[Place, OlderPage]:
        """By place in `wanted`, the older page and its body; None and an empty body if that page is gone.

        One call may return only a part of `wanted`, at least one.

        Raises: EngineError, KafkaException: the cluster does not answer.
        """
        if self._consumer is None:
            self._consumer = Consumer(consumer_config(self._settings) | _READS_LITTLE)
        by_place: dict[Place, list[Place]] = {}
        for at, meta in wanted.items():
            assert meta.same_as is not None
            by_place.setdefault(meta.same_as, []).append(at)
        there, found = self._there(by_place), dict[Place, OlderPage]()
        for place in by_place.keys() - there:
            found.update((at, (None, b"")) for at in by_place[place])
        size_bytes = 0
        for round_ in rounds(there):
            for place, headers, value in self._read(round_):
                for at in by_place[place]:
                    found[at] = older_page(headers, value, wanted[at], self._settings.body_room)
                    size_bytes += len(found[at][1])
            if size_bytes > MOST_BYTES:
                break
        return found

    def _there(self, places: Collection[Place]) -> set[Place]:
        """The places that their partitions still hold."""
        assert self._consumer is not None
        ends = partition_edges(self._consumer, self._topic, {number for number, _ in places})
        return {(number, offset) for number, offset in places if ends[number][0] <= offset < ends[number][1]}

    def _read(self, runs: Mapping[int, list[int]]) -> Iterator[tuple[Place, Headers, bytes]]:
        """The records of one run per partition; a missing record comes without headers."""
        consumer = self._consumer
        assert consumer is not None
        left = {number: set(offsets) for number, offsets in runs.items()}
        consumer.assign([TopicPartition(self._topic, number, offsets[0]) for number, offsets in runs.items()])
        patience = ReadPatience(self._topic)
        try:
            while left:
                records = patience.take(consumer, left)
                for record in records:
                    yield from _taken(record, left)
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()


def _taken(record: Message, left: dict[int, set[int]]) -> Iterator[tuple[Place, Headers, bytes]]:
    """The wanted record in `record`, and the wanted ones that are missing: those before it, and all behind an error.

    Removes them from `left`.
    """
    error, number = record.error(), record.partition() or 0
    if error is not None and not is_log_end(error) and error.code() not in DAMAGE_CODES:
        if is_transient(error):
            return
        raise KafkaException(error)
    offsets, offset = left.get(number, set()), record.offset() or 0
    if error is None and offset in offsets:
        offsets.discard(offset)
        yield (number, offset), record_headers(record), record.value() or b""
    for gone in [one for one in offsets if error is not None or one <= offset]:
        offsets.discard(gone)
        yield (number, gone), [], b""
    if not offsets:
        left.pop(number, None)


def rounds(places: Iterable[Place]) -> Iterator[dict[int, list[int]]]:
    """Rounds of reading: each has at most one run per partition, of offsets that are near each other."""
    runs: dict[int, list[list[int]]] = {}
    for number, offset in sorted(places):
        of_partition = runs.setdefault(number, [[offset]])
        if offset - of_partition[-1][-1] > NEAR:
            of_partition.append([offset])
        elif offset != of_partition[-1][-1]:
            of_partition[-1].append(offset)
    while runs:
        yield {number: of_partition.pop(0) for number, of_partition in runs.items()}
        runs = {number: of_partition for number, of_partition in runs.items() if of_partition}
