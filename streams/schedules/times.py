"""The planned times of a rule. Pure: the same rule and database of time zones give the same times.

    cron, of certain hours ─► local times: one that the clock skips is planned at the end of the gap, one that comes
                              twice at its first coming
    cron, of every hour ────► as real time goes: the hour that comes twice counts twice
    every T ────────────────► since + T, since + 2 T …

These are the rules of Debian's cron(8). croniter is asked about clocks without changes alone: beside a change it plans
`45 1 * * *` in Lord Howe at 02:15 of the next day, and leaves out an hour of `0 * * * *` (its release 5.0.1).
"""

from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from croniter import croniter

from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import shown_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawlog.schemas.schedules import JobSchedule

DAY = 86_400

STEP = 7 * DAY  # Two changes of an offset within a week that undo each other are not seen

ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")

EVERY_HOUR = set(range(24))

FIELDS = 5

# Stands in the names of outputs for the time of the run: `%(time)s` of a feed at the epoch, as the name of an output.
NO_TIME = "1970-01-01T00-00-00-00-00"


class TimeRule(Protocol):
    """Planned times, UTC epoch seconds."""

    def after(self, at: int) -> int | None:
        """The first one later than `at`; None if there is none."""


class Every:
    """Each `step` seconds from `since` on, the first one a step later."""

    def __init__(self, since: int, step: int) -> None:
        self._since = since
        self._step = step

    def after(self, at: int) -> int | None:
        return self._since + max((at - self._since) // self._step + 1, 1) * self._step


class Cron:
    """The times of a cron expression in a time zone.

    Raises: Misconfigured: it is no expression, or there is no such zone.
    """

    def __init__(self, expression: str, zone: str) -> None:
        fields = expression.lower().split()
        is_random = any(part[:1] in ("r", "h") for field in fields for part in field.split(","))
        if (len(fields) != FIELDS and fields not in [[alias] for alias in ALIASES]) or is_random:
            raise Misconfigured(
                f"{expression!r:.100} is no cron expression: minute, hour, day, month and weekday, such as"
                f" '0 6 * * 1-5'; or one of {', '.join(ALIASES)}"
            )
        try:
            self._cron = croniter(" ".join(fields))
        except ValueError as error:
            raise Misconfigured(f"{expression!r:.100} is no cron expression: {error}") from None
        try:
            self._zone = ZoneInfo(zone)
        except (KeyError, OSError, ValueError):  # not there; a folder; a path
            raise Misconfigured(
                f"there is no time zone {zone!r:.100}; names are such as Europe/Berlin or UTC"
            ) from None
        self._known = 0, 0  # no planned time lies between these, and the second one is one
        hours = self._cron.expanded[1]
        self._is_hourly = hours == ["*"] or set(hours) >= EVERY_HOUR

    def after(self, at: int) -> int | None:
        """The first planned time later than `at`; None if there is none within 50 years."""
        if self._known[0] <= at < self._known[1]:
            return self._known[1]
        found = self._found(at)
        if found is not None:
            self._known = at, found
        return found

    def _found(self, at: int) -> int | None:
        wall = at + self._offset(at)  # as seconds: a clock without changes
        changed = self._change(at - DAY, at)
        if changed is not None and not self._is_hourly:  # local times that have come already do not come again
            wall = max(wall, changed + self._offset(changed - 1) - 1)
        while (found := self._wall_after(wall)) is not None:
            offset = self._offset(at)
            changed = self._change(at, found - offset)
            if changed is None:
                return found - offset
            skipped_to = changed + self._offset(changed)
            if not self._is_hourly and changed + offset <= found < skipped_to:
                return changed
            at, wall = changed, skipped_to - 1
            if not self._is_hourly:
                wall = max(wall, changed + offset - 1)
        return None

    def _wall_after(self, wall: int) -> int | None:
        try:
            return int(self._cron.get_next(float, start_time=float(wall)))
        except (OverflowError, ValueError):  # no such day in 50 years, such as 30 February
            return None

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, UTC).astimezone(self._zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())

    def _change(self, begin: int, end: int) -> int | None:
        """The first time in (begin, end] with another offset than just before; None without one."""
        while begin < end:
            upto = min(begin + STEP, end)
            before = self._offset(begin)
            if self._offset(upto) != before:
                while upto - begin > 1:
                    middle = (begin + upto) // 2
                    begin, upto = (middle, upto) if self._offset(middle) == before else (begin, middle)
                return upto
            begin = upto
        return None


def rule_of(schedule: "JobSchedule") -> TimeRule:
    """The rule of a schedule. Raises: Misconfigured: it has none that can be read here."""
    if schedule.every_s:
        return Every(schedule.since, schedule.every_s)
    return _cron(schedule.cron, schedule.zone)


@lru_cache(maxsize=1_000)
def _cron(expression: str, zone: str) -> Cron:
    return Cron(expression, zone)


def times(rule: TimeRule, after: int, upto: int) -> "Iterator[int]":
    """The planned times in (after, upto]."""
    while (at := rule.after(after)) is not None and at <= upto:
        yield at
        after = at


def newest(rule: TimeRule, after: int, upto: int, most: int) -> list[int]:
    """The last `most` planned times in (after, upto], however long that is: a year has half a million minutes."""
    found, back = list(islice(times(rule, after, upto), most + 1)), 3_600
    if len(found) <= most:
        return found
    while len(found := list(times(rule, max(after, upto - back), upto))) < most:
        back *= 8
    return found[-most:]


def stamp(schedule: "JobSchedule", at: int) -> str:
    """A planned time in the name of a run: `20261129T0600Z`; with seconds if it, or its schedule, may have some."""
    return shown_time(at).strftime("%Y%m%dT%H%M%SZ" if schedule.every_s or at % 60 else "%Y%m%dT%H%MZ")
