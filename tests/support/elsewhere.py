"""A plug-in of pytest that shows it another machine: a later time, and folders in another order."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

LATER_S = 100_000

_scandir, _listdir = os.scandir, os.listdir


class Backwards:
    """The entries of a folder, the last one first."""

    def __init__(self, path: Any = ".") -> None:
        with _scandir(path) as entries:
            self._entries = iter([*entries][::-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        """It is closed."""


def _later(clock: Callable[[], Any], by: int) -> Callable[[], Any]:
    return lambda: clock() + by


def pytest_configure() -> None:
    """From here on; conftest.py is read afterwards."""
    time.time, time.time_ns = _later(time.time, LATER_S), _later(time.time_ns, LATER_S * 10**9)
    os.scandir, os.listdir = Backwards, lambda path=".": _listdir(path)[::-1]  # type: ignore[assignment]  # for as long as it collects
