"""Ends a worker that is stuck, with one line that says why, so that its supervisor starts a new one.

Consumers are known to stop in silence after trouble with the broker. Stuck means: the group's coordination ended; or
no assignment soon after the start; or records wait and nothing moved for long; or the broker answers and the group's
heartbeats do not get through; or an agent failed; or the event loop itself stands still (seen from a thread). A
broker that is away is not stuck: there is nothing a new process could do better. Where the cause is a damaged log, no
new process could either: the worker ends for good. The state on disk and the committed offsets are right at any
instant, so the end is at once.
"""

import asyncio
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)
from mode import Service

from crawlog.streams import exit_codes
from crawlog.streams.errors import AccessDenied, DamagedLog, EngineError
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.log import Admin, access_denied, check_readable

from .lease import boottime
from .member import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawlog.streams.settings import Settings

    from .contract import App

log = structlog.get_logger()

STUCK_S = 60.0
"""No progress for this long while records wait. Every wait that crawlog imposes is shorter, and reports itself with
`beat` where others may follow it: a worker that is ended amid a wait begins it anew, and so for ever."""

HEARTBEATS = "heartbeats"
"""What waits where the broker answers and the group's heartbeats do not get through."""

DENIALS = (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

LOOK_S = 2.0
"""Rest between two looks."""

ASK_S = 5.0
"""How long the consumer's thread may take to say where the log ends."""


class Watchdog(Service):
    """Looks whether the worker gets on; `beat()` says that it does, or that it waits on purpose.

    Args:
        assignment_s: How long the first assignment may take. It takes 1.2 s as a rule; longer where a member died just
            before, or does not join.
    """

    logger = LIBRARY

    def __init__(self, app: "App", *, assignment_s: float, stuck_s: float = STUCK_S, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.app = app
        self.stuck_s = stuck_s
        self.assignment_s = assignment_s
        self._beats = 0
        self._assigned = False
        self._loop_at = 0.0
        self.on_blocked: Callable[[str], None] = lambda _why: None
        """Told, in a thread, before a worker whose event loop stands still is ended: what it holds may be the cause."""

    def beat(self) -> None:
        """Something moved, or waits for a reason of its own."""
        self._beats += 1

    def assigned(self) -> None:
        """An assignment came; an empty one counts."""
        self._assigned = True
        self.beat()

    async def on_start(self) -> None:
        """Watch the loop from outside."""
        self._loop_at = time.monotonic()
        threading.Thread(target=self._guard, name="watchdog", daemon=True).start()

    @Service.task
    async def _watch(self) -> None:
        started = moved = time.monotonic()
        seen = self._signs()
        doubted = False
        while not self.should_stop:
            await self.sleep(min(LOOK_S, self.stuck_s / 4))
            now = self._loop_at = time.monotonic()
            failure = self.app.reader.thread.failure
            if failure:
                self.end("coordination_ended", denial(self.app.crawl, failure), error=repr(failure))
            elif self._signs() != seen:
                seen, moved, doubted = self._signs(), now, False
            elif not self._assigned:
                if now - started > self.assignment_s and await self._broker_answers():
                    self.end("no_assignment", after_s=round(now - started))
            elif now - moved > self.stuck_s:
                waiting = await self._waiting()
                if waiting and doubted:
                    await self._end_at_rest(round(now - moved), waiting)
                doubted = bool(waiting)  # the first record after a long rest may have come just now

    async def _end_at_rest(self, after_s: int, waiting: str) -> None:
        if waiting != HEARTBEATS:
            await self.look_at_log()
        self.end("no_progress", after_s=after_s, waiting=waiting)

    async def look_at_log(self) -> None:
        """End the worker for good where the log cannot be read on: a new one would meet the same record."""
        positions = self.app.positions
        places = {partition: positions.next(partition) or 0 for partition in positions.owned}
        try:
            await asyncio.to_thread(check_readable, self.app.crawl, self.app.input_name, places)
        except DamagedLog as error:
            self.end("log_damaged", error)
        except EngineError as error:
            log.warning("log_silent", group=self.app.conf.id, error=str(error))

    def _signs(self) -> tuple[int, int]:
        return self._beats, self.app.positions.moves

    async def _waiting(self) -> str:
        """What waits while nothing moves; empty when nothing does, or when the broker is away."""
        positions = self.app.positions
        try:
            async with asyncio.timeout(ASK_S):
                held = await self.app.reader.ranges(set(positions.owned))
        except (TimeoutError, KafkaError):
            return HEARTBEATS if not self.app.lease.held(boottime()) and await self._broker_answers() else ""
        behind = {partition: found.end - (positions.next(partition) or 0) for partition, found in held.items()}
        return ",".join(f"{partition}:{lag}" for partition, lag in sorted(behind.items()) if lag > 0)

    async def _broker_answers(self) -> bool:
        """Whether any broker takes a connection."""
        for address in self.app.crawl.kafka.bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                async with asyncio.timeout(ASK_S):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except (OSError, TimeoutError):
                continue
            writer.close()
            return True
        return False

    def _guard(self) -> None:
        """What ends the thread ends the worker: without it a blocked loop would hold its partitions for ever."""
        try:
            self._watch_loop()
        except Exception as error:  # noqa: BLE001  # whatever it is
            if not self.should_stop:
                self.end("watchdog_broken", error=repr(error))

    def _watch_loop(self) -> None:
        """Time counts in looks: a process that was stopped and continued has a loop that could not go on."""
        still_s, seen = 0.0, self._loop_at
        while not self.should_stop:
            time.sleep(LOOK_S)
            still_s, seen = (still_s + LOOK_S if seen == self._loop_at else 0.0), self._loop_at
            if still_s > self.stuck_s and not self.should_stop:
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
                self.on_blocked(f"loop_blocked at {where}")
                self.end("loop_blocked", after_s=round(still_s), at=where)

    def end(self, why: str, cause: BaseException | None = None, code: int = EX_TEMPFAIL, **fields: object) -> None:
        """One line, then the end of the process; the supervisor starts no new one where the cause would stay."""
        if cause is not None and exit_codes.is_for_good(cause):
            exit_codes.end(cause, why=why, group=self.app.conf.id, worker=self.app.worker_name, **fields)
        log.critical("worker_stuck", why=why, group=self.app.conf.id, worker=self.app.worker_name, **fields)
        os._exit(code)


def denial(settings: "Settings", error: BaseException) -> AccessDenied | None:
    """An error of aiokafka as ours, if the cluster denies access.

    It says no more than that it found no broker where it could not log in: another client then asks for the reason.
    """
    if isinstance(error, AccessDenied):
        return error
    if isinstance(error, DENIALS):
        return access_denied(settings, f"{type(error).__name__} {error}".strip())
    if isinstance(error, KafkaConnectionError):
        try:
            Admin(settings).metadata()
        except AccessDenied as reason:
            return reason
        except EngineError:
            return None
    return None
