"""Limits of a spider's child: memory and processes, in the kernel.

memory       RLIMIT_DATA, of each process: an allocation beyond it fails, in Python with a MemoryError
files        RLIMIT_FSIZE, of deployed code: a write beyond it fails, in Python with an OSError
processes    a cgroup of its own, where one can be made; else RLIMIT_NPROC, which counts all processes of the user
and does not bind root
"""

import contextlib
import os
import resource
from pathlib import Path

import msgspec

from .child_user import settle

CGROUPS = Path("/sys/fs/cgroup")

FILE_BYTES = 1 << 30  # Longest file that deployed code can write: its folder lies on a disk that others need

MARK = "crawlog-spider-"  # First part of the names of our cgroups; the zygote's pid follows


class ChildLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of one child.

    Attributes:
        memory_bytes: Of each of its processes.
        tasks: Processes and threads, all together.
        home: Folder of a child that runs deployed code, see `child_code`; empty for other children.
        is_own_user: Whether such a child gets a user of its own.
    """

    memory_bytes: int = 2 << 30
    tasks: int = 512
    home: str = ""
    is_own_user: bool = False

    def apply(self) -> str:
        """Limit this process, and those that it will start. Returns: Why it must run no code; empty if it may."""
        refused = ""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        lower(resource.RLIMIT_DATA, self.memory_bytes)
        if self.home:
            lower(resource.RLIMIT_FSIZE, FILE_BYTES)
            refused = settle(self.home, is_own_user=self.is_own_user)
        if os.geteuid():
            lower(resource.RLIMIT_NPROC, _tasks_of_user() + self.tasks)
        return refused


def lower(kind: int, limit: int) -> None:
    """Lower a limit of this process for good."""
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(kind, (limit, limit))


def _tasks_of_user() -> int:
    """Processes and threads of this user: RLIMIT_NPROC counts all of them."""
    count, user = 0, os.getuid()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == user:
                count += sum(1 for _ in (entry / "task").iterdir())
    return count


class ChildCgroup:
    """The cgroup that counts a child's processes; without effect where none can be made."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @property
    def is_there(self) -> bool:
        return self._folder is not None

    def make(self, limits: ChildLimits) -> None:
        """Make it, or open it again for a new child."""
        for above in [self._folder.parent] if self._folder else _own_cgroups():
            with contextlib.suppress(OSError):
                _remove_old(above)
                folder = above / f"{MARK}{os.getpid()}"
                folder.mkdir(exist_ok=True)
                (folder / "pids.max").write_text(str(limits.tasks))
                self._folder = folder
                return
        self._folder = None

    def enter(self) -> None:
        """Move this process into it."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Forbid each further fork."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / "pids.max").write_text("0")

    def remove(self) -> None:
        """Remove it, once all its processes are gone."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()


def _own_cgroups() -> list[Path]:
    """Folders of this process's cgroups that may count processes: version 1, then 2."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found[controllers] = path.lstrip("/")
    folders = []
    if "pids" in found:
        folders.append(CGROUPS / "pids" / found["pids"])
    if "" in found:
        folders += [CGROUPS / found[""]]
        with contextlib.suppress(OSError):
            (folders[-1] / "cgroup.subtree_control").write_text("+pids")
    return folders


def _remove_old(above: Path) -> None:
    """Remove cgroups of zygotes that were killed."""
    for folder in above.glob(f"{MARK}*"):
        if not Path("/proc", folder.name.removeprefix(MARK)).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
