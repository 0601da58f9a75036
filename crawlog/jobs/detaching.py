"""Ctrl-C on a command that follows a job: the first one detaches, a second one in time cancels the job."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from crawlog import outcome
from crawlog.jobs.live import View

AGAIN_S = 3.0
"""How long a second Ctrl-C cancels the job after the first one, seconds."""

LOOK_S = 0.1
"""Between two looks whether there was a second Ctrl-C."""


class Detach(BaseException):
    """A signal ended the following; the job goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """The first signal raises `Detach`, further ones are noted. Where Python drops it (in a finalizer), `look` does."""

    def __init__(self) -> None:
        self.is_again = False
        self._detach: Detach | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hears signals within the block, but none that was ignored before it (`nohup`)."""
        numbers = [number for number in outcome.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def look(self) -> None:
        """To be called while the job is followed. Raises: Detach: there was a signal."""
        if self._detach is not None:
            raise self._detach

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self._detach is not None:
            self.is_again = True
            return
        self._detach = Detach(number)
        raise self._detach


def is_again(signals: Signals, shown: View) -> bool:
    """Whether a second Ctrl-C comes in time."""
    shown.say(f"detached: the job goes on; Ctrl-C within {AGAIN_S:.0f} s cancels it")
    deadline = time.monotonic() + AGAIN_S
    while not signals.is_again and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return signals.is_again
