"""The new offsets of a group when a user resets them. Pure; the options mean the same as in `kafka-consumer-groups`.

A plan applies a target to each partition. An offset out of range is clipped with a warning. A time after the last
record means the end. A time without a zone is UTC. `--from-file` reads the format of `--export`, and Kafka's own tool
does too. groups.py lists the groups and moves their offsets.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from crawlog.streams.errors import Misconfigured

from .commits import HeldRange

# The options that name a target, with Kafka's names.
TargetKind = Literal[
    "to-earliest", "to-latest", "to-current", "to-datetime", "by-duration", "shift-by", "to-offset", "from-file"
]

# Longest duration: a hundred years. A longer one is a typing error, and leaves the range of timestamps.
LONGEST_MS = 36_500 * 86_400_000

LONGEST_TEXT = 64  # Longest text of a duration, characters

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?", re.IGNORECASE
)


class Target(NamedTuple):
    """The user's choice of new offsets.

    Attributes:
        number: The offset, the shift, or UTC epoch milliseconds, depending on the kind.
        offsets: By partition, for `from-file`; a partition that is not named stays.
    """

    kind: TargetKind
    number: int = 0
    offsets: Mapping[int, int] = {}

    @property
    def is_time(self) -> bool:
        return self.kind in ("to-datetime", "by-duration")


class Move(NamedTuple):
    """The reset of one partition.

    Attributes:
        before: The committed offset; None without a commit.
        after: The new offset.
        first, end: The records from `first` to before `end` are read again, or skipped if `after` is above `before`.
        gone: Records of the target that were trimmed from the log; an upper bound when the target is a time.
    """

    partition: int
    before: int | None
    after: int
    first: int
    end: int
    gone: int = 0

    @property
    def records(self) -> int:
        return self.end - self.first

    @property
    def is_skip(self) -> bool:
        return self.after == self.end > self.first


def plan(
    topic: str, target: Target, held: Mapping[int, HeldRange], times: Mapping[int, int] | None = None
) -> tuple[list[Move], list[str]]:
    """The moves of a topic's partitions, and warnings about offsets that are not in the log.

    Args:
        held: The partitions to move.
        times: The first offset at or after the target's time, by partition; negative where there is none.

    Raises: Misconfigured: a shift where nothing is committed, or a file that names another partition.
    """
    if unknown := sorted(target.offsets.keys() - held.keys()):
        raise Misconfigured(f"the file names partitions {unknown}, which {topic} does not have or --topic leaves out")
    moves, warnings = [], []
    for partition, range_ in sorted(held.items()):
        if target.kind == "from-file" and partition not in target.offsets:
            continue
        wanted = _wanted(topic, partition, target, range_, (times or {}).get(partition, -1))
        after = min(max(wanted, range_.first), range_.end)
        if after != wanted:
            side, edge = ("higher", "latest") if wanted > after else ("lower", "earliest")
            warnings.append(
                f"New offset ({wanted}) is {side} than {edge} offset for topic partition {topic}-{partition}."
                f" Value will be set to {after}."
            )
        moves.append(_move(partition, range_, after, _gone(target, range_, wanted)))
    return moves, warnings


def _wanted(topic: str, partition: int, target: Target, held: HeldRange, at_time: int) -> int:
    if target.kind == "to-earliest":
        return held.first
    if target.kind == "to-current":
        return held.end if held.committed is None else held.committed
    if target.is_time:
        return held.end if at_time < 0 else at_time
    if target.kind == "shift-by":
        if held.committed is None and held.first < held.end:
            raise Misconfigured(
                f"cannot shift {topic}-{partition}: the group has committed nothing there; name an offset or a time"
            )
        return held.end if held.committed is None else held.committed + target.number
    if target.kind == "to-offset":
        return target.number
    return target.offsets[partition] if target.kind == "from-file" else held.end


def _gone(target: Target, held: HeldRange, wanted: int) -> int:
    """Records of the target before the log's start; offsets begin at 0 and each is a record."""
    if target.kind == "to-earliest" or (target.is_time and wanted == held.first):
        return held.first
    return min(max(held.first - max(wanted, 0), 0), held.first)


