"""Follows crawl.control from its beginning, and finds bad records on it and on crawl.progress.

    crawl.control  ─► ControlThread ─┬─► commands ─► StageCommands: may the stage work?
                                     ├─► an order to this process ─► it ends as at SIGTERM
    crawl.progress ─►                ├─► jobs, joins, probes ─► the stage
                                     ├─► reports of exits and of those that use them ─► fetch, exit
                                     └─► bad records ─► the parse stage ─► crawl.dead

It is a plain consumer in a thread, because every worker needs every job and command, whatever partitions it owns. A
stage sends bad records of its input to crawl.dead. These two topics are no stage's input, so parse workers do the same
for bad records that arrive while they run.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from crawlog.schemas import control
from crawlog.schemas.progress import Progress
from crawlog.streams.errors import AccessDenied
from crawlog.streams.fleet import AtEnd, BadRecord, ControlRecord, Item, ReadFault, Report, Tail
from crawlog.streams.jobs import Commands
from crawlog.streams.log import Topics
from crawlog.streams.settings import Settings
from crawlog.streams.worker import is_for_us, stop_as_ordered

if TYPE_CHECKING:
    from crawlog.streams.worker import CrawlApp

log = structlog.get_logger()

POLL_S = 0.5  # Longest wait of one poll, and so the longest delay of a stop

FETCH_WAIT_MS = 1_000  # Wait of a fetch of crawl.control; the first record ends it

# Time between two looks at crawl.progress for bad reports, and for exits: each report by itself would cost a fetch of
# its own.
REPORTS_EVERY_S, EXITS_EVERY_S = 5.0, 1.0

BEAT_S = 1.0  # Time between two beats with which a stage tells the watchdog that it waits on purpose

T = TypeVar("T")


Take = Callable[[control.Control], None]
Found = Callable[[BadRecord], None]
Reported = Callable[[Progress], None]


class ControlThread:
    """Reads crawl.control in a thread, and passes its records to the event loop.

    Args:
        take: Called with each control record, the oldest first.
        found: Called with each bad record; None if another stage handles these.
        caught_up: Called once, after all records that the topic held at the start.
        reported: Called in the thread with each new report of crawl.progress; None if nobody wants them.
        failed: Called in the thread with the error that ended it; no record follows.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        take: Take,
        found: Found | None = None,
        caught_up: Callable[[], None] = lambda: None,
        reported: Reported | None = None,
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        self._reported = reported
        self._failed = failed
        self._settings = settings
        self._topics = topics
        self._pass_on = take
        self._found = found
        self._caught_up = caught_up
        self._is_caught_up = False
        self._reports_at = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. Call this once, from the loop."""
        self._thread = threading.Thread(target=self._run, args=(loop,), name="control", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; does not wait for it."""
        self._stop.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._follow(loop)
        except Exception as error:  # noqa: BLE001  # after any error the worker receives no more commands
            if not loop.is_closed():  # else the worker has ended
                self._failed(error)

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        names = self._topics
        reads_reports = self._found is not None or self._reported is not None
        every_s = EXITS_EVERY_S if self._reported is not None else REPORTS_EVERY_S
        places = {names.control: OFFSET_BEGINNING} | ({names.progress: OFFSET_END} if reads_reports else {})
        with closing(Tail(self._settings, places, joins=True, batch=1, fetch_wait_ms=FETCH_WAIT_MS)) as tail:
            while not self._stop.is_set():
                for item in tail.poll(POLL_S):
                    self._take(item, tail, loop)
                if reads_reports and time.monotonic() >= self._reports_at:
                    self._reports_at = time.monotonic() + every_s
                    tail.go_on(names.progress)

    def _take(self, item: Item, tail: Tail, loop: asyncio.AbstractEventLoop) -> None:
        """Passes one item on.

        Raises:
            DamagedLog: A command or a job cannot be read.
            AccessDenied: This user may not read the topic.
            KafkaException: The place in crawl.control was lost; the next worker reads it from the beginning.
        """
        if isinstance(item, ControlRecord) and item.record is not None:
            loop.call_soon_threadsafe(self._pass_on, item.record)
        elif isinstance(item, Report):
            if self._reported is not None:
                self._reported(item.report)
        elif isinstance(item, BadRecord):
            self._bury(item, loop)
        elif isinstance(item, ReadFault) and (
            item.topic == self._topics.control or isinstance(item.error, AccessDenied)
        ):
            raise item.error
        elif isinstance(item, AtEnd) and item.topic == self._topics.progress:
            tail.pause(item.topic)  # until the next look
        elif isinstance(item, AtEnd) and not self._is_caught_up:
            self._is_caught_up = True
            loop.call_soon_threadsafe(self._caught_up)

    def _bury(self, bad: BadRecord, loop: asyncio.AbstractEventLoop) -> None:
        """Passes a bad record on; of those that are older than this worker, the workers that ran then did so."""
        is_control = bad.topic == self._topics.control
        if is_control:
            log.warning("control_record_bad", offset=bad.offset, error=bad.error)
        if self._found is not None and (self._is_caught_up or not is_control):
            loop.call_soon_threadsafe(self._found, bad)


