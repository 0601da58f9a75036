"""The answers of `crawlog status --hosts`: a table."""

import time
from typing import TYPE_CHECKING

from crawlog.outcome import counted
from crawlog.streams.hosts import HOST_RESTS
from crawlog.terminal import table

if TYPE_CHECKING:
    from crawlog.streams.hosts import HostPage, ListedHost

SHOWN = 30  # Hosts in the table, at most


def host_lines(page: "HostPage", now: float) -> list[str]:
    """The hosts as a table, with the age of the oldest figure.

    Args:
        now: UTC epoch seconds.
    """
    counts = ", ".join(f"{count:,} {name}" for name, count in page.counts.items() if name != "all")
    lines = [f"{counted(page.counts['all'], 'host')}: {counts}"]
    if not page.hosts:
        return [*lines, "none to show; workers report hosts that have URLs left, or were asked in the last day"]
    head = ("host", "", "queued", "a minute", "results", "delay", "next", "why", "exit", "age")
    rows = [_cells(one, now) for one in page.hosts]
    if page.total > len(rows):
        lines[0] += f"; {len(rows)} of {page.total:,} shown, `--json` prints all"
    return [*lines, *table([head, *rows], right=(2, 3, 9))]


def _cells(one: "ListedHost", now: float) -> tuple[str, ...]:
    results = " ".join(f"{name}:{count}" for name, count in sorted(one.results.items(), key=lambda of: -of[1])[:5])
    delay = f"{one.delay_s:g} s" + (f" ({one.delay_of})" if one.delay_of != "setting" else "")
    return (
        one.host,
        ",".join(one.kinds) or "-",
        f"{one.queued:,}",
        f"{one.rate:g}",
        results or "-",
        delay,
        f"in {one.next_at - now:.0f} s" if one.next_at > now else "-",
        HOST_RESTS.get(one.rests, "-"),
        one.exit or "-",
        f"{max(now - one.reported_at, 0):.0f} s",
    )


def host_answer(page: "HostPage", *, as_json: bool) -> list[str]:
    """The answer: a table, or one JSON object a host."""
    import msgspec

    if as_json:
        return [msgspec.json.encode(one).decode() for one in page.hosts]
    return host_lines(page, time.time())
