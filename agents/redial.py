"""Gets an exit a new address: by a command on this machine, or by a URL of the proxy's provider.

    due (the time, a ban) ─► hold: no further requests ─► those in flight end ─► pause ─► command or URL ─► pause
                                                                                              │
    the exit serves again, and what hosts had against it is forgotten ◄───────────────────────┘

One redial at a time in a worker: exits may share a line. The command is a setting of the worker, never of a record.
"""

import asyncio
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Protocol
from urllib.request import urlopen

import structlog

from crawlog.streams.settings import Settings

from .own_command import OWN, started

log = structlog.get_logger()

LOOK_S = 1.0  # Time between two looks whether an exit is due, seconds

BUSY_LOOK_S = 0.02  # The same whether its requests in flight have ended

HOLD_S = 1.0  # Time after which requests look again whether the exit serves, seconds

REDIAL_S = 120.0  # Longest time of a command or a request, seconds

AGAIN_S = 30.0  # Least time between two redials of an exit, also after one that failed, seconds

MOST_TOLD = 200  # Characters of a command's last line that are logged


class ExitControls(Protocol):
    """The exits of a worker, as a redial needs them."""

    def bans(self) -> Mapping[str, int]:
        """By the name of each exit, how often hosts have banned it; 0 where none does now."""

    def hold(self, name: str, until: float) -> None:
        """Let no further request go by the exit until then, on the monotonic clock."""

    def is_busy(self, name: str) -> bool:
        """Whether a request is under way by the exit."""

    async def drop_connections(self, name: str) -> None:
        """Close the connections by the exit."""

    def renew(self, name: str) -> None:
        """Forget what hosts have against the exit: it has a new address."""


class Redialing:
    """Redials the exits that `exits.redial` names."""

    def __init__(self, settings: Settings, lines: ExitControls) -> None:
        self._settings = settings.exits
        self._ends_s = settings.fetch.timeout_s
        self._lines = lines
        self._last: dict[str, tuple[float, int]] = {}
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Redial what is due, one exit at a time, until cancelled."""
        while self._settings.redial:
            for name, bans in self._lines.bans().items():
                order = self._order(name)
                if order and self._is_due(name, bans, time.monotonic()):
                    await self._redial(name, order, bans)
            await asyncio.sleep(LOOK_S)

    def _order(self, name: str) -> str:
        """The command or URL of an exit; empty without one."""
        return next((order for names, order in self._settings.redial.items() if fnmatchcase(name, names)), "")

    def _is_due(self, name: str, bans: int, now: float) -> bool:
        redialed_at, had = self._last.setdefault(name, (now, 0))
        is_time = 0 < self._settings.redial_every_s <= now - redialed_at
        return now >= self._not_before.get(name, now) and (is_time or bans > had)

    async def _redial(self, name: str, order: str, bans: int) -> None:
        holding = asyncio.create_task(self._hold(name))
        try:
            await asyncio.sleep(0)
            until = time.monotonic() + self._ends_s
            while self._lines.is_busy(name) and time.monotonic() < until:  # noqa: ASYNC110  # several places change it
                await asyncio.sleep(BUSY_LOOK_S)
            await self._lines.drop_connections(name)
            await asyncio.sleep(self._settings.redial_pause_s)
            await _perform(name, order)
            await asyncio.sleep(self._settings.redial_pause_s)
            self._lines.renew(name)
        except (OSError, ValueError, RuntimeError, TimeoutError) as error:
            log.warning("redial_failed", exit=name, error=str(error) or type(error).__name__, again_s=AGAIN_S)
        else:
            self._last[name] = time.monotonic(), bans
            log.info("redialed", exit=name)
        finally:
            holding.cancel()
            self._lines.hold(name, 0.0)
        self._not_before[name] = time.monotonic() + AGAIN_S

    async def _hold(self, name: str) -> None:
        """Hold it from now to now, so that requests that wait for it go on soon after."""
        while True:
            self._lines.hold(name, time.monotonic() + HOLD_S)
            await asyncio.sleep(HOLD_S / 4)


async def _perform(name: str, order: str) -> None:
    """Run a command, or ask a URL.

    Raises: OSError, ValueError, RuntimeError, TimeoutError: it failed. No message repeats it: it may hold a password.
    """
    async with asyncio.timeout(REDIAL_S):
        if order.startswith(("http://", "https://")):
            await asyncio.to_thread(_asked, order)
            return
        pipes = {"stdin": DEVNULL, "stdout": PIPE, "stderr": STDOUT}
        async with started(order, env={f"{OWN}EXIT": name}, **pipes) as running:
            output, _ = await running.communicate()
    if running.returncode:
        last = (output.decode(errors="replace").strip().splitlines() or [""])[-1][:MOST_TOLD]
        raise RuntimeError(f"the command ended with {running.returncode}: {last}")


def _asked(url: str) -> None:
    try:
        with urlopen(url, timeout=REDIAL_S) as response:  # noqa: S310  # the operator's, of http or https
            response.read(MOST_TOLD)
    except OSError as error:
        raise OSError(f"the URL answers with {getattr(error, 'code', None) or type(error).__name__}") from None
