"""Workers that have ended, by the reports of the last hour."""

from typing import Any

import msgspec
import pytest

from crawlog.schemas import progress
from crawlog.schemas.progress import IDLE, Progress
from crawlog.streams.fleet import FleetState
from crawlog.streams.fleet.lost_workers import LOST_S, MOST, LostWorkers, ReportSign

NOW = 10_000.0


def sign(at: float, pid: int = 7, worker: str = "fetch-0", **fields: Any) -> tuple[Progress, float]:
    """A report, and the time of its arrival."""
    return Progress(worker, "fetch", 0, at, pid=pid, host="m", version="1", **({"started": 1.0} | fields)), at


def noted(at: float, ended: str, pid: int = 7) -> tuple[Progress, float]:
    """A supervisor's report for a process, of which it knows the pid."""
    return Progress("fetch-0", IDLE, -1, at, pid=pid, idle_stage="fetch", ended=ended), at


KILLED = noted(NOW - 90, "killed by SIGKILL")


@pytest.mark.parametrize(
    ("reports", "wanted"),
    [
        ([sign(NOW)], []),
        ([sign(NOW - 14)], []),
        ([sign(NOW - 16)], [(7, NOW - 16, "silent", False)]),
        ([sign(NOW - LOST_S - 1)], []),
        ([sign(NOW - 1, ended="stopped by eve")], [(7, NOW - 1, "stopped by eve", False)]),
        ([sign(NOW - 91), KILLED, sign(NOW, 8)], [(7, NOW - 90, "killed by SIGKILL", True)]),
        ([sign(NOW - 91), sign(NOW, 8), KILLED], [(7, NOW - 90, "killed by SIGKILL", True)]),
        ([KILLED], [(7, NOW - 90, "killed by SIGKILL", False)]),
        ([sign(NOW - 5), sign(NOW, 8)], [(7, NOW - 5, "silent", True)]),
        ([sign(NOW - 5), sign(NOW, started=2.0)], [(7, NOW - 5, "silent", True)]),
    ],
)
def test_a_worker_is_lost_with_the_time_and_the_reason_as_far_as_known(
    reports: list[tuple[Progress, float]], wanted: list[tuple[int, float, str, bool]]
) -> None:
    """By its last report, its supervisor's, its silence, or its successor; a pid may come again, as in a container."""
    lost = LostWorkers()
    for report, at in reports:
        lost.take(msgspec.json.decode(progress.encode(report), type=ReportSign), at)
    assert [(one.pid, one.lost_at, one.reason, one.is_replaced) for one in lost.views(NOW)] == wanted


def test_a_worker_that_reported_its_end_is_listed_no_more_at_once() -> None:
    """Its partitions count as owned until another one reports them: a fleet between two processes is still a fleet."""
    state = FleetState()
    state.report(*sign(NOW - 1, supervisor="up"))
    state.report(*noted(NOW, "killed by SIGKILL"))
    assert state.workers(NOW) == []
    assert state.supervisors("fetch", NOW) == {"up"}
    state.report(*sign(NOW, 8))
    assert [(one.id, one.pid) for one in state.workers(NOW)] == [("fetch-0", 8)]


def test_earlier_reports_do_not_replace_later_ones_and_memory_has_an_end() -> None:
    """A view reads the last hour while it follows. Very many names are those of containers that come and go."""
    lost, earlier = LostWorkers(), LostWorkers()
    lost.take(*sign(NOW))
    earlier.take(*sign(NOW - 60))
    earlier.take(*sign(NOW - 60, worker="fetch-1"))
    lost.take_earlier(earlier)
    assert [(one.id, one.lost_at) for one in lost.views(NOW)] == [("fetch-1", NOW - 60)]
    for number in range(MOST + 5):
        lost.take(*sign(NOW, pid=number, worker=f"w{number}"))
    assert len(lost.seen) == MOST
