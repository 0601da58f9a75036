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
from crawlog.service.watch import Alert, AlertLook, Alerts, Recent, findings
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
            status, alerts = fleet.status()
            shown = {**msgspec.structs.asdict(status), "alerts": alerts}
            answer(*([msgspec.json.encode(shown).decode()] if as_json else _text(status, alerts)))
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
        self._recent, self._alerts = Recent(), Alerts({}, time.time())
        self.view = FleetView(settings).start()

    def status(self) -> tuple[FleetStatus, list[Alert]]:
        """The fleet now, and what needs a look. Raises: EngineError: the log does not answer."""
        if self._is_local and (settings := engine.again(self._settings, self._settings.run.data)) != self._settings:
            view = FleetView(settings).start()
            self.view.close()
            self._settings, self.view = settings, view
        found, letters, now = self.view.status(), letters_of(self.view), time.time()
        jobs = tuple(msgspec.structs.replace(one, dead=letters[one.name]) for one in found.jobs)
        self._recent.take(now, jobs, found.workers, found.stages)
        look = AlertLook(now, jobs, found.workers, found.stages, letters)
        self._alerts.take(findings(look, self._recent), now)
        return msgspec.structs.replace(found, jobs=jobs, dead=letters.total()), self._alerts.in_order()

    def close(self) -> None:
        """Closes the view."""
        self.view.close()


def _text(status: FleetStatus, alerts: list[Alert]) -> list[str]:
    console = Console(width=shutil.get_terminal_size((120, 0)).columns, color_system=None)
    with console.capture() as captured:
        console.print(top_text.frame(status, alerts, top_text.TopView(), time.time()))
    return [line.rstrip() for line in captured.get().splitlines()]


def _live(fleet: LiveFleet, interval_s: float) -> int:
    console, view, (status, alerts), note, next_at = Console(), top_text.TopView(), fleet.status(), "", 0.0
    with Live(console=console, screen=True, auto_refresh=False) as live, _each_key():
        while True:
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + interval_s
                try:
                    (status, alerts), note = fleet.status(), ""
                except EngineError:  # the broker may be restarting
                    note = AWAY
            height = console.size.height
            live.update(top_text.frame(status, alerts, view, time.time(), height, note), refresh=True)
            for key in _keys(max(0.0, next_at - time.monotonic())):
                page = top_text.room(status, len(alerts), height)[0]
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
