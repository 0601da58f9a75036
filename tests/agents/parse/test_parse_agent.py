"""Where a parse worker begins in the partitions that it was assigned."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents.parse.parse_agent import ParseWorker
from crawlog.streams.errors import RetryLater
from crawlog.streams.recovery import ParsePlace


def worker(next_offsets: dict[int, int], done: list[tuple[int, int]]) -> Any:
    """As much of one as is needed: parse lost 40 to 42 of partition 0, and nothing of partition 1."""
    made: Any = object.__new__(ParseWorker)
    positions = SimpleNamespace(next=next_offsets.get, done=lambda at, offset: done.append((at, offset)))
    made._app = SimpleNamespace(positions=positions)
    made._places = {0: ParsePlace(40, 43, 90), 1: ParsePlace(7, 0, 90)}
    return made


def test_the_commit_passes_pages_that_were_asked_for_again() -> None:
    """Else each next worker would look for them; a partition that lost none is left alone."""
    done: list[tuple[int, int]] = []
    worker({0: 43, 1: 7}, done)._begin({0, 1, 2})
    assert done == [(0, 43)]


def test_pages_that_go_between_the_look_and_the_start_are_not_passed() -> None:
    """The log's start moved on meanwhile: the next worker asks for these pages, too."""
    done: list[tuple[int, int]] = []
    with pytest.raises(RetryLater, match="lost its pages up to 45"):
        worker({0: 45}, done)._begin({0})
    assert done == []
