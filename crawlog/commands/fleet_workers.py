"""`crawlog workers`: the workers of all machines; an order to one process of them.

An order is one record on crawl.control. The process that it names takes it within two seconds.
"""

import time
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas.control import WorkerAction, WorkerCommand
from crawlog.streams.errors import InvalidState, UnknownName
from crawlog.streams.stages import STAGES

from .control import whoever

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crawlog.streams.fleet import FleetView, LostWorker, WorkerView
    from crawlog.streams.settings import Settings

FIRST_S = 2.0  # How long to wait for the first reports, seconds; there is one a second


def list_workers(settings: "Settings") -> "list[WorkerView]":
    """The workers that report, by stage and name."""
    return _read(settings).workers()


def _read(settings: "Settings") -> "FleetView":
    from crawlog.streams.fleet import FleetView

    return FleetView.read(settings, until=lambda view: bool(view.workers()), wait_s=FIRST_S)


LOST_READ_S = 5.0  # How long the reports of the last hour may be read, seconds; some 500,000 of them


class FleetWorkers(NamedTuple):
    """The workers of all machines.

    Attributes:
        lost: Those that ended in the last hour, the last one first.
        is_whole: Whether all reports of that hour were read in time.
    """

    living: "list[WorkerView]"
    lost: "list[LostWorker]"
    is_whole: bool


def all_workers(settings: "Settings") -> FleetWorkers:
    """The workers that report, and those that ended in the last hour."""
    view = _read(settings)
    is_whole = view.read_lost(LOST_READ_S)
    return FleetWorkers(view.workers(), view.lost(), is_whole)


def order_worker(
    settings: "Settings",
    name: str,
    action: WorkerAction,
    by: str = "",
    listed: "Callable[[Settings], Sequence[WorkerView]]" = list_workers,
) -> "WorkerView":
    """Orders a worker's process to pause, to go on, or to hand over its partitions and end; returns it as it was.

    Args:
        action: After `stop` its supervisor starts another process, after `drain` that of `up` does not.
        listed: Returns the workers that report.

    Raises: UnknownName, InvalidState: it cannot be ordered so.
    """
    from crawlog.streams.control import write_control
    from crawlog.streams.log import CommandProducer, Topics

    found = listed(settings)
    worker = next((one for one in found if one.id == name), None)
    if worker is None:
        known = ", ".join(one.id for one in found)
        there = f"there are: {known}" if known else "no worker reports; `crawlog up` starts some"
        raise UnknownName(f"no worker {name!r:.120} reports; {there}")
    if not worker.started_at:
        raise InvalidState(f"worker {name} is of an older version, that takes no orders: end process {worker.pid}")
    if action == "drain" and worker.supervisor == "run":
        raise InvalidState(f"worker {name} belongs to a `crawlog run`, which needs it: end that command with Ctrl-C")
    if action in ("pause", "resume") and worker.stage not in STAGES:
        raise InvalidState(f"worker {name} is of the stage {worker.stage}, which cannot be paused; `stop` ends it")
    order = WorkerCommand(name, worker.pid, worker.started_at, action, at=time.time(), by=by or whoever())
    write_control(CommandProducer(settings, "crawlog-workers"), Topics(settings.kafka.prefix), [order])
    return worker
