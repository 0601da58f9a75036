"""Lends pages of a long partition to helper processes, so that one site uses all cores.

    owner ─ take ─┬─► parsed here
                  └─► `Lender.lend` ─► a batch ─► helper process (`helper.py`) ─► what they hold ─► outputs, as ever

Rules
    1 A page stays taken by its owner until its outputs are in the log: commits keep their order, whoever parsed it.
    2 A helper has at most two batches: it parses one while the next one is there. With no room the owner parses the
      page itself, so a helper that gets no CPU (`NICE`) holds up nobody.
    3 The owner keeps each page until its answer. It parses those that come back without one: the helper died, was too
      slow, does not parse such pages, or the job has a new revision meanwhile. Its limits and notes (`guard.py`) count
      then, so a page that kills helpers ends as one that kills workers.
    4 A rebalance forgets all of them, as it forgets all pages; the next owner reads them again.

The worst race: 1 a batch is lent → 2 it is overdue, and its pages are parsed here → 3 the late answer comes. The batch
has no pages then; only the links that it adds to the table count.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

import msgspec
import structlog

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html import Outlink
from crawlog.streams.parse import Job, TakenPage
from crawlog.streams.spiders import Parsed

from . import helper
from .helper import LENGTH, MAX_JOBS, MAX_LINKS, AskedPages, BatchFacts, PageFacts

log = structlog.get_logger()

BATCH_PAGES = 32  # Pages of a batch: 10 ms of parsing, longer than a turn of the owner's loop

BATCH_BYTES = 1 << 20  # A batch ends with the page that reaches this size

BATCHES = 2  # Batches of one helper in flight

OVERDUE_S = 2.0  # Time after which the owner parses the pages of a batch itself

HUNG_S = 60.0  # Time after which a helper that does not answer is killed

TEND_S = 0.5  # Time between two looks at batches that may be overdue

AGAIN_S = 10.0  # Pause before another process takes the place of one that ended

MOST = 3  # Helpers of a worker: with more, the owner's own work for each page is what takes longest


def helper_count(wanted: int | Literal["auto"], cores: int) -> int:
    """Helpers of a worker, by its setting and the cores that it may use."""
    return min(cores - 1, MOST) if wanted == "auto" else wanted


class LentPages:
    """Pages of one job that go to a helper together.

    Attributes:
        began_s: Monotonic time of its first page.
        pages: Empty once the owner has taken them back.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began_s = time.monotonic()
        self.pages: list[TakenPage] = []
        self.size_bytes = 0

    def add(self, lent: TakenPage) -> bool:
        """Add a page; whether the batch is full with it."""
        self.pages.append(lent)
        self.size_bytes += len(lent.message.value or b"")
        return len(self.pages) >= BATCH_PAGES or self.size_bytes >= BATCH_BYTES


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that is used."""

    def kill(self) -> None:
        """End it."""

    def wait(self) -> int:
        """Its exit code."""


Start = Callable[[socket.socket], ChildProcess]  # Starts a helper on its end of a socket

# Takes a page back, and what it holds; None if the owner has to parse it.
Back = Callable[[Job, TakenPage, Parsed | None], None]


def starter(worker: str, partitions: int, room: int) -> Start:
    """Starts helpers of a worker.

    Args:
        room: Largest body that is unpacked, bytes.
    """

    def start(theirs: socket.socket) -> ChildProcess:
        command = [sys.executable, "-P", "-m", helper.__name__, str(os.getpid()), worker, str(partitions), str(room)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CRAWLOG_")}
        return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environ)

    return start


class HelperProcess:
    """One helper, as its owner sees it."""

    def __init__(self, start: Start, back: Back) -> None:
        self._start = start
        self._back = back
        self._wanted = asyncio.Event()
        self._process: ChildProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._flying: deque[LentPages] = deque()
        self._open: LentPages | None = None
        self._jobs: dict[str, Job] = {}
        self._table: list[Outlink] = []
        self._retry_s = 0.0

    def lend(self, job: Job, lent: TakenPage) -> bool:
        """Take a page, if there is room."""
        if self._open is not None and self._open.job is not job:
            self.flush()
        if self._open is None:
            if len(self._flying) >= BATCHES or time.monotonic() < self._retry_s:
                return False
            self._open = LentPages(job)
            self._wanted.set()
        if self._open.add(lent):
            self.flush()
        return True

    def flush(self) -> None:
        """Send the open batch."""
        batch, self._open = self._open, None
        if batch is not None:
            self._flying.append(batch)
            if self._writer is not None:
                self._send(self._writer, batch)

    def _send(self, writer: asyncio.StreamWriter, batch: LentPages) -> None:
        job, forgets = batch.job, len(self._jobs) >= MAX_JOBS
        if forgets:
            self._jobs.clear()
        spec = None if self._jobs.get(job.name) is job else job.spec
        self._jobs[job.name] = job
        records = [(list(lent.message.headers or ()), lent.message.value or b"") for lent in batch.pages]
        frame = msgspec.msgpack.encode(AskedPages(job.name, spec, forgets, records))
        writer.writelines((LENGTH.pack(len(frame)), frame))

    async def run(self) -> None:
        """Keep a process while pages are lent, until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await self._live()
            except (OSError, EOFError, msgspec.MsgspecError) as error:
                log.warning("helper_ended", error=repr(error), again_in_s=AGAIN_S)
            finally:
                self._end()
            self._retry_s = time.monotonic() + AGAIN_S
            await self.take_back()
            self._flying.clear()

    async def _live(self) -> None:
        """One process, until it ends. Raises: OSError, EOFError: it ended, or cannot be started; MsgspecError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = self._start(theirs)
            except BaseException:
                ours.close()
                raise
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        for batch in self._flying:
            self._send(self._writer, batch)
        decode = msgspec.msgpack.Decoder(BatchFacts).decode
        while True:
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            self._answered(decode(await reader.readexactly(length)))

    def _end(self) -> None:
        """End the process."""
        writer, self._writer = self._writer, None
        process, self._process = self._process, None
        if writer is not None:
            writer.close()
        if process is not None:
            process.kill()
            process.wait()
        self._wanted.clear()
        self._jobs.clear()
        self._table.clear()

    def _answered(self, answer: BatchFacts) -> None:
        batch, table = self._flying.popleft(), self._table
        if len(table) >= MAX_LINKS:
            table.clear()
        if answer.urls:
            table.extend(map(batch.job.outlink, answer.urls.split("\n")))
        for lent, held in zip(batch.pages, answer.pages, strict=False):  # no pages: they were taken back
            parsed = None if held is None else _parsed(batch.job, lent.meta, held, table)
            self._back(batch.job, lent, parsed)

    async def take_back(self, older_s: float = 0.0) -> None:
        """Let the owner parse the pages of all batches, or of those that are older."""
        if older_s == 0:
            self.flush()
        for batch in list(self._flying):
            if time.monotonic() - batch.began_s >= older_s:
                taken, batch.pages = batch.pages, []
                for lent in taken:
                    self._back(batch.job, lent, None)
                    await asyncio.sleep(0)

    async def tend(self) -> None:
        """Take overdue pages back, and end a process that hangs: call this now and then."""
        await self.take_back(OVERDUE_S)
        if self._flying and time.monotonic() - self._flying[0].began_s >= HUNG_S and self._process is not None:
            self._process.kill()  # `run` hears of its end

    def forget(self) -> None:
        """Forget all pages."""
        self._open = None
        for batch in self._flying:
            batch.pages = []


def _parsed(job: Job, meta: PageMeta, held: PageFacts, table: Sequence[Outlink]) -> Parsed:
    """What a page holds, by the scope names that the owner knows: a helper takes more links for foreign."""
    links = [table[place] for place in array("I", held.links)]
    found = job.scoped(meta, held.foreign.split("\n")) if held.foreign else None
    if found is not None:
        links += found.links
    foreign = found.foreign if found is not None else []
    return Parsed(list(map(msgspec.Raw, held.items)), links, reached=held.reached, foreign=foreign)


class Lender:
    """The helpers of one worker; they start when pages are lent for the first time.

    Args:
        most: Helpers at most.
    """

    def __init__(self, most: int, start: Start, back: Back) -> None:
        self._helpers = [HelperProcess(start, back) for _ in range(most)]

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The background tasks, which run until the worker stops."""
        return [*(one.run() for one in self._helpers), self._tend()]

    def lend(self, job: Job, lent: TakenPage) -> bool:
        """Lend a page; False if no helper may parse it, or none has room."""
        return job.may_lend(lent.meta) and any(one.lend(job, lent) for one in self._helpers)

    def flush(self) -> None:
        """Send the open batches."""
        for one in self._helpers:
            one.flush()

    async def take_back(self) -> None:
        """Let the owner parse all pages itself."""
        for one in self._helpers:
            await one.take_back()

    def forget(self) -> None:
        """Forget all pages: their partitions are revoked."""
        for one in self._helpers:
            one.forget()

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            for one in self._helpers:
                await one.tend()
