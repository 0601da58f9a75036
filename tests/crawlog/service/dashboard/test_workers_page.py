"""The page of workers: its rows, its sums, and what an operator should look at."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.service.dashboard.workers_page import groups_of, lost_page, machines_page, workers_page
from crawlog.streams.fleet import LostWorker, StageView, WorkerView

WORKERS = (
    WorkerView("fetch-0", "fetch", "m1", 7, (0, 1), 3.0, 0.5, 100, "1", is_coordinator=True),
    WorkerView("fetch-1", "fetch", "m2", 8, (2,), 1.0, 0.25, 50, "2", is_held=True),
    WorkerView("parse-0", "parse", "m1", 9, (0,), 2.0, 1.0, 200, "1", trouble="the disk is full"),
)

LOST = (
    LostWorker("fetch-0", "fetch", "m1", 3, "1", 1.0, 90.0, "killed by SIGKILL", is_replaced=True),
    LostWorker("fetch-9", "fetch", "m3", 4, "1", 1.0, 80.0, "silent", is_replaced=False),
    LostWorker("fetch-8", "fetch", "m3", 5, "1", 1.0, 70.0, "drained by eve", is_replaced=False),
)


def shown(**given: str) -> dict[str, Any]:
    """The page's values."""
    stages = [StageView("fetch", 2, 5), StageView("parse", 1, 0), StageView("sink", 0, 9)]
    fleet: Any = SimpleNamespace(workers=lambda: WORKERS, lost=lambda: LOST, stages=lambda: stages)
    return workers_page(fleet, given)


def names(rows: Iterable[Any]) -> list[str]:
    """Of the workers in rows."""
    return [row.view.id for row in rows]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, ["fetch-0", "fetch-1", "parse-0"]),
        ({"stage": "parse"}, ["parse-0"]),
        ({"state": "paused"}, ["fetch-1"]),
        ({"state": "trouble"}, ["parse-0"]),
        ({"host": "m1", "sort": "-cpu"}, ["parse-0", "fetch-0"]),
        ({"q": "DISK"}, ["parse-0"]),
        ({"sort": "-restarts"}, ["fetch-0", "fetch-1", "parse-0"]),
    ],
)
def test_workers_are_chosen_by_stage_state_machine_and_search(given: dict[str, str], wanted: list[str]) -> None:
    """A pause that was ordered counts as one at once."""
    assert names(shown(**given)["workers"].rows) == wanted


def test_a_worker_stands_with_the_ends_of_its_earlier_processes() -> None:
    """A planned end needs no look, and a process that another one replaced is a restart."""
    values = shown()
    assert [len(row.lost) for row in values["workers"].rows] == [1, 0, 0]
    assert [one.id for one in values["gone"]] == ["fetch-9"]
    assert [one.is_bad for one in LOST] == [False, True, False]


def test_sums_of_stages_and_machines() -> None:
    """A stage without a worker is shown: its records wait."""
    stages = groups_of(WORKERS, [StageView("fetch", 2, 5), StageView("sink", 0, 9)])
    assert [(one.name, one.workers, one.paused, one.lag) for one in stages] == [
        ("fetch", 2, 1, 5),
        ("parse", 1, 0, None),
        ("sink", 0, 0, 9),
    ]
    machines = machines_page(WORKERS, {"sort": "-rss"}).rows
    assert [(one.name, one.workers, one.rss, one.cpu) for one in machines] == [("m1", 2, 300, 1.5), ("m2", 1, 50, 0.25)]


@pytest.mark.parametrize(("given", "wanted"), [({}, [3, 4, 5]), ({"name": "gone", "sort": "lost"}, [5, 4])])
def test_lost_workers_are_listed_the_last_one_first(given: dict[str, str], wanted: list[int]) -> None:
    """By the pid of each process."""
    assert [one.pid for one in lost_page(LOST, given).rows] == wanted
