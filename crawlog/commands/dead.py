"""`crawlog dead`: lists the dead letters in crawl.dead, sends their records back to their stages, or drops them.

Redriving sends a batch of records to their topics, waits until they are acknowledged, has the outputs of their jobs
wait for the rows, then marks them on crawl.dead. A kill in between sends one batch twice. That is harmless: a found is
known by then, a done finds no row any more, and items replace themselves.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import dead, pages
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import renew_ends
from crawlog.streams.dead_letters import Letter, LetterChoice, Letters, letter_mark, letters_by_place, redrive_refusal
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.log import (
    CommandProducer,
    Producer,
    Topics,
    partition_count,
    read_partitions,
    read_records,
    record_at,
    record_headers,
)
from crawlog.streams.settings import MAX_BODY_BYTES

from .shown_records import header_for_reader, plain_value, shown_header, value_for_reader, without_secrets

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

BATCH = 100  # Records sent before they are marked; a kill repeats at most this many

REDRIVEN = "redriven records"  # Reason of a finished job that runs again

# Why a record of the sink stays.
NEWER = "the log has newer items of its page, which it would replace; `crawlog dead drop` lays it aside"

ACKNOWLEDGED_S = 60.0  # How long a batch may take to be acknowledged, seconds

Report = Callable[[str], None]


class Listing(msgspec.Struct):
    """The chosen letters, oldest first.

    Attributes:
        shown: The newest of them, up to the limit.
        closed: How many letters of crawl.dead were redriven or dropped.
    """

    letters: list[Letter]
    shown: list[Letter]
    closed: int


class Opened(msgspec.Struct):
    """A letter in full.

    Attributes:
        key: The record's key.
        value: The record's value, a body unpacked within a limit; None if crawl.dead has no copy of it.
        headers: The record's own headers, as text.
    """

    letter: Letter
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    traceback: str


class Redriving(msgspec.Struct):
    """Letters grouped by record: those whose record is sent back, and those whose record stays, with the reason.

    Attributes:
        sent: Records that were sent back and acknowledged; None without `execute`.
    """

    going: list[list[Letter]]
    staying: list[tuple[list[Letter], str]]
    sent: int | None = None


class Dropping(msgspec.Struct):
    """The chosen letters, and whether they are marked as dropped."""

    letters: list[Letter]
    done: bool


class Dead:
    """crawl.dead, read once."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        names = Topics(settings.kafka.prefix)
        self.partitions = partition_count(settings)  # fails at once if there are no topics yet
        self._topic = names.dead
        self.start, self.end = log_bounds(settings, self._topic, [0])[0]
        self.letters = Letters()
        for record in read_records(settings, self._topic, 0, self.start, self.end):
            self.letters.take(record.offset() or 0, _at(record), record_headers(record), record.value())

    def letter(self, offset: int) -> Letter:
        """One letter, by its offset in crawl.dead. Raises: Misconfigured: there is none."""
        found = self.all.get(offset)
        if found is None:
            raise _no_letter(offset, self._topic)
        return found

    @property
    def all(self) -> dict[int, Letter]:
        return self.letters.all

    def chosen(self, choice: LetterChoice) -> list[Letter]:
        """The open letters of a choice.

        Raises: Misconfigured: a chosen offset holds no letter.
        """
        missing = sorted(choice.offsets - self.all.keys())
        if missing:
            raise Misconfigured(
                f"no dead letter at {', '.join(map(str, missing))} in {self._topic}; see `crawlog dead list`"
            )
        return self.letters.chosen(choice)

    def records(self, offsets: set[int]) -> "Iterator[Message]":
        """The records of these letters, in the order of the log."""
        if offsets:
            for record in read_records(self._settings, self._topic, 0, min(offsets), max(offsets) + 1):
                if record.offset() in offsets:
                    yield record


def listed(settings: "Settings", choice: LetterChoice, limit: int, *, handled: bool) -> Listing:
    """The letters of a choice.

    Args:
        limit: How many letters are shown at most, the newest.
        handled: Whether redriven and dropped letters are included.
    """
    dead_letters = Dead(settings)
    found = dead_letters.letters.chosen(choice, handled=handled)
    return Listing(found, found[-limit:], sum(bool(letter.handled) for letter in dead_letters.all.values()))


def _no_letter(offset: int, topic: str) -> Misconfigured:
    return Misconfigured(f"there is no dead letter {offset} in {topic}; see `crawlog dead list --all`")


def opened(settings: "Settings", letter: Letter, most: int = MAX_BODY_BYTES, *, to_reader: bool = False) -> Opened:
    """One letter with its record.

    Args:
        most: Limit of a page's body, unpacked, whatever the page says of itself. A larger one is shown as it came.
        to_reader: Whether it is for a user who may only look: records that cannot be read, and jobs', stay hidden.
    """
    topic = Topics(settings.kafka.prefix).dead
    record = record_at(settings, topic, 0, letter.offset)
    if record is None:
        raise _no_letter(letter.offset, topic)
    headers = record_headers(record)
    said = dead.from_headers(dead.by_name(headers), record.key(), record.value())
    own_headers = dead.own_headers(headers)
    own = {name: (header_for_reader if to_reader else shown_header)(name, value) for name, value in own_headers}
    value = plain_value(record.value(), own_headers, most)
    value = value_for_reader(value, pages.HEADER in own) if to_reader else without_secrets(value)
    return Opened(letter, said.key, value, own, said.traceback)


