"""A process that dies at a crash point, played by an exception."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crawlog.streams import crash_points


class Killed(BaseException):
    """The process has died here."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, point: str, count: int) -> Iterator[None]:
    """What is done within dies at a point, the how-manieth time it comes there."""
    left = Counter({point: count})

    def die(name: str) -> None:
        left[name] -= 1
        if left[name] == 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "point", die)
        with pytest.raises(Killed):
            yield
