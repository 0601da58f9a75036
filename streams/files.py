"""Files in the data folder: written atomically, open to their owner alone, refused if another user made them.

The data folder itself may belong to another user, such as the top folder of a mounted volume. So each folder that
crawlog makes in it has mode 700, and a file of another user there is refused: a worker could load code of that user
from it. Links to files are not followed. A folder may be a link if this user owns both the link and its target.
"""

import contextlib
import errno
import grp
import os
import pwd
import resource
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import Misconfigured

OTHERS = 0o077  # Permission bits of the group and of others

WRITES = 0o022  # Those of them that let them write

ROOT = 0


def want_open(count: int) -> int:
    """How many of `count` files this process may have open; the soft limit is raised for them as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else min(count, soft)


def own(folder: Path, closed: int = OTHERS) -> None:
    """Makes the folder if missing, and lets only this user enter it.

    Args:
        closed: What others may not do there; with WRITES they may read.

    Raises: Misconfigured: it belongs to another user. OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o777 & ~closed, parents=True)
    for found in (folder.lstat(), folder.stat()):  # a link, and what it leads to
        _refuse_other(folder, found)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & closed:
        folder.chmod((mode | stat.S_IRWXU) & ~closed)


def check_inside(folder: Path) -> None:
    """Raises: Misconfigured: something in a folder of ours belongs to another user."""
    for path, found in _below(folder):
        _refuse_other(path, found)


def _below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """All entries below a folder, without those that disappear meanwhile."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield from _below(Path(entry.path))


def opened(path: Path, flags: int) -> int:
    """Opens a file of ours; a new file gets mode 600.

    Raises: Misconfigured: it is a link, or belongs to another user. OSError: as `os.open`.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)  # a pipe does not block
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Misconfigured(
                f"{path} is a link, and crawlog follows none to its own files: another file could be overwritten.\n"
                "Remove it, or use another folder with --data DIR."
            ) from None
        raise
    try:
        _refuse_other(path, os.fstat(file))
    except Misconfigured:
        os.close(file)
        raise
    return file


def read(path: Path) -> str:
    """The text of a file of ours.

    Raises: Misconfigured: it is a link, or belongs to another user. OSError: it is not there, or cannot be read.
    """
    with os.fdopen(opened(path, os.O_RDONLY)) as file:
        return file.read()


def append(path: Path) -> BinaryIO:
    """Opens a file of ours for appending; made if missing. Raises: as `opened`."""
    return open(path, "ab", opener=lambda _, flags: opened(path, flags))  # pathlib's takes no opener


def write(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Writes a file atomically.

    The temporary name has a random part: containers that share the folder may have the same process id.

    Raises: OSError: the old file is unchanged, and no temporary file is left.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        made.replace(path)
    except OSError:
        made.unlink(missing_ok=True)
        raise


def _refuse_other(path: Path | str, found: os.stat_result) -> None:
    if found.st_uid == os.geteuid():
        return
    raise Misconfigured(
        f"{path} belongs to the user {found.st_uid}, and crawlog runs as the user {os.geteuid()}: it uses no files of "
        "others.\nRun it as that user, give the folder to yours with `chown -R`, or use another: --data DIR, or "
        "`sink.folder` for outputs."
    )


def read_trusted(path: Path) -> bytes:
    """A file's bytes, if only this user and root can change the file.

    Raises:
        OSError: it cannot be read.
        PermissionError: others may change it; the message says how to fix that.
    """
    with open(path, "rb", opener=_at_once) as file:  # pathlib's takes no opener
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no regular file")
        if fault := _fault(path, status):
            raise PermissionError(fault)
        return file.read()


def check(path: Path) -> None:
    """The checks of `read_trusted`, for a file that other code reads.

    Raises: OSError, PermissionError: as `read_trusted`.
    """
    if fault := _fault(path, path.stat()):
        raise PermissionError(fault)


def is_shared(folder: Path) -> bool:
    """Whether other users may create files in a folder. A spider in it would import their modules."""
    return bool(_writers(folder.stat()))


def _fault(path: Path, status: os.stat_result) -> str:
    """How others may change or replace a file; empty if they cannot."""
    fault = _stranger(path, status) or _exposed(path, status)
    for folder in {path.parent, real_path(path).parent}:
        there = folder.stat()
        is_sticky = there.st_mode & stat.S_ISVTX  # as in /tmp: users cannot replace each other's files
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
    """The users that may write besides owner and root; empty if there are none."""
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and not _is_alone(status.st_uid, status.st_gid):
        return f"group {status.st_gid}"
    return ""


def _is_alone(uid: int, gid: int) -> bool:
    """Whether the user is the only member of the group. Many systems make one group per user, with a umask of 002."""
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


def real_path(path: Path) -> Path:
    """The path with its links resolved; a loop of links raises no error."""
    return Path(os.path.realpath(path.expanduser()))


def _at_once(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)  # opening a pipe would block for ever


def is_utf_8(text: str) -> bool:
    """Whether the text can be encoded as UTF-8: Python keeps other bytes as lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
