"""Which files workers may run as spiders: those that the operator named, and that nobody else may change.

    crawlog run --spider FILE ──► <data>/run/spiders.json ──┐
    security.spider_folders ────────────────────────────────┴──► may a worker run the file that a job's record names?

Job records come from Kafka, whose writers are not all trusted to run code here. What counts is where a file really
lies: links are followed first. Only the file and its folder are looked at. Folders above may belong to others: who
replaces one of them has no file of our owner to put there, and a link leads to another path, which was not named.
"""

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.streams import files

if TYPE_CHECKING:
    from crawlog.streams.settings.settings import Settings

ROOT = 0


class Trust(NamedTuple):
    """What a worker may run; by default nothing.

    Attributes:
        folders: Files below them may be run.
        named: The list of files that commands on this data folder named.
    """

    folders: tuple[Path, ...] = ()
    named: Path | None = None

    def refusal(self, path: Path) -> str:
        """Why a file that a job's record names may not be run; empty where it may."""
        try:
            found = _real(path)
        except (ValueError, RuntimeError) as error:  # a NUL; `~nobody`
            return f"there is no such path: {error}"
        if any(found.is_relative_to(_real(folder)) for folder in self.folders):
            return ""
        known, trouble = self._known()
        if str(found) in known:
            return ""
        return (
            f"workers may not run it: it is in none of security.spider_folders, and no `crawlog run --spider` named it "
            f"on this data folder{trouble}. To allow it, run that command once, or set security.spider_folders and "
            "start the workers again; then `crawlog dead redrive --all --reason spider_folders --execute`"
        )

    def _known(self) -> tuple[set[str], str]:
        """The files that commands named, and why their list does not count if it does not."""
        if self.named is None:
            return set(), ""
        try:
            return set(msgspec.json.decode(read(self.named), type=list[str])), ""
        except FileNotFoundError:
            return set(), ""
        except (OSError, msgspec.MsgspecError) as error:
            return set(), f" ({self.named} is not used: {error})"


def trust_of(settings: "Settings") -> Trust:
    """What the workers of a data folder may run."""
    return Trust(tuple(map(Path, settings.security.spider_folders)), _list(settings.run.data))


def allow(data: Path, file: Path) -> None:
    """Notes a file that the operator's command named; to be called by the holder of the data folder only."""
    path = _list(data)
    known = Trust(named=path)._known()[0]  # noqa: SLF001  # a list that others may change is replaced
    files.write(path, msgspec.json.encode(sorted({*known, str(_real(file))})).decode() + "\n")


def _list(data: Path) -> Path:
    return data.absolute() / "run" / "spiders.json"


def read(path: Path) -> bytes:
    """A file's bytes, if nobody but this user and root can have written them.

    Raises:
        OSError: it cannot be read.
        PermissionError: others may change it; the text says how to mend that.
    """
    with open(path, "rb", opener=_at_once) as file:  # pathlib's takes no opener
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no regular file")
        if fault := _fault(path, status):
            raise PermissionError(fault)
        return file.read()


def check(path: Path) -> None:
    """As `read`, for a file that Python itself reads.

    Raises: OSError, PermissionError: so too.
    """
    if fault := _fault(path, path.stat()):
        raise PermissionError(fault)


def is_shared(folder: Path) -> bool:
    """Whether others may make files in a folder, such as modules that a spider beside them would import."""
    return bool(_writers(folder.stat()))


def _fault(path: Path, status: os.stat_result) -> str:
    """How others may change or replace a file; empty if they cannot."""
    fault = _stranger(path, status) or _exposed(path, status)
    for folder in {path.parent, _real(path).parent}:
        there = folder.stat()
        is_sticky = there.st_mode & stat.S_ISVTX  # as in /tmp: all may make files, nobody may replace those of others
        fault = fault or _stranger(folder, there) or ("" if is_sticky else _exposed(folder, there))
    return fault


def _stranger(path: Path, status: os.stat_result) -> str:
    us = os.geteuid()
    if status.st_uid in (ROOT, us):
        return ""
    return (
        f"{path} belongs to {_user(status.st_uid)}, and crawlog runs as {_user(us)}: only files of this user and of "
        f"root are run. Use `chown {us} {path}`, or run crawlog as that user"
    )


def _exposed(path: Path, status: os.stat_result) -> str:
    writers = _writers(status)
    return f"{path} can be changed by {writers}: use `chmod go-w {path}`" if writers else ""


def _writers(status: os.stat_result) -> str:
    """Who may write beside the owner and root; empty for nobody."""
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and not _is_alone(status.st_uid, status.st_gid):
        return f"group {status.st_gid}"
    return ""


def _is_alone(uid: int, gid: int) -> bool:
    """Whether a group is the user's own, as many systems make one for each user, with a umask of 002."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and not set(group.gr_mem) - {user.pw_name}


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"


def _real(path: Path) -> Path:
    """Where a path leads, through links; a circle of links ends somewhere."""
    return Path(os.path.realpath(path.expanduser()))


def _at_once(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)  # a pipe would keep a worker waiting for ever
