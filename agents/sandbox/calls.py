"""The calls to one child over its socket: written together, answered in order."""

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .answers import FRAME_BYTES, MAX_ANSWER_BYTES, Gathered
from .frames import FETCH, ITEMS, MORE, REQUESTS, FrameReader, SpiderFrame

TURNS = 16  # Reads in a row, before others get their turn

PARTS = 64  # Buffers of one write


class Died(NamedTuple):
    """The answer to a call that the child did not survive, or that waited behind such a call.

    Attributes:
        ran: Whether this is the call that ran.
    """

    reason: str
    ran: bool


Then = Callable[[SpiderFrame | Died], None]


class Call(NamedTuple):
    """A call without an answer yet.

    Attributes:
        limit_s: CPU seconds; None for no limit.
    """

    frame: SpiderFrame
    then: Then
    limit_s: float | None


class Calls:
    """The socket of one child, without waiting.

    Args:
        asked: Called with each frame that asks for a download; such a frame is no answer.

    Attributes:
        open: The calls without an answer; the first one runs.
        unsent: Bytes that the socket did not take yet.
        is_held: Whether nothing is sent: the first call is not known yet.
    """

    def __init__(self, data: socket.socket, asked: "Callable[[Calls, SpiderFrame], None]") -> None:
        data.setblocking(False)
        self._data = data
        self._asked = asked
        self._frames = FrameReader(MAX_ANSWER_BYTES, FRAME_BYTES)
        self._gathered = Gathered()
        self.open: deque[Call] = deque()
        self.unsent: deque[memoryview] = deque()
        self.is_held = False

    def fileno(self) -> int:
        """The socket; -1 if it is closed."""
        return self._data.fileno()

    def put(self, call: Call) -> None:
        """Add a call; `write` sends it."""
        self.open.append(call)
        self.send(call.frame)

    def send(self, frame: SpiderFrame) -> None:
        """Add a frame that has no answer; `write` sends it."""
        self.unsent.extend(map(memoryview, frame.parts()))

    def begin(self, call: Call) -> None:
        """Put a call before all others, and hold none back any more."""
        self.is_held = False
        self.open.appendleft(call)
        self.unsent.extendleft(map(memoryview, reversed(call.frame.parts())))

    def write(self) -> None:
        """Send what the socket takes. An error shows at the next read."""
        if self.is_held:
            return
        unsent = self.unsent
        with contextlib.suppress(OSError):
            while unsent:
                sent = self._data.sendmsg([unsent[number] for number in range(min(len(unsent), PARTS))])
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]

    def answers(self) -> Iterator[tuple[Call, SpiderFrame]]:
        """The answers that are here, each with its call; MORE leaves it open. Raises: EOFError: it ended. TooLong."""
        for _ in range(TURNS):
            try:
                count = self._data.recv_into(self._frames.space())
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                raise EOFError("it closed its connection")
            self._frames.filled(count)
            yield from self._whole()
            if self._gathered.has_any:  # it took some milliseconds: the rest comes in the loop's next turn
                return

    def _whole(self) -> Iterator[tuple[Call, SpiderFrame]]:
        """The whole answers in the buffer."""
        while (answer := self._frames.take()) is not None:
            if answer.kind == FETCH:
                self._asked(self, answer)
                continue
            if not self.open:
                raise EOFError("it sent an answer without a call")
            if answer.kind in (ITEMS, REQUESTS):
                self._gathered.add(answer)
            else:
                yield self._of_call(answer)

    def _of_call(self, answer: SpiderFrame) -> tuple[Call, SpiderFrame]:
        if answer.kind == MORE:
            return self.open[0], answer
        return self.open.popleft(), answer._replace(outputs=self._gathered.taken())

    def close(self) -> None:
        self._data.close()
