"""How far parse is in crawl.pages, and which pages it would leave out if it went on at its group's commit.

    lost by the log first     commit 40, the log starts at 100     the pages 40 to 99 are gone: they are fetched again
    group moved forward by    commit 100, parse last reported 40   the pages 40 to 99 are passed over: they are parsed,
    another program                                                unless the user accepts it

A commit of a worker or of `crawlog replay` is marked by its metadata, so it is taken as it is. Any other commit is
compared with the last report of parse in crawl.progress.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import TopicPartition

from crawlog.schemas import control, progress
from crawlog.schemas.control import Skipped
from crawlog.streams import groups
from crawlog.streams.cluster import Admin, committed_offsets, log_bounds
from crawlog.streams.control import acknowledged
from crawlog.streams.groups import REPLAY_ALL, is_planned
from crawlog.streams.log import CommandProducer, Topics, read_around, stage_group

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class ParsePlace(NamedTuple):
    """Parse's place in one partition.

    Attributes:
        parsed: Each page before it was parsed, or left out by a replay.
        first, end: The bounds of the partition.
        moved: The commit of another program, if there is one.
    """

    parsed: int
    first: int
    end: int
    moved: int | None = None

    @property
    def start(self) -> int:
        return max(self.parsed, self.first)

    @property
    def gone(self) -> range:
        return range(self.parsed, min(self.first, self.end))

    @property
    def passed_over(self) -> range:
        """The pages in the log that a move by another program leaves out."""
        return range(self.start, min(self.moved or 0, self.end))


def parse_places(settings: "Settings", names: Topics, numbers: Iterable[int]) -> dict[int, ParsePlace]:
    """Parse's place in each of these partitions. Raises: EngineError: the cluster does not answer."""
    numbers = sorted(numbers)
    committed = committed_offsets(settings, stage_group(settings, "parse"), names.pages, numbers)
    bounds = log_bounds(settings, names.pages, numbers)  # after the commits, so that none is behind the end
    has_unsure = any(
        not is_planned(committed[at][1]) if at in committed else first > 0 for at, (first, _) in bounds.items()
    )
    reported = _reported(settings, names) if has_unsure else {}
    return {at: parse_place(committed.get(at), first, end, reported.get(at, 0)) for at, (first, end) in bounds.items()}


def parse_place(committed: tuple[int, str] | None, first: int, end: int, reported: int) -> ParsePlace:
    """Parse's place in a partition. Pure.

    Args:
        committed: Offset and metadata of the group's commit; None without one: reading then begins at the log's start.
        reported: The offset that parse reported last, 0 for none.
    """
    if committed is None:
        return ParsePlace(min(first, reported), first, end)
    offset, metadata = committed
    if is_planned(metadata):
        return ParsePlace(offset, first, end)
    return ParsePlace(min(offset, reported), first, end, offset)


def _reported(settings: "Settings", names: Topics) -> dict[int, int]:
    """The offsets that parse reported last, by partition. Each worker reports every second or two."""
    found: dict[int, int] = {}
    start, end = log_bounds(settings, names.progress, [0])[0]
    for record in read_around(settings, names.progress, 0, start, end, lambda _: None):
        report = progress.decode(record.value())
        if report is not None and report.stage == "parse":
            found[report.partition] = report.offset
    return found


def passed_over(settings: "Settings") -> dict[int, range]:
    """The pages that a move of parse's group by another program leaves out, by partition.

    Raises: EngineError: the cluster does not answer.
    """
    names = Topics(settings.kafka.prefix)
    places = parse_places(settings, names, range(groups.count(Admin(settings), names.pages)))
    return {at: place.passed_over for at, place in places.items() if place.passed_over}


def ranges_text(ranges: "dict[int, range]") -> str:
    """Offsets for users: `offsets 12 to 40 of partition 3, 7 of partition 5`."""
    told = (f"{one.start} to {one.stop - 1}" if len(one) > 1 else f"{one.start}" for one in ranges.values())
    return "offsets " + ", ".join(f"{text} of partition {at}" for at, text in zip(ranges, told, strict=True))


def accept_skipped(settings: "Settings") -> None:
    """Take a move of parse's group by another program for a replay, which leaves records out.

    Raises: Misconfigured: the group has members. EngineError: the cluster does not answer.
    """
    admin, names = Admin(settings), Topics(settings.kafka.prefix)
    note_skipped(settings, passed_over(settings))
    parse = groups.Group(stage_group(settings, "parse"), "parse", names.pages)
    found = committed_offsets(settings, parse.name, parse.topic, range(groups.count(admin, parse.topic)))
    moved = [
        TopicPartition(parse.topic, at, offset, REPLAY_ALL)
        for at, (offset, metadata) in found.items()
        if not is_planned(metadata)
    ]
    if moved:
        groups.commit(admin, parse, moved)


def note_skipped(settings: "Settings", ranges: "dict[int, range]") -> None:
    """Note in crawl.control that the user leaves these pages out: no check misses their results.

    Raises: EngineError: the log cannot be written.
    """
    if not ranges:
        return
    producer, names = CommandProducer(settings, "crawlog-skip"), Topics(settings.kafka.prefix)
    for at, one in ranges.items():
        note = Skipped(at, one.start, one.stop)
        producer.send(names.control, control.encode(note), key=control.key(note), partition=0)
    acknowledged(producer, names.control)
