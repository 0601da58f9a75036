"""What a worker's process tells of itself in its reports: its machine, its age, its CPU and memory."""

import os
import resource
import socket
import time
from functools import cache
from pathlib import Path

from crawlog.schemas.progress import SUPERVISOR, Progress

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


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(one.ru_utime + one.ru_stime for one in used), 2)


def _rss() -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
