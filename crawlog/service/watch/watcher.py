"""The service's watch: looks at the fleet every 10 s, keeps the sample, raises and clears alerts, and calls about them.

    look ─► in a thread: RateHistory.note, Alerts.take ─► changes, kept with the alerts ─► calls, one after the other
                                                                                        └─ failed: again, `MOST_CALLS`

A change is kept before its call, and dropped from what is kept after it. So a service that is killed between calls once
more, with the same `X-Crawlog-Delivery`; one that goes on never calls twice for a change that was taken.
"""

import asyncio
import contextlib
import shutil
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from aiohttp import web

from crawlog.streams.errors import CrawlError
from crawlog.streams.fleet import letters_of

from .alerts import Alert, AlertChange, AlertLook, Alerts, findings
from .history import RateHistory
from .recent import Recent
from .samples import EVERY_S, FleetLook, Sampler

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetView
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

MOST_CALLS = 6  # Calls about one change, over a minute with these pauses; then it is given up

AGAIN_S = 2.0  # Pause after the first failure, seconds; it doubles with each further one

MOST_WAITING = 1_000  # Changes that wait for their call; beyond that the oldest ones are dropped

CALLS = "calls"  # Under which name the changes that wait are kept beside the alerts

Send = Callable[[str, bytes, str], Awaitable[str]]


class Watcher:
    """See the module.

    Args:
        history: None if its file cannot be had: alerts are raised all the same.
        send: Sends to a target: its body, and what identifies the delivery; why it was not taken, or empty.

    Attributes:
        looked_at: When it has looked last, UTC epoch seconds; 0 before. Alerts are as true as that is new.
    """

    def __init__(
        self, settings: "Settings", fleet: "FleetView", history: RateHistory | None, send: Send, now: float
    ) -> None:
        self.history = history
        self.looked_at = 0.0
        self._target = settings.service.alert
        self._data = Path(settings.run.data)
        self._fleet = fleet
        self._send = send
        self._sampler, self._recent = Sampler(), Recent()
        kept = history.alerts() if history is not None else {}
        self._waiting: list[AlertChange] = msgspec.json.decode(kept.pop(CALLS, "[]"), type=list[AlertChange])
        self._alerts = Alerts({name: msgspec.json.decode(one, type=Alert) for name, one in kept.items()}, now)
        self._has_calls = asyncio.Event()

    @property
    def raised(self) -> list[Alert]:
        """The alerts that are raised, in their order."""
        return self._alerts.in_order()

    async def run(self) -> None:
        """Looks and calls until it is cancelled."""
        calling = asyncio.create_task(self._call_all())
        try:
            while True:
                try:
                    await self._note(await asyncio.to_thread(self.look, time.time()))
                except (CrawlError, OSError) as error:  # the log does not answer
                    log.warning("watch_failed", error=str(error))
                except Exception as error:
                    log.exception("watch_failed", error=repr(error))
                await asyncio.sleep(EVERY_S - time.time() % EVERY_S)
        finally:
            calling.cancel()

    def look(self, now: float) -> list[AlertChange]:
        """Looks once; returns the alerts that were raised or cleared.

        Raises: EngineError: the log does not answer.
        """
        status, lost, letters = self._fleet.status(), self._fleet.lost(), letters_of(self._fleet)
        look = FleetLook(now, status.jobs, status.stages, len(status.workers), letters.total())
        sample = self._sampler.take(look)
        with _unharmed():
            if self.history is not None:
                self.history.note(now, sample)
        self._recent.take(now, status.jobs, status.workers, status.stages)
        disk = shutil.disk_usage(self._data)
        seen = AlertLook(now, status.jobs, status.workers, status.stages, letters, (disk.free, disk.total), lost)
        changes = self._alerts.take(findings(seen, self._recent), now)
        self.looked_at = now
        return changes

    async def _note(self, changes: list[AlertChange]) -> None:
        if not changes:
            return
        for one in changes:
            log.warning("alert" if one.is_raised else "alert_cleared", alert=one.alert.id, text=one.alert.text)
        if self._target:
            self._waiting = [*self._waiting, *changes][-MOST_WAITING:]
        await asyncio.to_thread(self._keep)
        self._has_calls.set()

    def _keep(self) -> None:
        kept = {name: msgspec.json.encode(one).decode() for name, one in self._alerts.raised.items()}
        with _unharmed():
            if self.history is not None:
                self.history.keep_alerts(kept | {CALLS: msgspec.json.encode(self._waiting).decode()})

    async def _call_all(self) -> None:
        while True:
            while self._waiting:
                change = self._waiting[0]
                await self._call(change)
                self._waiting = [one for one in self._waiting if one is not change]
                await asyncio.to_thread(self._keep)
            await self._has_calls.wait()
            self._has_calls.clear()

    async def _call(self, change: AlertChange) -> None:
        body, name = told(change, socket.gethostname()), "raised" if change.is_raised else "cleared"
        delivery = f"{change.alert.id}/{change.alert.since:.0f}/{name}"
        for tries in range(MOST_CALLS):
            try:
                error = await self._send(self._target, body, delivery)
            except Exception as failure:
                log.exception("alert_not_sent", alert=change.alert.id)
                error = repr(failure)
            if not error:
                return
            log.warning("alert_not_taken", alert=change.alert.id, change=name, call=tries + 1, error=error)
            await asyncio.sleep(AGAIN_S * 2**tries)


@contextlib.contextmanager
def _unharmed() -> Iterator[None]:
    """What cannot be kept, as on a full disk, harms nothing else."""
    try:
        yield
    except sqlite3.Error as error:
        log.warning("history_not_kept", error=str(error))


def told(change: AlertChange, machine: str) -> bytes:
    """A change as its receiver gets it.

    Args:
        machine: The service's.
    """
    state = {"state": "raised" if change.is_raised else "cleared", "at": change.at, "machine": machine}
    return msgspec.json.encode(state | msgspec.to_builtins(change.alert))


HISTORY: web.AppKey[RateHistory | None] = web.AppKey("history")
WATCHER: web.AppKey[Watcher] = web.AppKey("watcher", Watcher)


def prepare(app: web.Application, settings: "Settings", fleet: "FleetView") -> None:
    """Has the app watch while it serves."""
    from crawlog.agents.hooks import HookCaller

    try:
        history = RateHistory(settings.run.data / "service")
    except (OSError, sqlite3.Error) as error:
        log.warning("no_history", error=str(error), then="alerts are raised, and nothing is kept")
        history = None
    caller = HookCaller(settings)
    app[HISTORY] = history
    app[WATCHER] = watcher = Watcher(settings, fleet, history, caller.send, time.time())

    async def watching(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(watcher.run())
        yield
        task.cancel()
        await asyncio.wait([task])
        await caller.close()
        if history is not None:
            history.close()

    app.cleanup_ctx.append(watching)
