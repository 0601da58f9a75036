"""Which aborts of a process are looked into; `tests/e2e/test_zeroed.py` shows what comes of it on a damaged log."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os, sys, threading
from crawlog.streams.cluster.aborts import explain_aborts
from crawlog.streams.settings import Kafka, Settings

explain_aborts(Settings.model_construct(kafka=Kafka(bootstrap="127.0.0.1:1")))
_, name, fork = sys.argv
if fork == "fork" and (child := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

def abort():
    libc = ctypes.CDLL(None)
    libc.prctl(15, name.encode())  # PR_SET_NAME
    libc.abort()

thread = threading.Thread(target=abort)
thread.start()
thread.join()
"""

LOOKS = "looking for them"


@pytest.mark.parametrize(
    ("thread", "fork", "looked"), [("rdk:broker1", "no", True), ("worker", "no", False), ("rdk:broker1", "fork", False)]
)
def test_only_aborts_of_librdkafkas_threads_are_looked_into_and_each_remains_one(
    thread: str, fork: str, looked: bool
) -> None:
    """No broker answers here, so no damage is found: the process ends by SIGABRT, once, as without the handler."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT, thread, fork], capture_output=True, text=True, check=False)
    told = -6 if fork == "no" else 256 - 6
    assert (ended.returncode, ended.stderr.count(LOOKS)) == (told, int(looked)), ended.stderr
