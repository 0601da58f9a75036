"""Shows progress on standard error: a live table on a terminal, otherwise one line every ten seconds.

`Pace` is pure: the caller passes the time as `now`.
"""

import sys
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

from crawlog.outcome import by_rule, counted, left_text, needed
from crawlog.schemas.progress import JobCounts
from crawlog.streams.fleet import STILL, EndEstimate, JobPace
from crawlog.streams.jobs import traits
from crawlog.streams.printable import escaped
from crawlog.terminal import hinted, tell

if TYPE_CHECKING:
    from rich.table import Table

    from crawlog.streams.dead_letters import CommonestError

LINE_EVERY_S = 10.0
SCREEN_EVERY_S = 0.5
HOSTS_SHOWN = 5
ERROR_CHARS = 80

RATE_WINDOW_S = 5.0  # Pages per second are a mean over this time

SAMPLE_S = 0.5  # Minimum time between two samples

# Words for each stage's lag. The records before fetch are found links and done URLs; those before sink have rows.
WAITING = {"fetch": ("to queue", "record"), "parse": ("to parse", "page"), "sink": ("to write", "page")}


class Frame(NamedTuple):
    """The values shown at one moment.

    Attributes:
        counts: Counts of the job since its start.
        rate: Pages per second over the last seconds.
        lag: Records that each stage has not read yet.
        hosts: Slowest host queues: (host, queued, seconds until the next request), the longest first.
        paused: Parts that are paused, in words; empty if there are none.
        dead: Records that could not be handled in this run.
        commonest: Their commonest error; None if there is none.
        reading: How much of the log is folded, in words; empty once all of it is. Counts are valid only then.
        naming: Hosts that wait for DNS.
        unanswered: Requests in flight to hosts that have not answered yet, or not recently.
        is_starting: Whether the spider's `start` may give more requests.
        left: How long it needs at least; None if unknown.
        state: Of the job's record, which commands in force do not change.
        is_stalled: Whether the log does not answer: all else is as it was before, and `lag` is empty.
        rows: Rows of the job in its outputs; None if none has reported yet.
        pace: Its pages and rows of the last minute.
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
    left: EndEstimate | None = None
    is_starting: bool = False
    reading: str = ""
    naming: int = 0
    unanswered: int = 0
    state: str = "running"
    is_stalled: bool = False
    rows: int | None = None
    pace: JobPace = STILL


class View(Protocol):
    """The output for progress and single lines."""

    def say(self, *lines: str) -> None:
        """Shows lines that stay."""

    def is_due(self, now: float) -> bool:
        """Whether the next frame is due at `now`, monotonic time; True once per interval."""

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

    def say(self, *lines: str) -> None:
        """Shows lines."""
        tell(*lines, to=self._out)

    def is_due(self, now: float) -> bool:
        """True ten seconds after the first call, then every ten seconds."""
        return _is_due(self, now, LINE_EVERY_S)

    def show(self, frame: Frame) -> None:
        """Shows a frame as one line."""
        self.say(line(frame))

    def close(self) -> None:
        """Nothing to do."""


class Screen:
    """A live table."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console  # takes 0.1 s, only needed on a terminal
        from rich.live import Live

        self._console = Console(file=out)
        self._live: Live | None = Live(console=self._console, auto_refresh=False, transient=True)
        self.next_at = 0.0

    def say(self, *lines: str) -> None:
        """Shows lines above the table, which is painted once for all of them."""
        from rich.text import Text

        self._console.print(Text("\n".join(escaped(hinted(line)) for line in lines)))

    def is_due(self, now: float) -> bool:
        """Twice a second."""
        return _is_due(self, now, SCREEN_EVERY_S)

    def show(self, frame: Frame) -> None:
        """Paints a frame."""
        if self._live:
            self._live.start()
            self._live.update(table(frame), refresh=True)

    def close(self) -> None:
        """Removes the table; printed lines stay."""
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
    if frame.is_stalled:
        return f"{frame.took_s:.0f} s: the log does not answer, see `crawlog doctor`; {done(counts)} done before"
    if frame.reading:
        return f"{frame.took_s:.0f} s: the log is read, {frame.reading}"
    waiting = ", ".join(
        f"{counted(count, WAITING[stage][1])} {WAITING[stage][0]}" for stage, count in frame.lag.items()
    )
    slowest = f", slowest {frame.hosts[0][0]} ({frame.hosts[0][1]} queued)" if frame.hosts else ""
    way_on = f"`{_resume(frame)}` lets it go on" if frame.state == "paused" else "see `crawlog control list`"
    paused = f" ({frame.paused}: {way_on})" if frame.paused else ""
    needs = f" ({told})" if (told := needed(counts.needs)) else ""
    left = f" ({left_text(frame.left)})" if frame.left is not None else ""
    left += ", `start` goes on" if frame.is_starting else ""
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


