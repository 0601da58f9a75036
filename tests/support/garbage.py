"""When garbage is collected: between tests, in the main thread, so that no finalizer runs in another one."""

import contextlib
import gc
import time
from collections.abc import Iterator

ALL_S = 10.0
"""Time between two collections of all garbage, which take 0.1 s each; new garbage is collected after each test."""


class Collector:
    """Collects for a suite, in place of Python, which collects in whatever thread makes an object."""

    def __init__(self) -> None:
        self._all_at = time.monotonic()
        gc.disable()

    def keep(self) -> None:
        """The tests are collected: to look through them and their modules again would take 0.4 s each time."""
        gc.collect()
        gc.freeze()

    def collect(self) -> None:
        """A test is over."""
        is_due = time.monotonic() > self._all_at + ALL_S
        gc.collect(2 if is_due else 1)
        if is_due:
            self._all_at = time.monotonic()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is collected in this block, wherever it runs; afterwards it is as before."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        (gc.enable if is_on else gc.disable)()
