"""A worker's own process: what its reports have of it, its end at an operator's command, its freed memory."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import time
from functools import cache
from pathlib import Path
from typing import Literal

import structlog

from crawlog.schemas.control import WorkerAction, WorkerCommand
from crawlog.schemas.progress import SUPERVISOR, Progress, stage_of
from crawlog.streams.exit_codes import DRAINED, EX_TEMPFAIL
from crawlog.streams.exits import own_key

_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")


@cache
def began() -> float:
    """The time of the first call, UTC epoch seconds. Call it in the worker, not in the forkserver."""
    return round(time.time(), 1)


class OwnProcess:
    """This process. Make it in the worker, not in the forkserver: its age counts from then."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._host = socket.gethostname()
        self._started = began()
        self._supervisor = os.environ.get(SUPERVISOR, "")

    def sign(self, reports: list[Progress]) -> None:
        """Write these facts into reports; reads the counters of the kernel once for all of them."""
        if not reports:
            return
        cpu_s, rss = _cpu_s(), _rss()
        for report in reports:
            report.host = self._host
            report.version = self._version
            report.started = self._started
            report.supervisor = self._supervisor
            report.cpu_s = cpu_s
            report.rss = rss
            if stage_of(report) == "fetch":
                report.ticket_key = own_key().public


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(one.ru_utime + one.ru_stime for one in used), 2)


def _rss() -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
# Blocks of this size or more get their own mapping. They are rare: each costs a system call and its page faults.
MAPPED_BYTES = 1 << 20

KEPT_BYTES = 32 << 20  # Free memory that stays at the end of a heap. Returning it after each page cost parse 6 %.

# From this size on a page's tree takes many times as much memory; parsing takes so long that a trim costs little.
LARGE_BYTES = 1 << 20


def give_back_large_blocks() -> None:
    """Make glibc return large blocks to the system when they are freed.

    By default it raises the limit to the largest block freed lately, up to 32 MiB. Smaller blocks stay in a heap per
    thread; bodies of some megabytes then leave hundreds of megabytes of holes.
    """
    with contextlib.suppress(AttributeError):  # musl has no such setting
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_memory(size_bytes: int) -> None:
    """Return the free memory between used blocks to the system, before a large page is parsed.

    It takes 1 to 8 ms, 40 ms after half a gigabyte.

    Args:
        size_bytes: Size of the page; nothing happens below LARGE_BYTES.
    """
    if size_bytes >= LARGE_BYTES:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


log = structlog.get_logger()

_ordered: dict[WorkerAction | Literal["restart"], str] = {}  # The command to this process, and its reason


def is_for_us(order: WorkerCommand, name: str) -> bool:
    """Whether the order is for this very process."""
    return order.is_to(name, os.getpid(), began())


def stop_as_ordered(order: WorkerCommand) -> None:
    """Ends this process as SIGTERM does."""
    log.info("ordered_to_stop", action=order.action, by=order.by)
    _ordered[order.action] = order.by
    os.kill(os.getpid(), signal.SIGTERM)


def stop_for_restart(why: str) -> None:
    """Ends this process as SIGTERM does, with a code that asks for another one, unless it is drained."""
    _ordered["restart"] = why
    os.kill(os.getpid(), signal.SIGTERM)


def exit_code_of_stop() -> int:
    """The exit code of a clean stop. By it a supervisor decides whether to start another process."""
    if "drain" in _ordered:
        return DRAINED if os.environ.get(SUPERVISOR) else 0
    return EX_TEMPFAIL if "restart" in _ordered else 0


def why_ended() -> str:
    """Why this process ends, for its last report."""
    words = {"stop": "stopped by {}", "drain": "drained by {}", "restart": "asked for another process: {}"}
    return next((words[action].format(by) for action, by in _ordered.items()), "stopped by a signal")


def reason_of_restart() -> str:
    """Why this process asks for another one; empty if it does not."""
    return _ordered.get("restart", "")
