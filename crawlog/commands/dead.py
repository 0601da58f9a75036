"""`crawlog dead`: the dead letters in crawl.dead shown, sent back to where they failed, or laid aside.

Redriving: the records → their topics, acknowledged → a mark on crawl.dead, acknowledged; batch by batch. Killed in
between, the records of one batch go back twice, which changes nothing: founds are known by then, a done has no row
left, and items replace themselves.
"""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.outcome import counted
from crawlog.schemas import dead, pages
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.log import (
    Letter,
    LetterChoice,
    Letters,
    Producer,
    Topics,
    letter_fate,
    letter_mark,
    letters_by_error,
    letters_by_place,
    log_bounds,
    partition_count,
    read_records,
    redrive_refusal,
)
from crawlog.terminal import hinted

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

BATCH = 100
"""Records redriven before they are marked: what a kill repeats at most."""

ACKNOWLEDGED_S = 60.0
"""How long a batch may take to be acknowledged, seconds."""

SHOWN_BYTES = 4096
"""Bytes of a record's value that `show` prints."""

Report = Callable[[str], None]


class Dead:
    """crawl.dead, read once."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        names = Topics(settings.kafka.prefix)
        self.partitions = partition_count(settings)  # says at once where there are no topics yet
        self._topic = names.dead
        self.start, self.end = log_bounds(settings, self._topic, [0])[0]
        self.letters = Letters()
        for record in read_records(settings, self._topic, 0, self.start, self.end):
            self.letters.take(record.offset() or 0, _at(record), _headers(record), record.value())

    def record(self, offset: int) -> "Message":
        """A letter as it lies in the log.

        Raises: Misconfigured: there is none at that offset.
        """
        found = (
            next(read_records(self._settings, self._topic, 0, offset, offset + 1), None) if offset in self.all else None
        )
        if found is None:
            raise Misconfigured(f"there is no dead letter {offset} in {self._topic}; see `crawlog dead list --all`")
        return found

    @property
    def all(self) -> dict[int, Letter]:
        """Every letter by its offset."""
        return self.letters.all

    def chosen(self, choice: LetterChoice) -> list[Letter]:
        """The open letters meant.

        Raises: Misconfigured: an offset that is no letter.
        """
        missing = sorted(choice.offsets - self.all.keys())
        if missing:
            raise Misconfigured(
                f"no dead letter at {', '.join(map(str, missing))} in {self._topic}; see `crawlog dead list`"
            )
        return self.letters.chosen(choice)

    def records(self, offsets: set[int]) -> "Iterator[Message]":
        """The records of these letters, in their order."""
        if offsets:
            for record in read_records(self._settings, self._topic, 0, min(offsets), max(offsets) + 1):
                if record.offset() in offsets:
                    yield record


def listed(settings: "Settings", choice: LetterChoice, limit: int, *, handled: bool, as_json: bool) -> list[str]:
    """The newest letters meant as lines: by error, the commonest first, and oldest first."""
    dead_letters = Dead(settings)
    found = dead_letters.letters.chosen(choice, handled=handled)
    shown = found[-limit:]
    if as_json:
        return [json.dumps(_as_dict(letter)) for letter in shown]
    lines = _grouped(found, {letter.offset for letter in shown})
    closed = sum(bool(letter.handled) for letter in dead_letters.all.values())
    left_out = f", the newest {len(shown)} shown" if len(shown) < len(found) else ""
    dealt_with = f"{closed} dealt with" + (" (--all shows them)" if closed else "")
    return [*lines, f"{counted(len(found), 'dead letter')}{left_out}; {dealt_with}"]


def _grouped(letters: list[Letter], shown: set[int]) -> list[str]:
    """A line for each error, and under it a line for each letter that is shown: a limit hides no error."""
    lines = []
    for group in letters_by_error(letters):
        newest = group[-1]
        lines.append(f"{counted(len(group), 'dead letter')} of {newest.stage or '?'}: {newest.error}")
        lines += [_entry(letter) for letter in group if letter.offset in shown]
    return lines


def _entry(letter: Letter) -> str:
    """A letter under its error."""
    job = f"  job {letter.job}" if letter.job else ""
    return f"{letter.offset:>8}  {_clock(letter.at)}{job}  {letter.url or _place(letter)}{_became(letter)}"


def _line(letter: Letter) -> str:
    """A letter by itself."""
    job = f" job {letter.job}" if letter.job else ""
    url = f"  {letter.url}" if letter.url else ""
    who = f"{letter.stage or '?'}{job}{url}"
    return f"{letter.offset:>8}  {_clock(letter.at)}  {who}  {_place(letter)}{_became(letter)}  {letter.error}"


def _place(letter: Letter) -> str:
    topic, partition, offset = letter.place
    return f"{topic}[{partition}]:{offset}"


def _became(letter: Letter) -> str:
    """How often it was tried, and whether it was dealt with."""
    tries = f", try {letter.tries}" if letter.tries > 1 else ""
    return tries + (f" [{letter_fate(letter)}]" if letter.handled else "")


def _as_dict(letter: Letter) -> dict[str, Any]:
    topic, partition, offset = letter.place
    fields: dict[str, Any] = msgspec.structs.asdict(letter)
    del fields["place"]
    return fields | {"topic": topic, "partition": partition, "record_offset": offset}


def shown(settings: "Settings", offset: int, *, as_json: bool) -> list[str]:
    """One letter with all it has, as lines."""
    dead_letters = Dead(settings)
    record = dead_letters.record(offset)
    letter, headers = dead_letters.all[offset], _headers(record)
    said = dead.from_headers(dict(headers), record.key(), record.value())
    own = {name: value.decode("utf-8", "replace") for name, value in dead.own_headers(headers)}
    value = record.value()
    if as_json:
        fields = _as_dict(letter) | {"traceback": said.traceback, "headers": own}
        key = None if said.key is None else said.key.decode("utf-8", "replace")
        return [json.dumps(fields | {"key": key, "value": None if value is None else value.decode("utf-8", "replace")})]
    lines = [_line(letter).strip(), f"  key {said.key!r:.200}"]
    lines += [f"  header {name}: {text}" for name, text in own.items()]
    lines += ["", *said.traceback.rstrip().splitlines()] if said.traceback else []
    return [*lines, "", *_pretty(value)]


def _pretty(value: bytes | None) -> list[str]:
    """A record's value: JSON indented, other text as it is, in part."""
    if value is None:
        return ["(the record was as large as a record may be: it lies at its place only)"]
    try:
        text = json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = value[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    cut = [f"… {len(value):,} bytes in all"] if len(text) > SHOWN_BYTES or len(value) > len(text.encode()) else []
    return [*text[:SHOWN_BYTES].splitlines(), *cut]


def redriven(settings: "Settings", choice: LetterChoice, *, execute: bool, report: Report) -> list[str]:
    """Sends the records of the letters meant back to their stages; without `execute` says what it would send."""
    dead_letters = Dead(settings)
    groups, told = _groups(settings, dead_letters.chosen(choice), dead_letters.partitions)
    for group in groups:
        topic, partition, _ = group[0].place
        size = "its body from its place" if group[0].size_bytes is None else f"{group[0].size_bytes:,} bytes"
        told.append(f"{_numbers(group)} → {topic}[{partition}], {size}, try {group[0].tries + 1}")
    if not execute:
        return [*told, f"{counted(len(groups), 'record')} would go back to the log; --execute does it"]
    producer = Producer(settings, "crawlog-dead")
    batches = [groups[at : at + BATCH] for at in range(0, len(groups), BATCH)]
    sent = sum(_redrive(settings, producer, dead_letters, batch, report) for batch in batches)
    return [*told, f"{counted(sent, 'record')} went back to the log, acknowledged; workers take them as any other"]


def _groups(settings: "Settings", letters: list[Letter], partitions: int) -> tuple[list[list[Letter]], list[str]]:
    """Letters by record, and lines about those whose record cannot go back."""
    inputs = Topics(settings.kafka.prefix).inputs
    refused = [(group, redrive_refusal(group[0], inputs, partitions)) for group in letters_by_place(letters)]
    told = [f"{_numbers(group)} stays: {why}" for group, why in refused if why]
    return [group for group, why in refused if not why], told


def _redrive(
    settings: "Settings", producer: Producer, dead_letters: Dead, groups: list[list[Letter]], report: Report
) -> int:
    """Send a batch and mark it; how many records went back."""
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
    done = [by_offset[offset] for offset in sent]
    if done:
        _mark(settings, producer, letter_mark(done, "redriven", list(sent.values()), time.time()))
    return len(done)


def _original(
    settings: "Settings", letter: Letter, record: "Message"
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]:
    """Key, value and headers as the record had them; no headers where it is gone."""
    headers = dead.own_headers(_headers(record))
    if record.value() is not None or pages.HEADER not in dict(headers):
        return record.key(), record.value(), headers
    topic, partition, offset = letter.place
    start, end = log_bounds(settings, topic, [partition])[partition]
    stored = next(read_records(settings, topic, partition, offset, offset + 1), None) if start <= offset < end else None
    return (None, None, None) if stored is None else (stored.key(), stored.value(), _headers(stored))


def dropped(settings: "Settings", choice: LetterChoice, *, execute: bool) -> list[str]:
    """Marks the letters meant as dealt with; without `execute` says which."""
    letters = Dead(settings).chosen(choice)
    told = [_line(letter) for letter in letters]
    if not execute:
        return [*told, f"{counted(len(letters), 'dead letter')} would be laid aside; --execute does it"]
    producer = Producer(settings, "crawlog-dead")
    groups = letters_by_place(letters)
    for at in range(0, len(groups), BATCH):
        _mark(settings, producer, letter_mark(groups[at : at + BATCH], "dropped", [], time.time()))
    where = hinted("still in the log (`crawlog dead list --all`)")
    return [*told, f"{counted(len(letters), 'dead letter')} laid aside, {where}"]


def _mark(settings: "Settings", producer: Producer, done: dead.Mark) -> None:
    topic = Topics(settings.kafka.prefix).dead
    producer.send(topic, dead.encode_mark(done), partition=0, headers=done.headers())
    _acknowledged(producer)


def _acknowledged(producer: Producer) -> None:
    if not producer.flush(ACKNOWLEDGED_S):
        raise EngineError(f"Kafka did not acknowledge what was redriven within {ACKNOWLEDGED_S:.0f} s; run it again")


def _numbers(group: list[Letter]) -> str:
    return ", ".join(str(letter.offset) for letter in group)


def _headers(record: "Message") -> list[tuple[str, bytes]]:
    named: list[tuple[str, bytes | None]] = list(record.headers() or ())  # type: ignore[arg-type]  # pairs, never a dict
    return [(name, value or b"") for name, value in named]


def _at(record: "Message") -> float:
    return record.timestamp()[1] / 1000


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def check_choice(offsets: tuple[int, ...], *, every: bool) -> None:
    """Whether it is said which letters are meant.

    Raises: Misconfigured: neither offsets nor --all, or both.
    """
    if bool(offsets) == every:
        raise Misconfigured("name the dead letters by their offsets, or take --all of them (with filters)")
