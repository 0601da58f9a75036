"""Numbers and times as pages show them; pure."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from crawlog.streams.printable import escaped

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def seconds(duration: float) -> str:
    """A duration in its two largest units: `45 s`, `3 min`, `2 h 5 min`, `4 d 1 h`."""
    if duration < 10:
        return f"{duration:.1f} s".replace(".0 s", " s")
    if duration < 60:
        return f"{duration:.0f} s"
    rest, parts = int(duration), []
    for size, unit in UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def count(value: float) -> str:
    """A number with thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float) -> str:
    """A rate: `0.4`, `12`, `1 200`."""
    return f"{value:.1f}".removesuffix(".0") if value < 10 else count(value)


def size(value: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1_024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1_024
    return f"{value:.1f} TiB"


def moment(at: float) -> str:
    """A time as ISO 8601 in UTC, to the second; empty for 0."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""
    except (ValueError, OverflowError, OSError):  # any client may have written it
        return "?"


def pretty(value: Any) -> str:
    """A value as JSON in several lines."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "moment": moment,
    "one_line": escaped,
    "pretty": pretty,
    "rate": rate,
    "seconds": seconds,
    "size": size,
}
