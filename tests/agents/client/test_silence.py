"""How long a connection waits for the next bytes: by a clock that the test moves."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import SocketTimeoutError

from crawlog.agents.client.protocol import Handler


class Timer:
    """A timer of the loop."""

    def __init__(self, at: float, end: Callable[[], None]) -> None:
        self.at = at
        self.end = end
        self.is_cancelled = False

    def when(self) -> float:
        """When it ends."""
        return self.at

    def cancel(self) -> None:
        """Never end."""
        self.is_cancelled = True


class Loop:
    """The part of an event loop that a silent connection uses.

    Attributes:
        made: Timers that were ever made.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.made: list[Timer] = []

    def time(self) -> float:
        """Seconds."""
        return self.now

    def call_at(self, at: float, end: Callable[[], None]) -> Timer:
        """A new timer."""
        self.made.append(Timer(at, end))
        return self.made[-1]

    @property
    def running(self) -> list[Timer]:
        """Those that have not ended."""
        return [timer for timer in self.made if not timer.is_cancelled]

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and timers end."""
        until = self.now + seconds
        while due := [timer for timer in self.running if timer.at <= until]:
            first = min(due, key=Timer.when)
            self.now = first.at
            first.cancel()
            first.end()
        self.now = until


class Wire(asyncio.Transport):
    """The other end hears nothing."""

    def close(self) -> None:
        """Nothing to close."""

    abort = close


@pytest.fixture
def loop() -> Loop:
    """A loop."""
    return Loop()


@pytest.fixture
def handler(loop: Any) -> Handler:
    """A connection."""
    made = Handler(lambda: True, loop)
    made.connection_made(Wire())
    return made


def heard(handler: Handler, limit_s: float) -> None:
    """Bytes have come, or a request was sent; the next ones must come within a limit."""
    handler.read_timeout = limit_s
    handler._reschedule_timeout()


def test_an_answer_that_goes_on_never_ends_and_makes_few_timers(loop: Loop, handler: Handler) -> None:
    """A timer for each piece cost a tenth of a request."""
    for _ in range(1000):
        heard(handler, 10.0)
        loop.pass_s(0.5)
    assert handler.exception() is None
    assert len(loop.made) < 60


@pytest.mark.parametrize("pause_s", [0.0, 1.0, 9.9, 100.0])
def test_silence_is_counted_from_the_last_bytes(loop: Loop, handler: Handler, pause_s: float) -> None:
    """On a kept connection too, whatever timer is left from the last answer."""
    heard(handler, 10.0)
    handler._drop_timeout()
    loop.pass_s(pause_s)
    heard(handler, 10.0)
    loop.pass_s(9.9)
    assert handler.exception() is None
    loop.pass_s(0.2)
    assert isinstance(handler.exception(), SocketTimeoutError)


def test_a_shorter_limit_counts_from_now_on(loop: Loop, handler: Handler) -> None:
    """The first byte may take a minute, the next piece a second."""
    heard(handler, 60.0)
    loop.pass_s(1.0)
    heard(handler, 1.0)
    loop.pass_s(1.1)
    assert isinstance(handler.exception(), SocketTimeoutError)


def test_no_silence_ends_a_connection_that_nothing_is_asked_of(loop: Loop, handler: Handler) -> None:
    """Its timer ends once, and is not made again."""
    heard(handler, 1.0)
    handler._drop_timeout()
    loop.pass_s(100.0)
    assert handler.exception() is None
    assert not loop.running


@pytest.mark.parametrize("end", ["close", "abort", "connection_lost"])
def test_a_connection_that_has_ended_leaves_no_timer(loop: Loop, handler: Handler, end: str) -> None:
    """It would keep the connection in memory."""
    heard(handler, 60.0)
    getattr(handler, end)(*[None] * (end == "connection_lost"))
    assert not loop.running
