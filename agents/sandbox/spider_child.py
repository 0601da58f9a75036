"""A child process that runs one user's spider, as the process that needs it sees it.

    submit(frame, then) ─► socket ─► spider_process ─► socket ─► then(answer), in the order of the calls
    too long, dead, its socket closed ─► killed with all that it started ─► then(Died) for each call without an answer
    lines that the spider prints ─► log, at a limited rate
    what the spider downloads ─► Downloads ─► socket      a call that waits for one takes no time by the clock

The process starts with the first call. After a death the next call starts a new one, which loads the spider first.
"""

import asyncio
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol, Self

import msgspec

from crawlog.schemas import pages
from crawlog.streams.errors import EngineError, Misconfigured, SpiderDied
from crawlog.streams.spiders import MOST_TIMED, TIMED_OUTPUTS, CallResult, PageCall, SpiderFacts, SpiderRef, user_trace

from .answers import Fault, error_line, facts_of, fault_of, misconfigured, result_of
from .calls import Call, Calls, Died, Then
from .child_code import ChildCode, ChildRules
from .child_downloads import ChildDownloads, Downloader
from .frames import CALL, ENDED, FAILED, LOAD, MORE, NEXT, PAGE, WHOLE, SpiderFrame, TooLong
from .spider_process import LoadRequest
from .zygote_process import ZygoteProcess, cpu_s

LOADER = "crawlog.streams.spiders:load_runner"  # Loads a `Runner`

# Imported before the second process of a spider of Scrapy's: it takes a CPU second.
SCRAPY = ("crawlog.streams.spiders.scrapy.scrapy_runner",)

TICK_S = 0.25  # Time between two checks of the call that runs

# Most time that counts between two checks where nobody's loop makes them: a supervisor pumps twice a second, and may
# have been stopped.
LONGEST_TICK_S = 1.0

# Multiple of the CPU limit that a call may take by the clock: it may sleep, or get little CPU on a busy machine.
PATIENCE = 3

CLOSED_TICKS = 4  # Ticks after which a child that closed its socket is killed, if it has not ended by itself

LOAD_S = 15.0  # CPU seconds for loading a spider; thrice that by the clock

_encode = msgspec.json.Encoder().encode


