"""The code of a deployed project, as one child gets it: found in the log, in a folder that the child can read.

thread: CodeSource.folder (blocks; some ask again while the log is away) ─► the cache   └ as root: a copy for its user
home: a new folder below TMPDIR ─┬─ code/   the copy, of root
                                 └─ work/   working folder, HOME and TMPDIR of the child; gone when it ends
its lock: of the process that made it, so a kill releases it; folders without one are old
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import NamedTuple, Protocol

import msgspec
import structlog

from crawlog.schemas.job_orders import CodeRef
from crawlog.streams.code import CodeCache
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.settings import Settings
from crawlog.streams.spiders import Bounds, SpiderRef, Trust

from .limits import ChildLimits

log = structlog.get_logger()

MARK = "crawlog-spider-"  # First part of the names of these folders; the pid of the process that made it follows

AGAIN_S = 2.0  # Pause before the log is asked again, seconds


class FoundFolder(Protocol):
    """Unpacked code that may run."""

    @property
    def path(self) -> Path:
        """Its folder."""


class CodeSource(Protocol):
    """Gives the code that jobs pin."""

    def folder(self, ref: CodeRef) -> FoundFolder:
        """The folder of a version. Blocks. Raises: Misconfigured: it may not run here. EngineError: no answer."""


class ChildCode:
    """The code of one child.

    Args:
        source: Finds it; None if `ref` names its folder.
        is_own_user: Whether the child gets a user of its own, where this process runs as root.
    """

    def __init__(self, ref: SpiderRef, source: CodeSource | None, *, is_own_user: bool) -> None:
        self._ref = ref
        self._source = source
        self._is_copied = is_own_user and not os.geteuid()
        self._closed = threading.Event()
        self._filling = threading.Lock()
        _remove_old()
        self._home, self._lock = _locked_folder()
        (self._home / "work").mkdir(mode=0o700)

    def limits(self, limits: ChildLimits) -> ChildLimits:
        return msgspec.structs.replace(limits, home=str(self._home), is_own_user=self._is_copied)

    def ready(self, *, waits: bool = True) -> SpiderRef:
        """The reference with the folder that the child can read. Blocks.

        Args:
            waits: Whether to ask the log again until it answers.

        Raises: Misconfigured: the code may not run here. EngineError: no answer.
        """
        folder = Path(self._ref.folder) if self._ref.folder else self._found(waits=waits)
        if self._is_copied:
            with self._filling:
                if not self._closed.is_set():
                    folder = shutil.copytree(folder, self._home / "code", symlinks=True)
                    _open_to_read(folder)
        return msgspec.structs.replace(self._ref, folder=str(folder))

    def _found(self, *, waits: bool) -> Path:
        ref = self._ref.spec.code
        if self._source is None or ref is None:
            raise Misconfigured("code_refused: this command runs no deployed code")
        while True:
            try:
                return self._source.folder(ref).path
            except EngineError as error:
                if not waits:
                    raise
                log.warning("code_not_read", project=ref.project, error=str(error))
                if self._closed.wait(AGAIN_S):
                    raise Misconfigured("its worker stops") from None
            except OSError as error:
                raise Misconfigured(f"code_refused: {ref.project}: the cache of code cannot be used: {error}") from None

    def close(self) -> None:
        """Have the child's folder removed; the child has ended. Raises nothing."""
        self._closed.set()
        with self._filling:
            _remove(self._home)
            os.close(self._lock)


def _open_to_read(folder: Path) -> None:
    """Let every user read the copy: the cache is its owner's alone. Only the child's user can enter `home`."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def _locked_folder() -> tuple[Path, int]:
    """A new folder, with its lock. It gets its name once it is locked: by then no process takes it for an old one."""
    unnamed = Path(mkdtemp(prefix=f".{MARK}{os.getpid()}-"))
    lock = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks: there nobody else can lock it either
        fcntl.flock(lock, fcntl.LOCK_EX)
    return unnamed.rename(unnamed.with_name(unnamed.name.removeprefix("."))), lock


def _remove_old() -> None:
    """Have folders of processes that were killed removed.

    Whether a process has the pid in the name says nothing: in a container each worker may have 1, and processes of
    other pid namespaces may share the folder for temporary files.
    """
    old = [folder for folder in Path(gettempdir()).glob(f"{MARK}[0-9]*-*") if _is_old(folder)]
    if old:
        _remove(*old)


def _is_old(folder: Path) -> bool:
    """Whether a folder is ours, and no process has its lock."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        finally:
            os.close(lock)
    return False


def _remove(*folders: Path) -> None:
    """Have folders removed by a process of their own, and do not wait for it.

    Their depth and size are a spider's choice: `shutil.rmtree` takes a level of the stack for each folder in another.
    What cannot be removed now goes when this process has ended, see `_remove_old`.
    """
    try:
        rm = subprocess.Popen(
            ["rm", "-rf", "--", *map(str, folders)],  # noqa: S607  # of the PATH, as any shell takes it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        threading.Thread(target=rm.wait, daemon=True).start()
    except (OSError, RuntimeError) as error:  # no process or no thread left
        log.warning("folders_not_removed", folders=[str(folder) for folder in folders], error=str(error))


class ChildRules(NamedTuple):
    """What each child of a process gets.

    Attributes:
        timeout_s: CPU seconds of one page; thrice that by the clock.
        env: Names of further variables of the environment that it gets, see `zygote_process.PASSED`.
        trust: The files that may be run; None if the operator's own command names the spider.
        code: Finds the code of deployed projects; None where none is run.
        is_own_user: Whether deployed code gets a user of its own, where this process runs as root.
        files: Folder or address in which deployed code keeps files.
        take_line: Takes the lines that its code prints; None: they go to the log.
    """

    timeout_s: float = 10.0
    limits: ChildLimits = ChildLimits()
    env: tuple[str, ...] = ()
    trust: Trust | None = None
    bounds: Bounds = Bounds()
    code: CodeSource | None = None
    is_own_user: bool = True
    files: str = ""
    take_line: Callable[[str], None] | None = None

    @classmethod
    def of(cls, settings: Settings, trust: Trust | None, bounds: Bounds = Bounds()) -> "ChildRules":  # noqa: B008  # frozen
        """The rules by the settings."""
        limits = ChildLimits(settings.parse.max_memory_mb << 20)
        own_user = settings.spider.own_user
        code = CodeCache(settings, is_of_command=trust is None)
        files = settings.pipelines.files
        if files and "://" not in files:
            files = str(Path(files).absolute())  # a child of deployed code has another working folder
        return cls(settings.parse.timeout_s, limits, settings.spider.env, trust, bounds, code, own_user, files)
