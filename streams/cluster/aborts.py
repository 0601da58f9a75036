"""Turns an abort of librdkafka at damaged bytes into an exit code and a message.

librdkafka (2.16) checks no length before it reads the CRC of a batch: a sector that reads back as zeros makes it call
abort(). The handler of SIGABRT replaces the process by one that looks for the damage without librdkafka:

    assertion in a thread of librdkafka ─► SIGABRT ─► execv ─► first_damage ─► found: DamagedLog, exit code 65
                                                                            └► none: the abort, as it would have been

The new process has the pid, the standard streams and the parent of the old one, and nothing else of it: for its
children and locks the process has died, as after SIGKILL. It uses no librdkafka and has no handler, so it cannot come
here again. Aborts of other threads (of Python, of an extension), and of forks of this process, stay what they are.
"""

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

AGAIN = "import sys; from crawlog.streams.log.first_damage import main; main(sys.argv[1])"

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
# The handler, which C holds by its address, the process that installed it, and the settings of its newest client.
_kept: dict[str, Any] = {}


def explain_aborts(settings: "Settings") -> None:
    """Install the handler for this process. A process that is debugged with faulthandler keeps that one."""
    _kept.update(kafka=settings.kafka, pid=os.getpid())
    if "handler" in _kept or faulthandler.is_enabled():
        return
    _kept["handler"] = handler = _HANDLER(_aborted)
    ctypes.CDLL(None).signal(int(signal.SIGABRT), handler)


def _aborted(_signal: int) -> None:
    """Replace the process, or return: then abort() ends it. A thread of librdkafka has blocked all signals."""
    if os.getpid() != _kept["pid"] or not Path("/proc/thread-self/comm").read_text().startswith("rdk:"):
        return
    place = os.memfd_create("crawlog", 0)
    os.write(place, _kept["kafka"].model_dump_json().encode())
    os.lseek(place, 0, os.SEEK_SET)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(sys.executable, [sys.executable, "-P", "-c", AGAIN, str(place)])  # noqa: S606  # no shell is wanted
