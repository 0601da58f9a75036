"""Attributes of this process in the Linux kernel (prctl(2)): it adopts orphans, or dies with its parent."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process in the kernel."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, however it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(0)