def redriven(settings: "Settings", choice: LetterChoice, *, execute: bool, report: Report) -> Redriving:
    """Sends the records of the chosen letters back to their stages; without `execute` only finds them."""
    dead_letters = Dead(settings)
    found = _groups(settings, dead_letters, choice)
    if execute:
        producer = CommandProducer(settings, "crawlog-dead")
        going = sorted(found.going, key=lambda group: group[0].job)  # each batch renews the ends of its jobs
        batches = [going[at : at + BATCH] for at in range(0, len(going), BATCH)]
        found.sent = sum(_redrive(settings, producer, dead_letters, batch, report) for batch in batches)
    return found


def _groups(settings: "Settings", dead_letters: Dead, choice: LetterChoice) -> Redriving:
    """Letters by record."""
    inputs = Topics(settings.kafka.prefix).inputs
    groups = letters_by_place(dead_letters.chosen(choice))
    refused = {group[0].offset: redrive_refusal(group[0], inputs, dead_letters.partitions) for group in groups}
    of_sink = [group[0] for group in groups if group[0].stage == "sink" and not refused[group[0].offset]]
    refused |= dict.fromkeys(_replaced(settings, dead_letters, of_sink), NEWER)
    told = [(group, refused[group[0].offset]) for group in groups]
    return Redriving([group for group, why in told if not why], [(group, why) for group, why in told if why])


def _replaced(settings: "Settings", dead_letters: Dead, letters: list[Letter]) -> set[int]:
    """Offsets of the sink's letters whose page has other items in the log by now.

    1 items fail in the pipelines → 2 the page is parsed again, and gives others → 3 the letter is redriven: its items
    come last, and would replace those of 2. A copy that a killed command sent has the same items.
    """
    records = dead_letters.records({letter.offset for letter in letters})
    buried = {record.offset(): (record.key(), hash(record.value())) for record in records}
    newest = _newest_items(settings, letters, {key for key, _ in buried.values() if key})
    found = set()
    for letter in letters:
        _, partition, offset = letter.place
        key, value = buried[letter.offset]
        at, newer = newest.get((partition, key or b""), (-1, value))
        if at > offset and newer != value:
            found.add(letter.offset)
    return found


def _newest_items(
    settings: "Settings", letters: list[Letter], keys: set[bytes]
) -> dict[tuple[int, bytes], tuple[int, int]]:
    """Offset and hash of the newest record, by partition and key, of crawl.items behind the first of these letters."""
    starts: dict[int, int] = {}
    for letter in letters:
        _, partition, offset = letter.place
        starts[partition] = min(offset, starts.get(partition, offset))
    if not starts:
        return {}
    topic = Topics(settings.kafka.prefix).items
    bounds = log_bounds(settings, topic, list(starts))
    ranges = {at: (max(starts[at], first), end) for at, (first, end) in bounds.items()}
    found = {}
    for record in read_partitions(settings, topic, ranges):
        if (key := record.key()) in keys:
            found[record.partition() or 0, key] = record.offset() or 0, hash(record.value())
    return found


def _redrive(
    settings: "Settings", producer: Producer, dead_letters: Dead, groups: list[list[Letter]], report: Report
) -> int:
    """Sends a batch and marks it; returns how many records were sent."""
    by_offset = {group[0].offset: group for group in groups}
    sent: dict[int, tuple[int, int]] = {}
    for record in dead_letters.records(set(by_offset)):
        offset = record.offset() or 0
        topic, partition, _ = by_offset[offset][0].place
        key, value, headers = _original(settings, by_offset[offset][0], record)
        if headers is None:
            report(f"{offset} stays: its record is no longer in {topic}, and was too large to be kept in crawl.dead")
            continue
        producer.send(
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            on_delivery=lambda *at, offset=offset: sent.__setitem__(offset, at),
        )
    _acknowledged(producer)
    crash_points.point("redrive.acknowledged")
    done = [by_offset[offset] for offset in sent]
    if done:
        jobs = sorted({letter.job for group in done for letter in group})
        renew_ends(settings, Topics(settings.kafka.prefix), jobs, REDRIVEN)
        _mark(settings, producer, letter_mark(done, "redriven", list(sent.values()), time.time()))
    return len(done)


def _original(
    settings: "Settings", letter: Letter, record: "Message"
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]:
    """The record's original key, value and headers; the headers are None if the record is gone."""
    headers = dead.own_headers(record_headers(record))
    if record.value() is not None:
        return record.key(), record.value(), headers
    topic, partition, offset = letter.place
    start, end = log_bounds(settings, topic, [partition])[partition]
    stored = record_at(settings, topic, partition, offset) if start <= offset < end else None
    return (None, None, None) if stored is None else (stored.key(), stored.value(), record_headers(stored))


def dropped(settings: "Settings", choice: LetterChoice, *, execute: bool) -> Dropping:
    """Marks the chosen letters as dropped; without `execute` only finds them."""
    letters = Dead(settings).chosen(choice)
    if execute:
        producer = CommandProducer(settings, "crawlog-dead")
        groups = letters_by_place(letters)
        for at in range(0, len(groups), BATCH):
            _mark(settings, producer, letter_mark(groups[at : at + BATCH], "dropped", [], time.time()))
    return Dropping(letters, execute)


def _mark(settings: "Settings", producer: Producer, done: dead.Mark) -> None:
    topic = Topics(settings.kafka.prefix).dead
    producer.send(topic, dead.encode_mark(done), partition=0, headers=done.headers())
    _acknowledged(producer)


def _acknowledged(producer: Producer) -> None:
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge what was redriven within {ACKNOWLEDGED_S:.0f} s; run it again")


def _at(record: "Message") -> float:
    return record.timestamp()[1] / 1000


def check_choice(offsets: tuple[int, ...], *, every: bool) -> None:
    """Checks that the options choose letters.

    Raises: Misconfigured: neither offsets nor --all, or both.
    """
    if bool(offsets) == every:
        raise Misconfigured("name the dead letters by their offsets, or take --all of them (with filters)")
