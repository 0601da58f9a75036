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

_ordered: dict[Literal["drain", "stop", "restart"], str] = {}
"""What this process was told to do, and why."""


def is_for_us(order: WorkerOrder, name: str) -> bool:
    """Whether the order is for this very process; an order for an earlier one of the name stays in the log."""
    return (order.worker, order.pid, order.started) == (name, os.getpid(), began())


def stop_as_ordered(order: WorkerOrder) -> None:
    """Ends this process as SIGTERM does."""
    log.info("ordered_to_stop", action=order.action, by=order.by)
    _ordered[order.action] = order.by
    os.kill(os.getpid(), signal.SIGTERM)


def stop_for_restart(why: str) -> None:
    """Ends this process as SIGTERM does, with a code that asks for another one, unless it is drained."""
    _ordered["restart"] = why
    os.kill(os.getpid(), signal.SIGTERM)


def exit_code_of_stop() -> int:
    """The exit code of a clean stop: it tells a supervisor whether to start another process."""
    if "drain" in _ordered:
        return DRAINED if os.environ.get(SUPERVISOR) else 0
    return EX_TEMPFAIL if "restart" in _ordered else 0


def reason_of_restart() -> str:
    """Why this process asks for another one; empty if it does not."""
    return _ordered.get("restart", "")
