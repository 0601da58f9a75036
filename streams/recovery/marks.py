"""Marks detect lost records even after new records have taken their offsets.

A leader may lack records of its partition: after an unclean election, a lost disk, or a folder restored from a backup.
It assigns their offsets again. Soon the log is as long as before, so its end shows no loss. But each record carries the
epoch of the leader that wrote it, and each new leader has a higher epoch. A mark is an end offset and the epoch of the
leader that reported it. A record before that end with a higher epoch replaced a lost one (KIP-101, KIP-320).

    epoch 4, end 20    noted
    epoch 6, end 25    another leader: the record at 19 is read; it is of epoch 4, so nothing is lost
                       or it is of epoch 6, and the first such one is at 10: the records 10 to 19 are lost

The marks are kept in `<data>/run/ends.json`, to detect damage that happens while no command runs. The crawl does not
depend on that file; without it less damage is detected. After a loss the file keeps the old marks until the records
have been made again.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicCollection, TopicPartition

from crawlog.streams import files
from crawlog.streams.cluster import FIRST, LAST, Admin, consumer_config
from crawlog.streams.errors import EngineError
from crawlog.streams.log import Topics, is_log_end

from .damage import CutPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it does not re-export it

    from crawlog.streams.settings import Settings

FILE = "ends.json"

# Timeout of each request, seconds. Short: the caller starts a broker that has died. The next look retries.
ANSWER_S = 2.0

LOOK_S = 2.0  # Interval of looks, seconds

Place = tuple[str, int]


class EndMark(NamedTuple):
    """The end of a partition as its leader reported it.

    Attributes:
        end: Offset of the next record.
        leader_epoch: Of that leader; -1 where the broker reports none.
    """

    end: int
    leader_epoch: int


class _Kept(msgspec.Struct):
    """The content of the file.

    Attributes:
        topics: Topic ids by name; a topic that was deleted and recreated has another id.
        marks: By topic name; partitions in order.
    """

    topics: dict[str, str]
    marks: dict[str, list[EndMark]]


def is_suspect(before: EndMark, now: EndMark) -> bool:
    """Whether records may have been lost between two marks: the leader has changed, or the end is lower."""
    return now.leader_epoch != before.leader_epoch or now.end < before.end


class Marks:
    """The marks of crawl.urls, crawl.pages and crawl.items, kept in a folder.

    Args:
        count: Partitions of each topic.
    """

    def __init__(self, settings: "Settings", count: int) -> None:
        names = Topics(settings.kafka.prefix)
        self._settings = settings
        self._path = settings.run.data / "run" / FILE
        self._topics = (names.urls, names.pages, names.items)
        self._places = [TopicPartition(name, number) for name in self._topics for number in range(count)]
        self._admin = Admin(settings)
        self._ids: dict[str, str] = {}
        self._marks: dict[Place, EndMark] = {}
        self._is_owed = False
        self._looked_at = 0.0

    def at(self, topic: str, partition: int) -> EndMark:
        """The mark of a partition. Raises: KeyError: there is none yet."""
        return self._marks[topic, partition]

    def due(self) -> list[CutPartition]:
        """A look, if the last one was at least LOOK_S ago; else nothing."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return []
        self._looked_at = now
        return self.look()

    def look(self) -> list[CutPartition]:
        """The losses since the last look, each reported once; none when the cluster does not answer.

        Until `mended`, the next process with the same folder reports them again.
        """
        try:
            if not self._ids:
                self._load()
            now = self._ask(self._places, LAST)
            lost = self._compare(now)
        except (KafkaException, EngineError):
            return []
        self._is_owed |= bool(lost)
        if now != self._marks:
            self._marks = now
            self._keep()
        return lost

    def mended(self) -> None:
        """The lost records have been made again."""
        self._is_owed = False
        self._keep()

    def _ask(self, places: "Iterable[TopicPartition]", spec: "OffsetSpec") -> dict[Place, EndMark]:
        """Raises: EngineError, KafkaException: no answer in time."""
        asked = self._admin.client.list_offsets(dict.fromkeys(places, spec), request_timeout=ANSWER_S)
        try:
            told = {(at.topic, at.partition): future.result(ANSWER_S + 1) for at, future in asked.items()}
        except KafkaException:
            self._admin.client.list_topics(timeout=ANSWER_S)  # refreshes leader epochs that may be stale
            raise
        if any(one.offset == OFFSET_INVALID for one in told.values()):  # not an error for librdkafka (2.16)
            raise EngineError(f"the offsets of some partitions did not come within {ANSWER_S:.0f} s")
        return {
            at: EndMark(one.offset, -1 if one.leader_epoch is None else one.leader_epoch) for at, one in told.items()
        }

    def _compare(self, now: Mapping[Place, EndMark]) -> list[CutPartition]:
        """Raises: EngineError, KafkaException: a partition that may have lost something cannot be read."""
        suspects = {at: mark for at, mark in self._marks.items() if at in now and is_suspect(mark, now[at])}
        if not suspects:
            return []
        firsts = self._ask([TopicPartition(*at) for at in suspects], FIRST)
        lost = []
        for (topic, number), before in suspects.items():
            end = now[topic, number].end
            first = self._first_of_later(topic, number, before, firsts[topic, number].end, end)
            if first < before.end:
                by = f"its leader of epoch {before.leader_epoch}"
                lost.append(CutPartition(topic, number, first, before.end, by, is_replaced=first < end))
        return lost

    def _first_of_later(self, topic: str, number: int, before: EndMark, low: int, end: int) -> int:
        """The first lost offset before a mark's end: a later leader wrote it, or the log ends there.

        The mark's end if nothing is lost. Epochs only grow along the log, so this is a binary search. Mostly one read
        of the last record is enough.
        """
        past = min(before.end, end)
        if before.leader_epoch < 0 or past <= low or not self._is_of_later(topic, number, before, past - 1):
            return max(past, low)  # trimmed records are not lost
        known = low - 1
        past -= 1
        while past - known > 1:
            middle = (known + past) // 2
            if self._is_of_later(topic, number, before, middle):
                past = middle
            else:
                known = middle
        return past

    def _is_of_later(self, topic: str, number: int, before: EndMark, offset: int) -> bool:
        """Whether a later leader wrote the record at an offset; not so if compaction left none there."""
        consumer = Consumer(consumer_config(self._settings) | {"enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(topic, number, offset)])
            record = consumer.poll(ANSWER_S)
        finally:
            consumer.close()
        if record is None:
            raise EngineError(f"{topic}[{number}] gave no record within {ANSWER_S:.0f} s")
        if (error := record.error()) is not None:
            if is_log_end(error):
                return False
            raise KafkaException(error)
        epoch = record.leader_epoch() if record.offset() == offset else None
        return epoch is not None and epoch > before.leader_epoch

    def _load(self) -> None:
        """Loads the marks of topics that still have the same id."""
        answers = self._admin.client.describe_topics(TopicCollection(list(self._topics)), request_timeout=ANSWER_S)
        ids = {name: str(future.result(ANSWER_S + 1).topic_id) for name, future in answers.items()}
        try:
            kept = msgspec.json.decode(files.read(self._path), type=_Kept)
        except (OSError, ValueError):
            kept = _Kept({}, {})
        self._marks = {
            (name, number): mark
            for name, marks in kept.marks.items()
            if kept.topics.get(name) == ids.get(name)
            for number, mark in enumerate(marks)
        }
        self._ids = ids

    def _keep(self) -> None:
        if self._is_owed:
            return
        marks = {name: [mark for (of, _), mark in sorted(self._marks.items()) if of == name] for name in self._topics}
        try:
            files.write(self._path, msgspec.json.encode(_Kept(self._ids, marks)).decode())
        except OSError:
            return  # the supervisor reports a full disk
