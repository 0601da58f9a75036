"""The process that runs a user's spider: pages in, results out, one at a time and in order.

    frames ─► load ─► page, page, … ─► Runner ─► CallResult, written at once

Answers of short pages are written together, at the latest after `GATHER_S`, or when no further page is here. So when
this process ends, the first page without an answer is the one that ran, or one shortly before; a page that came alone
is it. The event loop runs between pages, for tasks and timers that a spider left.
"""

import asyncio
import contextlib
import faulthandler
import gc
import io
import logging
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from setproctitle import setproctitle

from crawlog.schemas import pages
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import Bounds, CallResult, PageCall, Runner, SpiderRef, Trust, user_trace

from .answers import Fault, error_line, frames_of
from .frames import CALL, DONE, ENDED, FAILED, LOAD, MORE, NEXT, PAGE, WHOLE, FrameReader, SpiderFrame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30  # Longest frame from the worker; a page's body is far smaller

GATHER_S = 0.005  # Time in which answers gather. Each write wakes the worker, which costs as much as a short page.

_encode = msgspec.json.Encoder().encode


class LoadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to load, and how.

    Attributes:
        ref: The spider.
        loader: `MODULE:FUNCTION`, called as `load_runner` is; returns what answers the calls:
            a `Runner`, or an object with `facts` and `async call(name, argument) -> bytes`.
        folders, named: Of its `Trust`; None if the operator's own command names the spider.
        bounds: Limits of one page's outputs.
    """

    ref: SpiderRef
    loader: str
    folders: tuple[str, ...] | None = None
    named: str = ""
    bounds: tuple[int, int] = (Bounds().outputs, Bounds().size_bytes)

    @property
    def trust(self) -> Trust | None:
        """The files that may be run."""
        if self.folders is None:
            return None
        return Trust(tuple(map(Path, self.folders)), Path(self.named) if self.named else None)


class SpiderService:
    """Answers frames with one loaded spider.

    Args:
        tell_more: Tells the worker that the page gives outputs.
    """

    def __init__(self, tell_more: Callable[[], None] = lambda: None) -> None:
        self._tell_more = tell_more
        self._runner: Any = None
        self._fault = Fault("Misconfigured: no spider is loaded")
        self._parts: AsyncGenerator[CallResult, bytes | None] | None = None

    def load(self, frame: SpiderFrame) -> SpiderFrame:
        """Load the spider. This runs outside the event loop, so that a project may install its reactor."""
        try:
            order = msgspec.json.decode(frame.text, type=LoadRequest)
            module, _, name = order.loader.partition(":")
            loader = getattr(import_module(module), name)
            runner: Runner = loader(order.ref, bounds=Bounds(*order.bounds), trust=order.trust)
            facts = runner.facts
            if order.ref.folder:  # a name in deployed code: its folder is another one in each child
                facts = msgspec.structs.replace(facts, path=order.ref.path)
            text, urls = _encode(msgspec.structs.replace(facts, start_urls=())), _encode(facts.start_urls)
        except BaseException as error:  # noqa: BLE001  # a user's module may raise anything
            whole = f"Misconfigured: {error}" if isinstance(error, Misconfigured) else error_line(error)
            self._fault = Fault(whole, user_trace(error))
            return SpiderFrame(FAILED, _encode(self._fault))
        self._runner = runner
        return SpiderFrame(DONE, text, urls)

    def refuse(self, why: str) -> SpiderFrame:
        """Load nothing."""
        self._fault = Fault(f"Misconfigured: {why}")
        return SpiderFrame(FAILED, _encode(self._fault))

    async def answer(self, frame: SpiderFrame) -> list[SpiderFrame]:
        """The answer to any other frame: one frame, and others before it if it is large."""
        if self._runner is None:
            return [SpiderFrame(FAILED, _encode(self._fault))]
        try:
            if frame.kind in (PAGE, WHOLE):
                call = PageCall(pages.decode(frame.text), frame.body, frame.kind == WHOLE, self._tell_more)
                return frames_of(await self._runner.page(call))
            if frame.kind == NEXT:
                return await self._next(frame.text)
            assert frame.kind == CALL
            return [SpiderFrame(DONE, b"", await self._runner.call(frame.text.decode(), frame.body))]
        except BaseException as error:  # noqa: BLE001  # a user's code may raise anything
            if frame.kind == CALL:
                return [SpiderFrame(FAILED, _encode(Fault(error_line(error), user_trace(error))))]
            return [SpiderFrame(DONE, _encode(CallResult(error=error_line(error), trace=user_trace(error))))]

    async def close(self) -> None:
        """End a `start` that has more to give: the spider cleans up."""
        try:
            if self._parts is not None:
                await self._parts.aclose()
        except Exception:
            log.exception("the spider's start raised while it was closed")

    async def _next(self, wish: bytes) -> list[SpiderFrame]:
        is_first = self._parts is None
        parts = self._parts = self._parts or self._runner.start()
        try:
            return frames_of(await parts.asend(None if is_first else wish))
        except StopAsyncIteration:
            return [SpiderFrame(ENDED)]


async def _served(service: SpiderService, data: socket.socket, frames: FrameReader) -> None:
    try:
        await _serve(service, data, frames)
    finally:
        await service.close()


async def _serve(service: SpiderService, data: socket.socket, frames: FrameReader) -> None:
    loop = asyncio.get_running_loop()
    answers: list[bytes] = []
    written_s = loop.time()
    while True:
        frame = frames.take()
        is_due = frame is None or frame.kind == NEXT  # the next part of `start` may take for ever
        if answers and (is_due or loop.time() - written_s > GATHER_S):
            await _write(loop, data, b"".join(answers))
            answers.clear()
            await asyncio.sleep(0)  # what a spider left in the loop goes on
            written_s = loop.time()
        if frame is None:
            count = await loop.sock_recv_into(data, frames.space())
            if not count:
                return
            frames.filled(count)
        else:
            answers += (part for answer in await service.answer(frame) for part in answer.parts())


async def _write(loop: asyncio.AbstractEventLoop, data: socket.socket, answers: bytes) -> None:
    sent = 0
    with contextlib.suppress(BlockingIOError):
        sent = data.send(answers)
    if sent < len(answers):
        await loop.sock_sendall(data, memoryview(answers)[sent:])


def _tell_more(data: socket.socket) -> None:
    """Between two answers; a frame of a few bytes is sent whole, or not at all where the worker does not read."""
    with contextlib.suppress(OSError):
        data.send(SpiderFrame(MORE).parts()[0])


def _first(data: socket.socket, frames: FrameReader) -> SpiderFrame:
    """The first frame. Raises: SystemExit: the worker is gone."""
    while (frame := frames.take()) is None:
        count = data.recv_into(frames.space())
        if not count:
            sys.exit(0)
        frames.filled(count)
    return frame


def _write_out() -> None:
    """Write out the files that the spider left open: Python forgets some at its end, and first waits for threads."""
    gc.unfreeze()
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase):
            with contextlib.suppress(Exception):  # it is closed, or is of a class of the user
                thing.flush()


def run(data: socket.socket, refused: str) -> None:
    """Load the spider that the first frame names, and answer frames until the worker's socket closes.

    Args:
        refused: Why no code may run here; empty if it may.

    Then this process ends as any Python process does, with the files of the spider written out, in the time that the
    zygote gives it.
    """
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # both are text files
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    service, frames = SpiderService(partial(_tell_more, data)), FrameReader(MOST_BYTES)
    data.setblocking(True)
    setproctitle("crawlog: spider")
    first = _first(data, frames)
    assert first.kind == LOAD
    loaded = b"".join((service.refuse(refused) if refused else service.load(first)).parts())
    with contextlib.suppress(ConnectionError):  # the worker has closed its socket: that is read next
        data.sendall(loaded)
    data.setblocking(False)
    gc.collect()
    gc.freeze()
    closed = contextlib.suppress(ConnectionError)  # the worker closed its socket before an answer
    with asyncio.Runner(loop_factory=lambda: loop) as runner, closed:  # its end cancels the tasks that a spider left
        runner.run(_served(service, data, frames))
    _write_out()