def _move(partition: int, held: HeldRange, after: int, gone: int) -> Move:
    reads = held.first if held.committed is None else min(max(held.committed, held.first), held.end)
    return Move(partition, held.committed, after, min(reads, after), max(reads, after), gone)


# --- texts of options -----------------------------------------------------------------------------------------------


def moment_ms(text: str, option: str = "--to-datetime") -> int:
    """UTC epoch milliseconds of an ISO 8601 time. A time without a zone is UTC, as in Kafka's tool.

    Raises: Misconfigured: not a time.
    """
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Misconfigured(
            f"{option} {text!r:.60}: write it as 2026-01-31T14:00:00.000, in UTC, or with a zone: …Z, …+01:00"
        ) from None
    return round((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Milliseconds of a duration `PnDTnHnMnS`.

    Raises: Misconfigured: another form, or longer than LONGEST_MS.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found or not any(found.group(2, 4, 5, 6)) or found[3] in ("T", "t") or len(text) > LONGEST_TEXT:
        raise Misconfigured(f"--by-duration {text!r}: write it as PnDTnHnMnS, e.g. PT15M or P1DT6H")
    days, hours, minutes, seconds = (int(found[number] or 0) for number in (2, 4, 5, 6))
    fraction = int((found[7] or "").ljust(3, "0")[:3] or 0) * (-1 if (found[6] or "").startswith("-") else 1)
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction
    if abs(total) > LONGEST_MS:
        raise Misconfigured(f"--by-duration {text!r}: no log is that old; --to-earliest is its begin")
    return -total if found[1] == "-" else total


def chosen(topic: str, count: int, wanted: Iterable[str]) -> list[int]:
    """The partitions that `--topic NAME[:0,1]` names; all partitions without that option.

    Raises: Misconfigured: another topic, or no such partition.
    """
    partitions: set[int] = set()
    for text in wanted:
        name, colon, numbers = text.partition(":")
        if name != topic:
            raise Misconfigured(f"--topic {text}: this group reads {topic}")
        try:
            named = {int(number) for number in numbers.split(",")} if colon else set(range(count))
        except ValueError:
            raise Misconfigured(f"--topic {text}: write the partitions as {topic}:0,1") from None
        if outside := sorted(number for number in named if not 0 <= number < count):
            raise Misconfigured(f"--topic {text}: {topic} has the partitions 0 to {count - 1}, not {outside}")
        partitions |= named
    return sorted(partitions or range(count))


# --- the file of --export and --from-file ---------------------------------------------------------------------------


def exported(plans: Sequence[tuple[str, str, Sequence[Move]]]) -> str:
    """CSV lines `topic,partition,offset`; for several groups `group,topic,partition,offset`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, topic, moves in plans:
        for move in moves:
            row = (topic, move.partition, move.after)
            writer.writerow(row if len(plans) == 1 else (group, *row))
    return out.getvalue()


def imported(text: str, group: str, topic: str) -> dict[int, int]:
    """The offsets that a file has for a group, by partition; rows of other groups are skipped.

    Raises: Misconfigured: a line has another form or topic, or no line is for this group.
    """
    offsets: dict[int, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        *groups, name, partition, offset = row if len(row) in (3, 4) else ("", "", "", "", "")
        try:
            place = int(partition), int(offset)
        except ValueError:
            raise Misconfigured(
                f"--from-file, line {number}: expected topic,partition,offset or group,topic,partition,offset,"
                f" got {','.join(row)!r:.80}"
            ) from None
        if groups and groups[0] != group:
            continue
        if name != topic:
            raise Misconfigured(f"--from-file, line {number}: the group {group} reads {topic}, not {name}")
        offsets[place[0]] = place[1]
    if not offsets:
        raise Misconfigured(f"--from-file: it has no line for the group {group}")
    return offsets
