"""`crawlog jobs top`: the fleet, live on a terminal. Elsewhere one frame as text, as `top -b -n1` does.

FleetView (in its thread) ─► FleetStatus, each interval ─┐
keys, as they come ──────────► TopView ──────────────────┴─► top_text.frame ─► rich.Live
"""

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.live import Live

from crawlog import outcome
from crawlog.jobs.changes import listed_jobs
from crawlog.streams import engine
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import FleetStatus, FleetView, letters_of
from crawlog.terminal import answer

from . import top_text

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

FIRST_S = 3.0  # How long one frame waits for the first report of a worker, seconds

AWAY = "the log does not answer: crawlog doctor"


def show(settings: "Settings", interval_s: float, *, as_json: bool) -> int:
    """Shows the fleet until `q` or Ctrl-C; one frame if standard output is no terminal, or as JSON.

    Raises: EngineError: the log does not answer at the start.
    """
    with contextlib.closing(LiveFleet(settings)) as fleet:
        if as_json or not sys.stdout.isatty():
            fleet.view.wait_until(lambda state: bool(state.processes), FIRST_S)
            status = fleet.status()
            answer(*([msgspec.json.encode(status).decode()] if as_json else _text(status)))
            return outcome.FINISHED
        with outcome.stopped_by_signals():
            return _live(fleet, interval_s)


class LiveFleet:
    """The fleet's view, also behind a restart of the local engine, which has another address then.

    Raises: EngineError: the log does not answer.
    """

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._is_local = engine.is_at(settings.run.data, settings.kafka.bootstrap)
        self.view = FleetView(settings).start()

    def status(self) -> FleetStatus:
        """The fleet now, with open dead letters. Raises: EngineError: the log does not answer."""
        if self._is_local and (now := engine.again(self._settings, self._settings.run.data)) is not self._settings:
            view = FleetView(now).start()
            self.view.close()
            self._settings, self.view = now, view
        status = self.view.status()
        jobs = tuple(listed_jobs(self.view))
        return msgspec.structs.replace(status, jobs=jobs, dead=letters_of(self.view).total())

    def close(self) -> None:
        """Closes the view."""
        self.view.close()


def _text(status: FleetStatus) -> list[str]:
    console = Console(width=shutil.get_terminal_size((120, 0)).columns, color_system=None)
    with console.capture() as captured:
        console.print(top_text.frame(status, top_text.TopView(), time.time()))
    return [line.rstrip() for line in captured.get().splitlines()]


def _live(fleet: LiveFleet, interval_s: float) -> int:
    console, view, status, note, next_at = Console(), top_text.TopView(), fleet.status(), "", 0.0
    with Live(console=console, screen=True, auto_refresh=False) as live, _each_key():
        while True:
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + interval_s
                try:
                    status, note = fleet.status(), ""
                except EngineError:  # the broker may be restarting
                    note = AWAY
            height = console.size.height
            live.update(top_text.frame(status, view, time.time(), height, note), refresh=True)
            for key in _keys(max(0.0, next_at - time.monotonic())):
                page = top_text.room(status, height)[0]
                wanted = top_text.pressed(view, key, len(status.jobs), page)
                if wanted is None:
                    return outcome.FINISHED
                view = wanted


@contextlib.contextmanager
def _each_key() -> Iterator[None]:
    """Has the terminal give each key at once, without Return, within the block."""
    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    try:
        if before:
            tty.setcbreak(sys.stdin)
        yield
    finally:
        if before:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _keys(wait_s: float) -> Iterator[str]:
    """The keys that come within this time, as soon as there are some; none if standard input is no terminal."""
    if not sys.stdin.isatty():
        time.sleep(wait_s)
    elif select.select([sys.stdin], [], [], wait_s)[0]:
        yield from split(os.read(sys.stdin.fileno(), 1_024).decode(errors="replace"))


def split(text: str) -> Iterator[str]:
    """Keys in what a terminal sent: an arrow is one key of several characters."""
    while text:
        key = next((one for one in top_text.MOVES if text.startswith(one)), text[0])
        text = text.removeprefix(key)
        yield key
