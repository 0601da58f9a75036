"""A planned stop of this process: as at SIGTERM, it hands its partitions over and ends.

crawl.control ─► WorkerOrder ─► `is_for_us`: name, pid and start are ours ─► `stop_as_ordered` ─► SIGTERM ─► exit
watchdog ─► `stop_for_restart` ─► SIGTERM ─► exit
"""

import os
import signal
from typing import Literal

import structlog

from crawlog.schemas.control import WorkerOrder
from crawlog.schemas.progress import SUPERVISOR
from crawlog.streams.exit_codes import DRAINED, EX_TEMPFAIL

from .own_process import began

log = structlog.get_logger()

_ordered: set[Literal["drain", "stop", "restart"]] = set()


def is_for_us(order: WorkerOrder, name: str) -> bool:
    """Whether the order is for this very process; an order for an earlier one of the name stays in the log."""
    return (order.worker, order.pid, order.started) == (name, os.getpid(), began())


def stop_as_ordered(order: WorkerOrder) -> None:
    """Ends this process as SIGTERM does."""
    log.info("ordered_to_stop", action=order.action, by=order.by)
    _ordered.add(order.action)
    os.kill(os.getpid(), signal.SIGTERM)


def stop_for_restart() -> None:
    """Ends this process as SIGTERM does, with a code that asks for another one."""
    _ordered.add("restart")
    os.kill(os.getpid(), signal.SIGTERM)


def exit_code_of_stop() -> int:
    """The exit code of a clean stop: it tells a supervisor whether to start another process."""
    if "restart" in _ordered:
        return EX_TEMPFAIL
    return DRAINED if "drain" in _ordered and os.environ.get(SUPERVISOR) else 0
