"""How far the crawl is, on standard error: a live table on a terminal, one line every ten seconds elsewhere."""

import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

from .schemas.progress import JobCounts

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_S = 10.0
SCREEN_EVERY_S = 0.5
HOSTS_SHOWN = 5


class Frame(NamedTuple):
    """What is shown at one moment.

    Attributes:
        counts: Of the job, over its whole life.
        rate: Pages per second, lately.
        lag: Records that wait, by stage.
        hosts: Slowest host queues: (host, queued, seconds until it may be asked), the longest first.
        paused: What a command keeps waiting; empty when nothing is.
    """

    job: str
    took_s: float
    counts: JobCounts
    rate: float
    lag: dict[str, int]
    hosts: list[tuple[str, int, float]]
    paused: str = ""


class View(Protocol):
    """Where progress and single lines go."""

    def say(self, line: str) -> None:
        """Shows one line that stays."""

    def is_due(self, now: float) -> bool:
        """Whether a frame is wanted now, on a monotonic clock; the answer yes is given once."""

    def show(self, frame: Frame) -> None:
        """Shows a frame."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


def view(out: TextIO | None = None) -> View:
    """The view that suits standard error."""
    out = out or sys.stderr
    return Screen() if out.isatty() else Lines(out)


class Lines:
    """One line every ten seconds."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.next_at = 0.0

    def say(self, line: str) -> None:
        """Shows one line."""
        print(line, file=self._out, flush=True)

    def is_due(self, now: float) -> bool:
        """Ten seconds after the first question, and so on."""
        return _is_due(self, now, LINE_EVERY_S)

    def show(self, frame: Frame) -> None:
        """Shows a frame as one line."""
        self.say(line(frame))

    def close(self) -> None:
        """Nothing to do."""


class Screen:
    """A table that is painted over."""

    def __init__(self) -> None:
        from rich.console import Console  # a tenth of a second that a pipe need not pay
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live: Live | None = Live(console=self._console, auto_refresh=False, transient=True)
        self.next_at = 0.0

    def say(self, line: str) -> None:
        """Shows one line above the table."""
        self._console.print(line, markup=False, highlight=False)

    def is_due(self, now: float) -> bool:
        """Twice a second."""
        return _is_due(self, now, SCREEN_EVERY_S)

    def show(self, frame: Frame) -> None:
        """Paints a frame."""
        if self._live:
            self._live.start()
            self._live.update(table(frame), refresh=True)

    def close(self) -> None:
        """Takes the table away; what was said stays."""
        if self._live:
            self._live.stop()
            self._live = None


def _is_due(timed: Lines | Screen, now: float, every_s: float) -> bool:
    if now < timed.next_at:
        return False
    first = timed.next_at == 0.0 and every_s == LINE_EVERY_S
    timed.next_at = now + every_s
    return not first


def line(frame: Frame) -> str:
    """A frame as one line."""
    counts = frame.counts
    lag = " ".join(f"{stage} {count}" for stage, count in frame.lag.items())
    slowest = f", slowest {frame.hosts[0][0]} ({frame.hosts[0][1]} queued)" if frame.hosts else ""
    paused = f" ({frame.paused}: see `crawlog control list`)" if frame.paused else ""
    return (
        f"{frame.took_s:.0f} s: {frame.rate:.1f} pages/s, {counts.queued} queued{paused}, "
        f"{counts.in_flight} in flight, {done(counts)} done, {counts.failed} failed, lag {lag}{slowest}"
    )


def done(counts: JobCounts) -> int:
    """URLs that ended, whatever became of them."""
    return counts.fetched + counts.redirected + counts.failed + counts.refused


def table(frame: Frame) -> "Table":
    """A frame as a table."""
    from rich.table import Table

    counts = frame.counts
    shown = Table(title=f"{frame.job} · {frame.took_s:.0f} s", title_justify="left", show_header=False, box=None)
    shown.add_column(style="dim", width=12)
    shown.add_column(justify="right", width=10)
    shown.add_column(overflow="ellipsis", no_wrap=True)
    shown.add_row("pages/s", f"{frame.rate:,.1f}")
    shown.add_row("queued", f"{counts.queued:,}", f"{frame.paused}: crawlog control list" if frame.paused else "")
    shown.add_row("in flight", f"{counts.in_flight:,}")
    shown.add_row("done", f"{done(counts):,}", f"{counts.redirected:,} redirects, {counts.refused:,} refused")
    shown.add_row("failed", f"{counts.failed:,}", f"{counts.retried:,} retries")
    for stage, count in frame.lag.items():
        shown.add_row(f"lag {stage}", f"{count:,}")
    for number, (host, queued, wait_s) in enumerate(frame.hosts[:HOSTS_SHOWN]):
        shown.add_row("slowest" if not number else "", f"{queued:,}", f"{host}, next in {wait_s:.1f} s")
    return shown