class StageCommands:
    """Applies the operator's commands to one worker. The stage does not work before all older commands are known.

    Args:
        apply: Called with the commands in force, once the older ones are known, and again after each new one.

    Attributes:
        is_rebalancing: A rebalance has begun: waits end, and records that were not taken are read again.
    """

    def __init__(self, stage: str, apply: Callable[[Commands], None] = lambda _: None) -> None:
        self._stage = stage
        self._apply = apply
        self._commands = Commands()
        self._known = False
        self._is_held = False
        self.is_rebalancing = False
        self._changed = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether a command pauses the stage, or this process alone."""
        return self._is_held or self._commands.of_stage(self._stage).paused

    @property
    def is_known(self) -> bool:
        """Whether all records were read that crawl.control held at the start."""
        return self._known

    @property
    def works(self) -> bool:
        """Whether the stage may work."""
        return self._known and not self.paused

    def take(self, record: control.Control) -> None:
        """Apply a record of crawl.control if it is a command."""
        if not isinstance(record, control.Command):
            return
        self._commands.take(record)
        if self._known:
            log.info("command", action=record.action, kind=record.kind, target=record.target)
            self._apply_all()

    def hold(self, *, held: bool) -> None:
        """Pause this process alone, or let it go on."""
        self._is_held = held
        if self._known:
            self._apply_all()

    def caught_up(self) -> None:
        """Let the stage work: all older commands are known."""
        self._known = True
        for command in self._commands.in_force:
            log.info("command_in_force", action=command.action, kind=command.kind, target=command.target)
        self._apply_all()

    def _apply_all(self) -> None:
        self._changed.set()
        self._apply(self._commands)

    def rebalance_started(self) -> None:
        """End all waits for the end of a pause."""
        self.is_rebalancing = True
        self._changed.set()

    def owned(self) -> None:
        """Note that the rebalance has ended."""
        self.is_rebalancing = False

    async def admitted(self, beat: Callable[[], None]) -> bool:
        """Wait while the stage is paused; then True: the current record may be handled.

        False if a rebalance begins meanwhile. The record was not taken, so it is read again.

        Args:
            beat: Called while waiting, for the watchdog.
        """
        while not self.works:
            if self.is_rebalancing:
                return False
            beat()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._changed.wait()
        return True


async def beating(beat: Callable[[], None], work: Awaitable[T]) -> T:
    """The result of `work`, which may take long; `beat` tells the watchdog meanwhile that this is no stuck worker."""
    working = asyncio.ensure_future(work)
    try:
        while not working.done():
            beat()
            await asyncio.wait([working], timeout=BEAT_S)
    finally:
        working.cancel()
    return working.result()


def follow(
    app: "CrawlApp",
    commands: StageCommands,
    take: Take | None = None,
    found: Found | None = None,
    reported: Reported | None = None,
) -> None:
    """Connect a worker to crawl.control, from its beginning. Call this once, from the loop.

    A failure ends the worker: without crawl.control it would miss commands and new jobs.
    """

    def taken(record: control.Control) -> None:
        if isinstance(record, control.WorkerCommand) and is_for_us(record, app.worker_name):
            if record.action in ("pause", "resume"):
                log.info("command", action=record.action, kind="worker", target=record.worker, by=record.by)
                commands.hold(held=record.action == "pause")
            else:
                stop_as_ordered(record)
        commands.take(record)
        if take is not None:
            take(record)

    def failed(error: Exception) -> None:
        log.error("control_unread", exc_info=error)
        app.watchdog.end("control_unread", error, error=repr(error))

    names = Topics(app.crawl.kafka.prefix)
    following = ControlThread(app.crawl, names, taken, found, commands.caught_up, reported, failed=failed)
    following.start(asyncio.get_running_loop())
