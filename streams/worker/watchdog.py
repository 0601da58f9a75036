"""Ends a worker that is stuck, with one line that says why, so that its supervisor starts a new one.

Consumers are known to stop silently after trouble with the broker. A worker is stuck if
    - the group's coordination ended,
    - no assignment came soon after the start,
    - it has partitions, the broker answers, and it reads none of them,
    - records wait and nothing moved for long,
    - the group's heartbeats do not get through,
    - an agent failed,
    - the event loop is blocked (a thread checks that),
    - or the wall clock was set back (so does it): Kafka's client waits until times of that clock.
A worker is not stuck while the cluster keeps it from working, by the same look as `crawlog doctor`'s: a new process
could do no better. After damage of the log the worker ends
for good, since a new one would meet the same damage. The state on disk and the commits are consistent at any instant,
so the worker exits at once; after a change of the clock nothing is broken, and it hands its partitions over.
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
from crawlog.streams.cluster import Admin, access_denied
from crawlog.streams.errors import AccessDenied, DamagedLog, EngineError
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.log import check_readable, health

from .lease import boottime
from .member import LIBRARY
from .own_process import stop_for_restart

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawlog.streams.groups import HeldRange
    from crawlog.streams.settings import Settings

    from .contract import App

log = structlog.get_logger()

# Limit without progress while records wait. Every deliberate wait of crawlog calls `beat` meanwhile, or is shorter and
# calls it if others may follow: a worker ended during a wait would begin that wait again, for ever.
STUCK_S = 60.0

HEARTBEATS = "heartbeats"  # Result of `_waiting` when the group's heartbeats do not get through

DENIALS = (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

LOOK_S = 2.0  # Interval of the checks

# A wall clock that was set back by more ends the worker. librdkafka waits until times of that clock, so that each of
# its waits takes as much longer; less passes like any silence.
SET_BACK_S = 5.0

ASK_S = 5.0  # Timeout for the log's bounds from the consumer's thread


class Watchdog(Service):
    """Checks that the worker makes progress; `beat()` reports progress, or a deliberate wait.

    Args:
        assignment_s: Limit of the first assignment. It usually takes 1.2 s, and longer if a member died just before or
            does not join.
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
        """Called in a thread before a worker with a blocked event loop is ended: a key it holds may be the cause."""

    def beat(self) -> None:
        self._beats += 1

    def assigned(self) -> None:
        """An assignment came; an empty one counts."""
        self._assigned = True
        self.beat()

    @property
    def is_assigned(self) -> bool:
        """Whether an assignment has come."""
        return self._assigned

    async def on_start(self) -> None:
        """Start the thread that watches the event loop."""
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
                if now - started > self.assignment_s:
                    await self._end_of_itself("no_assignment", after_s=round(now - started))
                    started = time.monotonic()
            elif now - moved > self.stuck_s:
                waiting = await self._waiting()
                if waiting and doubted:
                    await self._end_at_rest(round(now - moved), waiting)
                    moved = time.monotonic()
                doubted = bool(waiting)  # the first record after a long rest may have come just now

    @Service.task
    async def _watch_reading(self) -> None:
        """End a worker that does not begin to read its partitions, whether it beats or not."""
        read, rebalances = time.monotonic(), 0
        while not self.should_stop:
            await self.sleep(min(LOOK_S, self.stuck_s / 4))
            begun = self.app.reader.thread.rebalances
            if begun != rebalances or await self._reads():
                read, rebalances = time.monotonic(), begun
            elif time.monotonic() - read > self.stuck_s:
                await self._end_of_itself("not_reading", after_s=round(time.monotonic() - read))
                read = time.monotonic()

    async def _end_at_rest(self, after_s: int, waiting: str) -> None:
        if waiting != HEARTBEATS:
            await self.look_at_log()
        await self._end_of_itself("no_progress", after_s=after_s, waiting=waiting)

    async def look_at_log(self) -> None:
        """End the worker for good if the log is damaged: a new worker would meet the same record."""
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

    async def _reads(self) -> bool:
        """Whether the assignment has begun, or there is none, or the broker does not answer: its start then waits.

        Another check limits the wait for the first assignment.
        """
        if self.app.positions.owned or not self._assigned:
            return True
        assigned = self.app.reader.partitions()
        return not assigned or await self._ranges(assigned) is None

    async def _ranges(self, partitions: set[int]) -> "dict[int, HeldRange] | None":
        """Log bounds and commits of these partitions; None if the broker does not answer."""
        try:
            async with asyncio.timeout(ASK_S):
                return await self.app.reader.ranges(partitions)
        except (TimeoutError, KafkaError):
            return None

    async def _waiting(self) -> str:
        """Partitions with lag, or HEARTBEATS; empty if there is no lag."""
        positions = self.app.positions
        held = await self._ranges(set(positions.owned))
        if held is None:
            return "" if self.app.lease.held(boottime()) else HEARTBEATS
        behind = {partition: found.end - (positions.next(partition) or 0) for partition, found in held.items()}
        return ",".join(f"{partition}:{lag}" for partition, lag in sorted(behind.items()) if lag > 0)

    async def _end_of_itself(self, why: str, **fields: object) -> None:
        """End the worker, unless the cluster keeps it from working: it then has the same time again."""
        try:
            faults = await asyncio.to_thread(cluster_faults, self.app.crawl)
        except AccessDenied:
            faults = []
        except EngineError as error:
            faults = [str(error).splitlines()[0]]
        if faults:
            log.warning("cluster_ails", group=self.app.conf.id, why="; ".join(faults), then="wait for it")
        else:
            self.end(why, None, EX_TEMPFAIL, **fields)

    def _guard(self) -> None:
        """End the worker if this thread fails: without it a blocked loop would hold its partitions for ever."""
        try:
            self._watch_loop()
        except Exception as error:  # noqa: BLE001  # whatever it is
            if not self.should_stop:
                self.end("watchdog_broken", error=repr(error))

    def _watch_loop(self) -> None:
        """Count checks, not clock time: while the process was suspended (SIGSTOP) its loop could not run."""
        still_s, seen = 0.0, self._loop_at
        ahead = time.time() - time.monotonic()
        while not self.should_stop:
            time.sleep(LOOK_S)
            before, ahead = ahead, time.time() - time.monotonic()
            if before - ahead > SET_BACK_S and not self.should_stop:
                log.warning("clock_set_back", by_s=round(before - ahead), then="exit for a restart")
                stop_for_restart("clock_set_back")
            still_s, seen = (still_s + LOOK_S if seen == self._loop_at else 0.0), self._loop_at
            if still_s > self.stuck_s and not self.should_stop:
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
                self.on_blocked(f"loop_blocked at {where}")
                self.end("loop_blocked", after_s=round(still_s), at=where)

    def end(self, why: str, cause: BaseException | None = None, code: int = EX_TEMPFAIL, **fields: object) -> None:
        """Log one line and exit; after a lasting cause with a code for which the supervisor starts no new worker."""
        if cause is not None and exit_codes.is_for_good(cause):
            exit_codes.end(cause, why=why, group=self.app.conf.id, worker=self.app.worker_name, **fields)
        log.critical("worker_stuck", why=why, group=self.app.conf.id, worker=self.app.worker_name, **fields)
        os._exit(code)


def cluster_faults(settings: "Settings") -> list[str]:
    """What is wrong with the cluster that no worker can help.

    Raises: EngineError: it does not answer.
    """
    return [one.found for one in health.ailments(health.look(Admin(settings))) if one.stops]


def denial(settings: "Settings", error: BaseException) -> AccessDenied | None:
    """An error of aiokafka as `AccessDenied`, if the cluster denies access; else None.

    After a refused login aiokafka only says that it found no broker, so another client asks for the reason.
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
