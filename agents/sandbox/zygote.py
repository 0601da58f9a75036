"""Forks the process that runs one user's spider, or tries a page: `python -P -m crawlog.agents.sandbox.zygote`.

    worker ── fork, limits, a socket ─► zygote ── fork ─► spider_process: runs the user's code
           ◄─ pid; how it ended ───────┘  └─ kills it with all that it started: at an order, at its end, and `GRACE_S`
                                             after the worker has closed its sockets, if it has not ended by itself

The zygote is a fresh interpreter, so nothing of the worker is inherited: no thread, no file, no credentials. It has
imported what each spider needs and runs no code of a user, so a child that ended is replaced in milliseconds. It is the
parent of all orphans below it, so a process that left its session is found too.

With the argument `trials` it has imported the HTML parser instead, and each child parses one page within `PageTrial`.
Its standard input is the worker's socket in both cases.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

from crawlog.streams.kernel import PR_SET_CHILD_SUBREAPER, die_with, prctl

from .limits import ChildCgroup, ChildLimits, lower

CONTROL = 0  # Standard input: the worker's socket

DATA = 3  # Number of the child's socket

# Time for a child to end by itself once its worker has no more for it: it writes out its files, `atexit` runs.
GRACE_S = 1.0

# Time between two looks whether it has ended: as a rule it takes a few milliseconds, and a run waits for it.
GRACE_LOOK_S = 0.002

# Rounds of killing the processes that a child left. Each takes some milliseconds; more help only if new ones start as
# fast as they are killed.
SWEEPS = 200


class ChildForked(msgspec.Struct):
    """A child was forked."""

    pid: int


class ChildGone(msgspec.Struct):
    """A child ended, with all that it started.

    Attributes:
        signal: That ended it; 0 if it exited by itself.
        code: Its exit code.
        cpu_s: CPU seconds that it took.
    """

    signal: int
    code: int
    cpu_s: float

    @property
    def reason(self) -> str:
        """How it ended, in words."""
        if not self.signal:
            return f"its process exited with code {self.code}"
        memory = ", for want of memory as a rule" if self.signal == signal.SIGKILL else ""
        return f"its process was ended by signal {self.signal}{memory}"


REFUSED = 3  # Exit code of a trial: the parser refused the page, or got no memory

TRIALS = "trials"  # The argument of a zygote that tries pages


class PageTrial(msgspec.Struct, frozen=True):
    """Limits of a child that only parses a page, which comes on its socket up to the end.

    Attributes:
        cpu_s: CPU seconds; then SIGPROF ends it.
    """

    cpu_s: float
    memory_bytes: int

    def parse(self, page: socket.socket) -> NoReturn:
        """Parse within the limits, and end the process."""
        code = REFUSED
        try:
            from selectolax.lexbor import LexborHTMLParser

            html = b"".join(iter(lambda: page.recv(1 << 20), b""))
            lower(resource.RLIMIT_DATA, self.memory_bytes)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, self.cpu_s)
            LexborHTMLParser(html)
            code = 0
        finally:
            os._exit(code)


class ZygoteWord(msgspec.Struct, omit_defaults=True):
    """What the zygote says: one of the two."""

    forked: ChildForked | None = None
    gone: ChildGone | None = None


class ForkRequest(msgspec.Struct, omit_defaults=True):
    """What the worker wants: a child with `fork` or `trial`; without both the child that there is ends.

    Attributes:
        fork: Limits of a spider's child.
        preload: Modules of libraries to import before the fork: the child that follows a dead one starts sooner.
    """

    fork: ChildLimits | None = None
    preload: tuple[str, ...] = ()
    trial: PageTrial | None = None


def _children(pid: int) -> list[int]:
    """The children of a process; empty if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _below(pid: int) -> list[int]:
    """All descendants of a process, parents first."""
    found, unseen = [], _children(pid)
    while unseen:
        found += unseen
        unseen = [child for parent in unseen for child in _children(parent)]
    return found


