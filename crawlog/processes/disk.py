"""Whether the disk of a data folder has space."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

FULL_BYTES = 16 << 20
"""A disk with less free space counts as full: Kafka preallocates indexes of 1 MiB each, and RocksDB its log."""

FULL_AGAIN_S = 2.0
"""Pause between two looks at the disk, and between two starts of a broker on a full disk, seconds."""


class Disk:
    """The disks of a data folder: its states, its log and the folder itself may be on different disks."""

    def __init__(self, data: Path, report: Callable[[str], None]) -> None:
        self._folders = (data / "state", data / "kafka", data)
        self._report = report
        self._full: Path | None = None
        self._looked_at = 0.0

    def is_full(self) -> bool:
        """Whether a disk is full. Reports each change once. Workers and broker wait by themselves."""
        now = time.monotonic()
        if now - self._looked_at >= FULL_AGAIN_S:
            self._looked_at = now
            full = next((path for path in self._folders if _is_full(path)), None)
            if full and not self._full:
                self._report(f"the disk of {full} is full: the crawl goes on by itself as soon as there is space")
            elif self._full and not full:
                self._report(f"the disk of {self._full} has space again")
            self._full = full
        return self._full is not None


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path).free < FULL_BYTES
    except FileNotFoundError:
        return False