class HasFile(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Its number; -1 if it is closed."""


class BackgroundChild:
    """Runs one spider in a process of its own, without waiting for it.

    Args:
        loader: `MODULE:FUNCTION`, see `LoadRequest`.
        loop: Waits for the child, so that `then` is called; without it somebody calls `pump` now and then.
        downloads: Makes the requests that its code asks for, where there is a loop; None for none.

    Attributes:
        loaded: The facts of the spider, once it is loaded.
        fault: Why it cannot be loaded; None if it can, or if that is not known.
        died_of: Why the process ended; empty while it runs, and before it runs.
        downloads: Those that its code waits for.
        heard_facts: Called when `loaded` or `fault` was set, or the process ended instead.
    """

    _wants_urls = False  # the facts have no start URLs, which may be millions

    def __init__(
        self,
        ref: SpiderRef,
        rules: ChildRules = ChildRules(),  # noqa: B008  # frozen
        loader: str = LOADER,
        loop: asyncio.AbstractEventLoop | None = None,
        downloads: Downloader | None = None,
    ) -> None:
        self.ref = ref
        self.rules = rules
        self.loaded: SpiderFacts | None = None
        self.fault: Fault | None = None
        self.died_of = ""
        self.heard_facts: Callable[[], None] = lambda: None
        self._loader = loader
        self._loop = loop
        self.downloads = ChildDownloads(ref.job, loop, downloads, self._write_soon)
        self._zygote: ZygoteProcess | None = None
        self._ending: ZygoteProcess | None = None
        self._calls: Calls | None = None
        self._code: ChildCode | None = None
        self._pid = 0
        self._closed = ""
        self._closed_ticks = 0
        self._ticks = 0
        self._gave = 0  # outputs of the running call, as the child counts them
        self._used_s = -1.0  # CPU seconds of the child when the running call began; below zero until the first tick
        self._ticked_s = 0.0
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Calls without an answer, that for loading included."""
        return len(self._calls.open) if self._calls is not None else 0

    @property
    def pid(self) -> int:
        """The process that runs the spider; 0 for none."""
        return self._pid

    # Calls.

    def submit(self, frame: SpiderFrame, then: Then, limit_s: float | None = None) -> None:
        """Send a call; `then` gets the answer: FAILED at once if the code cannot be made ready. Calls run in order.

        Args:
            limit_s: CPU seconds, thrice that by the clock; None for no limit.
        """
        calls = self._started()
        if calls.is_held and self.fault is not None:
            then(SpiderFrame(FAILED, _encode(self.fault)))
            return
        if not calls.open:
            self._begin_call()
        calls.put(Call(frame, then, limit_s))
        self._write_soon()

    def submit_page(self, call: PageCall, then: Then) -> None:
        self.submit(_of_page(call), then, self.rules.timeout_s)

    def load(self) -> None:
        """Start the process if there is none; `loaded` or `fault` is set once it has answered."""
        self._started()

    def kill(self, reason: str) -> None:
        """End the process with all that it started; each call without an answer gets a `Died` soon."""
        if self._zygote is not None and self._calls is not None and not self.died_of:
            self.died_of = reason
            self._unwatch(self._calls)
            self._zygote.kill()

    def close(self) -> None:
        """Let the processes end, without waiting for it; each call without an answer gets a `Died`.

        The spider's process ends by itself, as its files may have to be written out; `kill` it before, and it does not.
        """
        self._end("its worker stops")

    def wait_ended(self) -> None:
        """Wait until the processes have ended, after `close`. Blocks."""
        if self._ending is not None:
            self._ending.wait()

    # Its files.

    def _watch(self, *files: HasFile) -> None:
        if self._loop is not None:
            for file in files:
                self._loop.add_reader(file.fileno(), self.pump)

    def _unwatch(self, *files: HasFile) -> None:
        if self._loop is not None:
            for file in files:
                if file.fileno() >= 0:
                    self._loop.remove_reader(file.fileno())
                    self._loop.remove_writer(file.fileno())

    def pump(self) -> None:
        """Read and write what can be, without waiting; calls `then` for each answer."""
        self._read()
        if self._zygote is not None:
            self._zygote.printed.read()
        self._hear()
        if not self._is_writing:
            self._write()
        if self._loop is None and time.monotonic() - self._ticked_s >= TICK_S:
            self._tick()

    def _write_soon(self) -> None:
        if self._loop is not None and not self._is_writing:
            self._is_writing = True  # calls of one turn of the loop are written together
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_writing = False
        calls = self._calls
        if calls is None or self.died_of or calls.is_held:
            return
        was_full = bool(calls.unsent)
        calls.write()
        if self._loop is not None and was_full:
            if calls.unsent:
                self._loop.add_writer(calls.fileno(), self._write)
            else:
                self._loop.remove_writer(calls.fileno())

    def _read(self) -> None:
        """Hand out the answers that are there."""
        calls = self._calls
        if calls is None or self._closed:
            return
        try:
            for call, answer in calls.answers():
                self._gave = self._gave + TIMED_OUTPUTS if answer.kind == MORE else 0
                if self._gave > MOST_TIMED:
                    raise TooLong(f"a call that reports more than {MOST_TIMED:,} outputs")
                self._begin_call()
                if answer.kind != MORE:
                    call.then(answer)
                if self._calls is not calls:  # a `then` closed this child
                    return
        except TooLong as error:
            self.kill(str(error))
        except EOFError as error:
            self._unwatch(calls)
            self._closed, self._closed_ticks = str(error), 0  # the zygote tells more soon, if it ended

    def _hear(self) -> None:
        """Read what the zygote says."""
        if self._zygote is None:
            return
        try:
            for word in self._zygote.words():
                if word.forked is not None:
                    self._pid = word.forked.pid
                elif word.gone is not None:
                    self._read()  # answers that it gave before
                    self._end(self.died_of or word.gone.reason, zygote=False)
        except EOFError as error:
            self._end(str(error))

    # The processes.

    def _started(self) -> Calls:
        """The calls of the running child. Without one it is forked, from a new zygote if there is none."""
        if self._calls is not None:
            return self._calls
        if self._zygote is None:
            rules = self.rules
            self._zygote = ZygoteProcess(self.ref.path, rules.env, self.ref.job, take_line=rules.take_line)
            self._watch(self._zygote, self._zygote.printed)
        self.died_of, self._closed, self.fault = "", "", None
        again = self.loaded is not None and self.loaded.is_scrapy
        limits = self.rules.limits
        is_deployed = bool(self.ref.folder) or self.ref.spec.code is not None
        if is_deployed:
            self._code = ChildCode(self.ref, self.rules.code, is_own_user=self.rules.is_own_user)
            limits = self._code.limits(limits)
        self._calls = calls = Calls(self._zygote.fork(limits, SCRAPY if again else ()), self.downloads.begin)
        self._watch(calls)
        calls.is_held = True
        if self._code is None:
            self._begin(calls, self.ref)
        else:
            self._find_code(calls, self._code)
        self._tick_later()
        return calls

    def _begin(self, calls: Calls, ref: SpiderRef) -> None:
        """Send the order to load the spider, before the calls that wait."""
        rules, trust = self.rules, self.rules.trust
        folders = None if trust is None else tuple(map(str, trust.folders))
        named = "" if trust is None or trust.named is None else str(trust.named)
        bounds = rules.bounds.outputs, rules.bounds.size_bytes
        order = LoadRequest(ref, self._loader, folders, named, bounds, rules.files if ref.folder else None)
        self._begin_call()
        calls.begin(Call(SpiderFrame(LOAD, _encode(order)), self._take_facts, LOAD_S))
        self._write_soon()

    def _find_code(self, calls: Calls, code: ChildCode) -> None:
        """Look for the code in the log, in a thread where an event loop waits. Raises: EngineError: without one."""
        if self._loop is not None:
            found = self._loop.run_in_executor(None, code.ready)
            found.add_done_callback(lambda done: self._found_code(calls, done))
            return
        done: Future[SpiderRef] = Future()
        try:
            done.set_result(code.ready(waits=False))
        except EngineError:  # the caller asks again: it may be the one that starts the broker again
            self._end("the log is away")
            raise
        except Exception as error:  # noqa: BLE001  # raised again where the result is asked for
            done.set_exception(error)
        self._found_code(calls, done)

    def _found_code(self, calls: Calls, done: "asyncio.Future[SpiderRef] | Future[SpiderRef]") -> None:
        error = None if done.cancelled() else done.exception()
        if self._calls is not calls or done.cancelled():
            return
        if error is None:
            self._begin(calls, done.result())
            return
        whole = f"Misconfigured: {error}" if isinstance(error, Misconfigured) else error_line(error)
        self.fault = fault = Fault(whole, user_trace(error))
        while calls.open:
            calls.open.popleft().then(SpiderFrame(FAILED, _encode(fault)))
        self.heard_facts()

    def _take_facts(self, answer: SpiderFrame | Died) -> None:
        if not isinstance(answer, Died):
            if answer.kind == FAILED:
                self.fault = fault_of(answer)
            else:
                self.loaded, self.fault = facts_of(answer, with_urls=self._wants_urls)
        self.heard_facts()

    def _begin_call(self) -> None:
        """Count the time of the next call, or of what is left of this one, from now."""
        self._ticks, self._used_s = 0, -1.0

    def _tick_later(self) -> None:
        if self._loop is not None and self._calls is not None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """End the child if the running call takes too long. A process that was stopped counts no ticks meanwhile."""
        now_s = time.monotonic()
        ticks = 1 if self._loop is not None else max(1, round(min(now_s - self._ticked_s, LONGEST_TICK_S) / TICK_S))
        self._ticked_s = now_s
        self._tick_later()
        if self._closed:
            self._closed_ticks += 1
            if self._closed_ticks > CLOSED_TICKS:
                self.kill(self._closed)
        if self._calls is None or not self._calls.open or self.died_of or self._calls.is_held:
            return
        limit_s = self._calls.open[0].limit_s
        is_first, self._ticks = not self._ticks, self._ticks + (0 if self.downloads.are_open else ticks)
        if limit_s is None or is_first:
            return
        used_s = cpu_s(self._pid)
        if self._used_s < 0:
            self._used_s = used_s
        if used_s - self._used_s >= limit_s:
            self.kill(f"it took more than parse.timeout_s = {limit_s:g}")
        elif self._ticks * TICK_S >= limit_s * PATIENCE:
            self.kill(f"it took more than {limit_s * PATIENCE:g} s by the clock, see parse.timeout_s")

    def _end(self, reason: str, *, zygote: bool = True) -> None:
        """Forget the child, and end the zygote if asked; each call without an answer gets a `Died`."""
        calls, self._calls = self._calls, None
        code, self._code = self._code, None
        self.downloads.cancel()
        self.died_of = reason
        self._pid = self._gave = 0
        if self._timer is not None:
            self._timer.cancel()
        if zygote and self._zygote is not None:
            self._unwatch(self._zygote, self._zygote.printed)
            self._ending, self._zygote = self._zygote, None
            self._ending.close(code.close if code is not None else lambda: None)
            code = None
        if calls is not None:
            self._unwatch(calls)
            calls.close()
            ran = True
            while calls.open:  # each is taken out: the `then` that ended this child may go on with the rest
                calls.open.popleft().then(Died(f"spider_died: {reason}", ran=ran))
                ran = False
        if code is not None:
            code.close()


class SpiderChild(BackgroundChild):
    """Runs one spider in a process of its own; its methods block. For processes without an event loop."""

    _wants_urls = True

    def facts(self) -> SpiderFacts:
        """The spider as its job must know it. Blocks.

        Raises: Misconfigured: it cannot be loaded. SpiderDied. EngineError: the log that has its code does not answer.
        """
        self.load()
        self._wait(lambda: self.loaded is not None or self.fault is not None or self._calls is None)
        if self.fault is not None:
            raise misconfigured(self.fault)
        if self.loaded is None:
            raise SpiderDied(f"spider_died while it was loaded: {self.died_of}")
        return self.loaded

    def page(self, call: PageCall) -> CallResult:
        """What the spider makes of a page. Blocks. Raises: Misconfigured, SpiderDied."""
        return result_of(self._answer(_of_page(call), self.rules.timeout_s))

    def parts(self, limit_s: float | None = None) -> Iterator[CallResult]:
        """What `Runner.start` gives. Blocks. The child goes on only when the next part is asked for.

        Args:
            limit_s: CPU seconds of one part.

        Raises: Misconfigured, SpiderDied.
        """
        while (answer := self._answer(SpiderFrame(NEXT), limit_s)).kind != ENDED:
            yield result_of(answer)

    def call(self, name: str, argument: bytes = b"", limit_s: float | None = None) -> bytes:
        """The answer of another method of what `loader` gave. Blocks. Raises: Misconfigured, SpiderDied."""
        return self._answer(SpiderFrame(CALL, name.encode(), argument), limit_s).body

    def _answer(self, frame: SpiderFrame, limit_s: float | None) -> SpiderFrame:
        got: list[SpiderFrame | Died] = []
        self.submit(frame, got.append, limit_s)
        self._wait(lambda: bool(got))
        answer = got[0]
        if isinstance(answer, Died):
            raise SpiderDied(answer.reason)
        if answer.kind == FAILED:
            raise misconfigured(fault_of(answer))
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Waiting.

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """Pump until it is so."""
        assert self._loop is None, "its event loop waits"
        while not is_so():
            poll = select.poll()
            for file in self._files():
                writes = select.POLLOUT if file is self._calls and self._calls.unsent else 0
                poll.register(file, select.POLLIN | writes)
            poll.poll(TICK_S * 1000)
            self.pump()

    def _files(self) -> list[HasFile]:
        files = (None if self._closed else self._calls, self._zygote, self._zygote and self._zygote.printed)
        return [file for file in files if file is not None and file.fileno() >= 0]


def _of_page(call: PageCall) -> SpiderFrame:
    return SpiderFrame(WHOLE if call.is_whole else PAGE, pages.encode(call.meta), call.body)