class Zygote:
    """Has one child at a time.

    Args:
        control: The worker's socket.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._cgroup = ChildCgroup()
        self._child = 0
        self._home = ""
        self._gone: ChildGone | None = None
        self._has_told = False

    def serve(self) -> tuple[socket.socket, ChildLimits]:
        """Obey the worker until its socket closes; returns only in a child, with its socket and its limits."""
        woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == woken:
                    os.read(woken, 4096)
                elif (data := self._obey()) is not None:
                    return data
            self._look()

    def _obey(self) -> tuple[socket.socket, ChildLimits] | None:
        told, files, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        if not told:
            self._await_child()
            self._end_all()
            self._cgroup.remove()
            self._leave()
        order = msgspec.json.decode(told, type=ForkRequest)
        limits = order.fork
        if order.trial is not None:
            self._try(socket.socket(fileno=files[0]), order.trial)
            return None
        if limits is None:
            self._end_all()
            return None
        data = socket.socket(fileno=files[0])
        for name in order.preload:
            with contextlib.suppress(ImportError):
                import_module(name)
        self._home = limits.home
        self._cgroup.make(limits)
        self._tell_no_limit()
        parent = os.getpid()
        self._child = os.fork()
        if not self._child:
            return self._begin(data, parent, limits)
        data.close()
        self._say(ZygoteWord(forked=ChildForked(self._child)))
        return None

    def _try(self, page: socket.socket, trial: PageTrial) -> None:
        parent = os.getpid()
        self._child = os.fork()
        if not self._child:
            signal.set_wakeup_fd(-1)
            os.setsid()
            die_with(parent)
            trial.parse(page)
        page.close()

    def _tell_no_limit(self) -> None:
        if not self._cgroup.is_there and not os.geteuid() and not self._has_told:
            self._has_told = True
            sys.stderr.write(
                "no cgroup can be made and the user is root: nothing limits a spider that forks endlessly\n"
            )
            sys.stderr.flush()

    def _begin(self, data: socket.socket, parent: int, limits: ChildLimits) -> tuple[socket.socket, ChildLimits]:
        """Make this fork a child: a session, its limits, and no files but its socket and the worker's log."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with(parent)
        self._cgroup.enter()
        number = os.dup(data.detach())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if number != DATA:
            os.dup2(number, DATA)
        for other in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if other > DATA:
                with contextlib.suppress(OSError):  # that of the listing itself
                    os.close(other)
        return socket.socket(fileno=DATA), limits

    def _look(self) -> None:
        """Reap what ended; when the child did, kill what it left and tell the worker."""
        self._reap()
        if self._gone is not None:
            self._end_all()
            self._say(ZygoteWord(gone=self._gone))
            self._gone = None

    def _reap(self) -> None:
        """Reap what ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, used = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._child:
                    by_signal = os.WIFSIGNALED(status)
                    code = 0 if by_signal else os.WEXITSTATUS(status)
                    number = os.WTERMSIG(status) if by_signal else 0
                    self._gone = ChildGone(number, code, used.ru_utime + used.ru_stime)
                    self._child = 0

    def _await_child(self) -> None:
        """Wait until the child has ended by itself, or `GRACE_S` are over."""
        until_s = time.monotonic() + GRACE_S
        while self._child and time.monotonic() < until_s:
            time.sleep(GRACE_LOOK_S)
            self._reap()

    def _end_all(self) -> None:
        """Kill the child, and every process below this one; a fork bomb first loses its right to fork."""
        self._cgroup.close()
        if self._child:
            with contextlib.suppress(OSError):
                os.killpg(self._child, signal.SIGKILL)
        for _ in range(SWEEPS):
            self._reap()
            below = _below(os.getpid())
            if not below:
                return
            for pid in below:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def _leave(self) -> NoReturn:
        """End, and have the child's folder removed: a worker that ends at once, or is killed, does not come to it."""
        if self._home:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            with contextlib.suppress(OSError):
                os.execvp("rm", ["rm", "-rf", "--", self._home])  # noqa: S606, S607  # as in `child_code`
        os._exit(0)

    def _say(self, word: ZygoteWord) -> None:
        with contextlib.suppress(OSError):  # the worker is gone: the next order says so
            self._control.send(msgspec.json.encode(word))


def main() -> None:
    """Serve the worker; a fork of this process goes on as a spider's child."""
    control = socket.socket(fileno=os.dup(CONTROL))
    os.dup2(os.open(os.devnull, os.O_RDONLY), CONTROL)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    gc.disable()  # nothing but imports until the fork
    if sys.argv[1:] == [TRIALS]:
        import_module("selectolax.lexbor")
        Zygote(control).serve()
    from . import spider_process

    gc.freeze()
    data, limits = Zygote(control).serve()
    gc.enable()
    control.detach()
    spider_process.run(data, limits.apply())


if __name__ == "__main__":
    sys.path = [entry for entry in sys.path if entry]
    main()