def _resume(frame: Frame) -> str:
    """The command that lets a job go on whose record says that it is paused."""
    return f"crawlog jobs resume {frame.job}"


def _strangers(frame: Frame) -> str:
    """Counts of hosts that wait for DNS and of requests that wait for a first answer, in words; empty if both are 0."""
    naming = f"{counted(frame.naming, 'host')} waiting for DNS" if frame.naming else ""
    unanswered = f"{frame.unanswered:,} for a first answer" if frame.unanswered else ""
    return ", ".join(filter(None, (naming, unanswered)))


def done(counts: JobCounts) -> int:
    """URLs that are done, with any outcome."""
    return counts.fetched + counts.redirected + counts.failed + counts.refused


def _commonest(frame: Frame) -> str:
    """The commonest error of the dead letters, with its count and its place."""
    if frame.commonest is None:
        return ""
    error, records, place = frame.commonest
    return f"; {records:,} × {error[:ERROR_CHARS]}" + (f" ({place})" if place else "")


def _ahead(frame: Frame) -> list[tuple[str, str, str]]:
    """Rows of the table about what is still to come."""
    start = [("start", "", "goes on: it may give more requests")] if frame.is_starting else []
    end = [("end", "", f"{left_text(frame.left)}, if no more is found")] if frame.left is not None else []
    return start + end


def table(frame: Frame) -> "Table":
    """A frame as a table."""
    from rich.table import Table
    from rich.text import Text

    counts = frame.counts
    stalled = " · the log does not answer: crawlog doctor" if frame.is_stalled else ""
    title = Text(escaped(f"{frame.job} · {frame.took_s:.0f} s{stalled}"))
    shown = Table(title=title, title_justify="left", show_header=False, box=None, expand=True)
    shown.add_column(style="dim", min_width=12, no_wrap=True)
    shown.add_column(justify="right", min_width=10, no_wrap=True)
    shown.add_column(overflow="ellipsis", no_wrap=True, ratio=1)  # long text is cut in this column
    if frame.reading:
        shown.add_row("the log", "is read", frame.reading)
        return shown
    shown.add_row("pages/s", f"{frame.rate:,.1f}")
    way_on = _resume(frame) if frame.state == "paused" else "crawlog control list"
    paused = f"{frame.paused}: {way_on}" if frame.paused else ""
    shown.add_row(
        "queued", f"{counts.queued:,}", Text(escaped(", ".join(filter(None, (paused, needed(counts.needs))))))
    )
    if counts.held:
        why = f"the job is {frame.state}" if traits(frame.state).ended else "crawlog control list"
        shown.add_row("held", f"{counts.held:,}", f"not waited for: {why}")
    for row in _ahead(frame):
        shown.add_row(*row)
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
        told = Text(escaped(f"{host}, next in {wait_s:.1f} s"))  # not as markup: a host may be in brackets
        shown.add_row("slowest" if not number else "", f"{queued:,}", told)
    return shown


class Pace:
    """Samples of one job's page count over the last seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, pages: int, now: float) -> None:
        """Adds a sample. Call this often, but only once all partitions have reported."""
        if self._looks and now - self._looks[-1][0] < SAMPLE_S:
            return
        if self._looks and pages < self._looks[-1][1]:  # the job has begun again
            self._looks.clear()
        self._looks.append((now, pages))
        while len(self._looks) > 2 and self._looks[1][0] < now - RATE_WINDOW_S:
            self._looks.popleft()

    def rate(self) -> float:
        """Pages per second over the last `RATE_WINDOW_S`, or since the first sample if that is later."""
        if not self._looks:
            return 0.0
        now, pages = self._looks[-1]
        since, before = next((look for look in reversed(self._looks) if look[0] < now - RATE_WINDOW_S), self._looks[0])
        return (pages - before) / (now - since) if now > since else 0.0
