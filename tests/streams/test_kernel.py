"""Attributes of processes in the kernel."""

import os
import subprocess
import sys

import pytest

from crawlog.streams.kernel import work_in_batch

TELL = "import os; print(os.sched_getscheduler(0))"
OF_A_CHILD = (
    "import subprocess, sys; from crawlog.streams.kernel import work_in_batch; work_in_batch();"
    f"print(subprocess.check_output([sys.executable, '-c', {TELL!r}], text=True))"
)


def test_what_does_batch_work_starts_others_that_do() -> None:
    """So the spiders and browsers of a worker do."""
    assert int(subprocess.check_output([sys.executable, "-c", OF_A_CHILD], text=True)) == os.SCHED_BATCH


@pytest.mark.parametrize("policy", [os.SCHED_IDLE, os.SCHED_BATCH])
def test_a_policy_that_a_user_has_set_stays(policy: int) -> None:
    """`chrt --idle 0 crawlog run …` is still idle."""
    with subprocess.Popen(["sleep", "60"]) as process:
        os.sched_setscheduler(process.pid, policy, os.sched_param(0))
        work_in_batch(process.pid)
        assert os.sched_getscheduler(process.pid) == policy
        process.kill()


def test_a_process_that_is_gone_is_no_error() -> None:
    """The broker may end at once, and its caller says why."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    work_in_batch(process.pid)
