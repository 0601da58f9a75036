"""What holds for a whole process: by Linux's prctl(2) and sched(7), by the garbage collector, and by its system.

It adopts orphans, dies with its parent, does batch work, or collects cycles less often.
"""

import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import xxhash

CGROUPS = Path("/sys/fs/cgroup")

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


def work_in_batch() -> None:
    """Mark this thread, and all that it starts from now on, as batch work (SCHED_BATCH).

    It interrupts no other process when it wakes up. Workers and broker wake each other hundreds of times a second; so a
    page costs 3 to 5 % less CPU, and pages come 4 to 8 % faster on two cores. Another policy than the default stays.
    """
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a container forbids it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def collect_seldom() -> None:
    """Collect cycles less often: each full collection walks some 100,000 small objects in a worker's caches.

    In a command it costs a seventh of the import time. Objects loaded so far are frozen and never collected, with a
    megabyte of cycles from imports. Later cycles come from failed requests and parses, and are few.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, and by the CPU time of its control groups."""
    folders = [CGROUPS / "cpu"]
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "cpu", "cpu,cpuacct"):
                folder = CGROUPS / (controllers and "cpu") / path.lstrip("/")
                folders += [one for one in (folder, *folder.parents) if one.is_relative_to(CGROUPS)]
    return cores_within(len(os.sched_getaffinity(0)), folders)


def cores_within(cores: int, folders: Iterable[Path]) -> int:
    """That many cores, or as many as the CPU time of these control groups is: a part of one counts whole."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no limit here
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())  # `max` for none
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:
                cores = min(cores, -(-quota // period))
    return cores


def system_mark() -> str:
    """Six digits for this system: machines that were cloned, and containers of one host name, have others.

    It stays until the next boot, and when a container is started again: the boot's id tells machines apart, the inode
    of the root folder containers.
    """
    boot = b""
    with contextlib.suppress(OSError):  # not Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return xxhash.xxh3_64_hexdigest(b"%s %d" % (boot, Path("/").stat().st_ino))[:6]
