"""The user of a child that runs deployed code: where its worker runs as root, a user that nobody else is.

The number is made of the process id, in a range that no account and no container has. In a namespace that does not map
it, the child becomes `nobody`. It runs no code if it may not change its user, or if the new user could not read Python
or crawlog, as in a virtual environment below /root.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from crawlog.streams.kernel import die_with, prctl

# Lowest number: systemd, too, gives the range up to 2^31 to nobody (https://systemd.io/UIDS-GIDS).
FIRST_UID = 0x7000_0000

NOBODY = 65_534

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38  # linux/prctl.h


def settle(home: str, *, is_own_user: bool) -> str:
    """Make `home`/work the working folder of this process, and give the process its user.

    Returns: Why it must run no code; empty if it may.
    """
    parent, refused = os.getppid(), ""
    work = Path(home, "work")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if is_own_user and not os.geteuid():
        uid, why = _found_user()
        if uid:
            _become(uid, home, work)
        refused = refusal(why) if why else ""
        prctl(PR_SET_DUMPABLE, 1)  # else its own entries in /proc belong to root
        die_with(parent)  # the kernel forgets it with a change of user
    os.chdir(work)
    os.environ.update(HOME=str(work), TMPDIR=str(work))
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    return refused


def refusal(why: str) -> str:
    """What a user is told where deployed code would run as root."""
    return (
        f"code_refused: deployed code would run as root: {why}. Install Python and crawlog where every user can read "
        "them, or run the workers as another user; spider.own_user=false lets such code run as root"
    )


def why_root(*, is_own_user: bool) -> str:
    """Why this process's children refuse deployed code, as `refusal` says it; empty if they do not.

    Another process looks, since it changes its user for the look.
    """
    if os.geteuid() or not is_own_user:
        return ""
    command = [sys.executable, "-P", "-m", __name__]
    why = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout.strip()
    return refusal(why) if why else ""


def _found_user() -> tuple[int, str]:
    """The number of a user that can run the code; 0 with the reason if there is none."""
    why = ""
    for uid in (FIRST_UID + os.getpid(), NOBODY):
        try:
            os.setgroups([])
            os.setegid(uid)
            os.seteuid(uid)
        except OSError as error:
            _back()
            why = f"the system does not allow another user: {error.strerror}"
            continue
        why = _unreadable()
        _back()
        return (0 if why else uid), why
    return 0, why


def _become(uid: int, home: str, work: Path) -> None:
    os.chown(work, uid, uid)
    os.chown(home, -1, uid)
    os.chmod(home, 0o710)  # noqa: PTH101, S103  # its group is this user's alone
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _back() -> None:
    os.seteuid(0)
    os.setegid(0)


def _unreadable() -> str:
    """What the present effective user would have to read and cannot; empty if it can read all."""
    import crawlog
    import crawlog.streams

    needed = [*crawlog.__path__, *crawlog.streams.__path__, str(Path(os.__file__).parent), *sys.path]
    for path in needed:
        if not os.access(path, os.R_OK | os.X_OK, effective_ids=True) and not _is_missing(path):
            return f"another user cannot read {path}, which Python or crawlog needs"
    return ""


def _is_missing(path: str) -> bool:
    """Whether a path is not there for root either; the effective user is changed for the look."""
    uid, gid = os.geteuid(), os.getegid()
    _back()
    try:
        return not os.path.isdir(path)  # noqa: PTH112  # a zipped library is no folder
    finally:
        os.setegid(gid)
        os.seteuid(uid)


if __name__ == "__main__":
    print(_found_user()[1])  # noqa: T201  # for `why_root`
