"""Full disks: under the states, and under the broker. Each has a small file system of its own; only root makes one."""

import os
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault

BLOCK = bytes(1 << 20)
FULL_S = (6.0, 14.0)
"""How long a disk stays full: several tries of whoever waits for it."""

PROMISED_S = 15.0
"""A crawl goes on within so many seconds of its disk's being freed."""


class FullState(Fault):
    """The disk of the states fills up and is freed, while the crawl runs."""

    name = "full-state"
    says = "disk full under the states, freed after some seconds"
    again_percent = 10.0
    limits: ClassVar[Mapping[str, float]] = {"goes on after s": PROMISED_S, "silent": 0.0}
    within = "state"
    size_mb = 96
    times = 2

    def lacks(self) -> str:
        """Mounting needs root, and a kernel that lets it."""
        if os.geteuid() != 0:
            return "only root can mount a small file system"
        probe = Path("/tmp") / f"crawlog-mount-{os.getpid()}"  # a name of this process alone
        probe.mkdir()
        try:
            return "" if _mount(probe, 1) else "this kernel lets nobody mount here"
        finally:
            _unmount(probe)
            probe.rmdir()

    def prepare(self, crawl: Crawl) -> None:
        """The folder is a file system of its own from the start."""
        folder = crawl.data / self.within
        folder.mkdir(parents=True)
        assert _mount(folder, self.size_mb)

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Fill it, wait, free it; the crawl must ask again soon, and must not end meanwhile."""
        silences = [0.0]
        for number in range(self.times):
            if not crawl.until(0.2 + 0.4 * number, 300) or not crawl.note(self.name):
                break
            ballast = crawl.data / self.within / "ballast"
            _fill(ballast)
            crawl.sleep(dice.uniform(*FULL_S))
            ballast.unlink()
            silences.append(crawl.until_asked(time.monotonic()))
        filled = len(silences) > 1
        return {"goes on after s": max(silences), "silent": float(filled and not _said(crawl))}

    def after(self, crawl: Crawl) -> None:
        """A process that still has it open keeps it until then."""
        _unmount(crawl.data / self.within)


class FullBroker(FullState):
    """The same for the broker, which halts when its log cannot be written."""

    name = "full-broker"
    says = "disk full under the broker's log, freed after some seconds"
    within = "kafka"
    size_mb = 256


def _said(crawl: Crawl) -> bool:
    return "is full" in crawl.said.read_text(errors="replace")


def _mount(folder: Path, size_mb: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "crawlog", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def _fill(ballast: Path) -> None:
    """Until nothing more goes in."""
    with ballast.open("wb", buffering=0) as file:
        size = len(BLOCK)
        while size:
            try:
                file.write(BLOCK[:size])
            except OSError:
                size //= 2
