"""How far the crawl is, on standard error: a live table on a terminal, one line every ten seconds elsewhere."""

import math
import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

from crawlog.outcome import counted
from crawlog.schemas.progress import JobCounts
from crawlog.streams.printable import escaped
from crawlog.terminal import hinted, tell

from .picture import by_rule, needed

if TYPE_CHECKING:
    from rich.table import Table

    from crawlog.streams.log import CommonestError

LINE_EVERY_S = 10.0
SCREEN_EVERY_S = 0.5
HOSTS_SHOWN = 5
ERROR_CHARS = 80

WAITING = {"fetch": ("to queue", "record"), "parse": ("to parse", "page"), "sink": ("to write", "page")}
"""What a stage has before it, in words: links that were found and URLs that are done, pages, pages with rows."""


class Frame(NamedTuple):
    """What is shown at one moment.

    Attributes:
        counts: Of the job, over its whole life.
        rate: Pages per second, lately.
        lag: Records that wait, by stage.
        hosts: Slowest host queues: (host, queued, seconds until it may be asked), the longest first.
        paused: What a command keeps waiting; empty when nothing is.
        dead: Records that could not be handled in this run.
        commonest: Their commonest error; None where there is none.
        reading: What of the log is folded, while the rest still is; then there are no counts yet.
        naming: Hosts that wait for DNS.
        unanswered: Requests under way to hosts that have not answered yet, or not lately.
        left_s: Until what is queued now is fetched, an estimate, seconds; None where nobody can know.
    """

    job: str
    took_s: float
    counts: JobCounts
    rate: float
    lag: dict[str, int]
    hosts: list[tuple[str, int, float]]
    paused: str = ""
    dead: int = 0
    commonest: "CommonestError | None" = None
    left_s: float | None = None
    reading: str = ""
    naming: int = 0
    unanswered: int = 0


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
    return Screen(out) if out.isatty() else Lines(out)


class Lines:
    """One line every ten seconds."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.next_at = 0.0

    def say(self, line: str) -> None:
        """Shows one line."""
        tell(line, to=self._out)

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

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console  # a tenth of a second that a pipe need not pay
        from rich.live import Live

        self._console = Console(file=out)
        self._live: Live | None = Live(console=self._console, auto_refresh=False, transient=True)
        self.next_at = 0.0

    def say(self, line: str) -> None:
        """Shows one line above the table."""
        from rich.text import Text

        self._console.print(Text(escaped(hinted(line))))

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
    if frame.reading:
        return f"{frame.took_s:.0f} s: the log is read, {frame.reading}"
    counts = frame.counts
    waiting = ", ".join(
        f"{counted(count, WAITING[stage][1])} {WAITING[stage][0]}" for stage, count in frame.lag.items()
    )
    slowest = f", slowest {frame.hosts[0][0]} ({frame.hosts[0][1]} queued)" if frame.hosts else ""
    paused = f" ({frame.paused}: see `crawlog control list`)" if frame.paused else ""
    needs = f" ({told})" if (told := needed(counts.needs)) else ""
    left = f" (about {span(frame.left_s)})" if frame.left_s is not None else ""
    lost = sum(counts.dropped.values())
    dropped = f", {lost} dropped ({by_rule(counts.dropped)})" if lost else ""
    strangers = f" ({told})" if (told := _strangers(frame)) else ""
    not_handled = f", {frame.dead} not handled (see `crawlog dead list`{_commonest(frame)})" if frame.dead else ""
    return (
        f"{frame.took_s:.0f} s: {frame.rate:.1f} pages/s, {counts.queued} queued{paused}{needs}{left}, "
        + (f"{counts.held} held, " if counts.held else "")
        + f"{counts.in_flight} in flight{strangers}, {done(counts)} done, {counts.failed} failed"
        + f"{not_handled}{dropped}; waiting: {waiting}{slowest}"
    )


def _strangers(frame: Frame) -> str:
    """What hosts that may never answer are waited for; empty when none is."""
    naming = f"{counted(frame.naming, 'host')} waiting for DNS" if frame.naming else ""
    unanswered = f"{frame.unanswered:,} for a first answer" if frame.unanswered else ""
    return ", ".join(filter(None, (naming, unanswered)))


def done(counts: JobCounts) -> int:
    """URLs that ended, whatever became of them."""
    return counts.fetched + counts.redirected + counts.failed + counts.refused


def span(seconds: float) -> str:
    """A duration as an estimate: no more exact than it can be."""
    if seconds <= 90:
        return f"{5 * math.ceil(seconds / 5)} s"
    if seconds < 5400:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} days"


def _commonest(frame: Frame) -> str:
    """The commonest error of what could not be handled, and how often it is."""
    return f"; {frame.commonest.records:,} × {frame.commonest.error[:ERROR_CHARS]}" if frame.commonest else ""


def table(frame: Frame) -> "Table":
    """A frame as a table."""
    from rich.table import Table
    from rich.text import Text

    counts = frame.counts
    title = Text(escaped(f"{frame.job} · {frame.took_s:.0f} s"))
    shown = Table(title=title, title_justify="left", show_header=False, box=None, expand=True)
    shown.add_column(style="dim", min_width=12, no_wrap=True)
    shown.add_column(justify="right", min_width=10, no_wrap=True)
    shown.add_column(overflow="ellipsis", no_wrap=True, ratio=1)  # what is too long is cut here
    if frame.reading:
        shown.add_row("the log", "is read", frame.reading)
        return shown
    shown.add_row("pages/s", f"{frame.rate:,.1f}")
    paused = f"{frame.paused}: crawlog control list" if frame.paused else ""
    shown.add_row(
        "queued", f"{counts.queued:,}", Text(escaped(", ".join(filter(None, (paused, needed(counts.needs))))))
    )
    if counts.held:
        shown.add_row("held", f"{counts.held:,}", "not waited for: crawlog control list")
    if frame.left_s is not None:
        shown.add_row("end", "", f"in about {span(frame.left_s)}, if no more is found")
    shown.add_row("in flight", f"{counts.in_flight:,}", _strangers(frame))
    shown.add_row("done", f"{done(counts):,}", f"{counts.redirected:,} redirects, {counts.refused:,} refused")
    shown.add_row("failed", f"{counts.failed:,}", f"{counts.retried:,} retries")
    if counts.dropped:
        shown.add_row("dropped", f"{sum(counts.dropped.values()):,}", f"{by_rule(counts.dropped)}")
    if frame.dead:
        shown.add_row("not handled", f"{frame.dead:,}", Text(escaped(f"crawlog dead list{_commonest(frame)}")))
    for stage, count in frame.lag.items():
        shown.add_row(WAITING[stage][0], f"{count:,}", f"{WAITING[stage][1]}s")
    for number, (host, queued, wait_s) in enumerate(frame.hosts[:HOSTS_SHOWN]):
        told = Text(escaped(f"{host}, next in {wait_s:.1f} s"))  # a host in brackets is no markup
        shown.add_row("slowest" if not number else "", f"{queued:,}", told)
    return shown
