"""The process that runs a user's spider: pages in, results out, one at a time and in order.

    frames ─► load ─► page, page, … ─► Runner ─► CallResult, written at once
                                         └─► download ─► the worker ─► its answer, while the call waits

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
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from setproctitle import setproctitle

from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.downloads import MOST_ASKED, WORKER, DownloadAsk, Downloaded
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import Bounds, CallResult, PageCall, Runner, SpiderRef, Trust, user_trace

from .answers import Fault, error_line, frames_of
from .frames import (
    CALL,
    DONE,
    ENDED,
    FAILED,
    FETCH,
    FETCHED,
    LOAD,
    MORE,
    NEXT,
    PAGE,
    WHOLE,
    FrameReader,
    SpiderFrame,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30  # Longest frame from the worker; a page's body is far smaller

GATHER_S = 0.005  # Time in which answers gather. Each write wakes the worker, which costs as much as a short page.

_encode = msgspec.json.Encoder().encode
_downloaded = msgspec.json.Decoder(Downloaded).decode


class LoadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to load, and how.

    Attributes:
        ref: The spider.
        loader: `MODULE:FUNCTION`, called as `load_runner` is; returns what answers the calls:
            a `Runner`, or an object with `facts` and `async call(name, argument) -> bytes`.
        folders, named: Of its `Trust`; None if the operator's own command names the spider.
        bounds: Limits of one page's outputs.
        files: See `WorkerServices`.
    """

    ref: SpiderRef
    loader: str
    folders: tuple[str, ...] | None = None
    named: str = ""
    bounds: tuple[int, int] = (Bounds().outputs, Bounds().size_bytes)
    files: str | None = None

    @property
    def trust(self) -> Trust | None:
        """The files that may be run."""
        if self.folders is None:
            return None
        return Trust(tuple(map(Path, self.folders)), Path(self.named) if self.named else None)


class SpiderService:
    """Answers frames with one loaded spider.

    Attributes:
        tell_more: Reports to the worker that the page gives outputs.
    """

    def __init__(self) -> None:
        self.tell_more: Callable[[], None] = lambda: None
        self._runner: Any = None
        self._fault = Fault("Misconfigured: no spider is loaded")
        self._parts: AsyncGenerator[CallResult, bytes | None] | None = None

    def load(self, frame: SpiderFrame) -> SpiderFrame:
        """Load the spider. This runs outside the event loop, so that a project may install its reactor."""
        try:
            order = msgspec.json.decode(frame.text, type=LoadRequest)
            WORKER.files = order.files
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
                call = PageCall(pages.decode(frame.text), frame.body, frame.kind == WHOLE, self.tell_more)
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


class WorkerSocket:
    """The socket to the worker, within the event loop. It is read only while somebody waits: for a call, a download.

    Args:
        frames: What was read of it already.
    """

    def __init__(self, data: socket.socket, frames: FrameReader) -> None:
        self._data = data
        self._frames = frames
        self._loop = asyncio.get_running_loop()
        self._calls: deque[SpiderFrame] = deque()
        self._downloads: dict[int, asyncio.Future[tuple[PageMeta, bytes]]] = {}
        self._numbers = count(1)
        self._asking = asyncio.Semaphore(MOST_ASKED)
        self._writing = asyncio.Lock()
        self._woken: asyncio.Future[None] | None = None
        self._readers = 0
        self.has_ended = False

    def next_call(self) -> SpiderFrame | None:
        """The next call, if it is here."""
        self._sort()
        return self._calls.popleft() if self._calls else None

    async def wait(self) -> None:
        """Wait for a call, or for the end."""
        self._read()
        with self._watched():
            while not self._calls and not self.has_ended:
                self._woken = self._loop.create_future()
                await self._woken

    async def write(self, answers: bytes) -> None:
        async with self._writing:
            sent = 0
            with contextlib.suppress(BlockingIOError):
                sent = self._data.send(answers)
            if sent < len(answers):
                await self._loop.sock_sendall(self._data, memoryview(answers)[sent:])

    def tell_more(self) -> None:
        """Between two answers; a frame of a few bytes is sent whole, or not at all where the worker does not read."""
        if not self._writing.locked():
            with contextlib.suppress(OSError):
                self._data.send(SpiderFrame(MORE).parts()[0])

    async def download(self, url: str, request: RequestRecord, max_bytes: int) -> tuple[PageMeta, bytes]:
        """The answer to a request that the worker makes. Raises: ConnectionError: the worker is gone."""
        async with self._asking:
            number = next(self._numbers)
            answer: asyncio.Future[tuple[PageMeta, bytes]] = self._loop.create_future()
            self._downloads[number] = answer
            ask = SpiderFrame(FETCH, _encode(DownloadAsk(number, url, request, max_bytes)))
            try:
                with self._watched():
                    await self.write(b"".join(ask.parts()))
                    return await answer
            finally:
                del self._downloads[number]

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._readers += 1
        if self._readers == 1:
            self._loop.add_reader(self._data, self._read)
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._loop.remove_reader(self._data)

    def _read(self) -> None:
        try:
            size = self._data.recv_into(self._frames.space())
        except BlockingIOError:
            return
        except OSError:
            size = 0
        self._frames.filled(size)
        self._sort()
        if not size:
            self.has_ended = True
            for waiting in self._downloads.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the worker is gone"))
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _sort(self) -> None:
        while (frame := self._frames.take()) is not None:
            if frame.kind != FETCHED:
                self._calls.append(frame)
                continue
            downloaded = _downloaded(frame.text)
            waiting = self._downloads.get(downloaded.number)
            if waiting is not None and not waiting.done():
                waiting.set_result((downloaded.meta, frame.body))


async def _served(service: SpiderService, data: socket.socket, frames: FrameReader) -> None:
    worker = WorkerSocket(data, frames)
    service.tell_more, WORKER.download = worker.tell_more, worker.download
    try:
        await _serve(service, worker)
    finally:
        await service.close()


async def _serve(service: SpiderService, worker: WorkerSocket) -> None:
    loop = asyncio.get_running_loop()
    answers: list[bytes] = []
    written_s = loop.time()
    while not worker.has_ended:
        frame = worker.next_call()
        is_due = frame is None or frame.kind == NEXT  # the next part of `start` may take for ever
        if answers and (is_due or loop.time() - written_s > GATHER_S):
            await worker.write(b"".join(answers))
            answers.clear()
            await asyncio.sleep(0)  # what a spider left in the loop goes on
            written_s = loop.time()
        if frame is None:
            await worker.wait()
        else:
            answers += (part for answer in await service.answer(frame) for part in answer.parts())


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
    service, frames = SpiderService(), FrameReader(MOST_BYTES)
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
