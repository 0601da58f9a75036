"""Processes that have loaded what they need, forked from one that loads it once: a new one takes 0.5 to 2 CPU s.

    a test ── code, folder, environment; its output, a pipe ──► server ── fork ──► keeper ── fork ──► the process
      ▲                                                                              │
      └─────────────────────────────── its pid, then how it ended ───────────────────┘

As the supervisor's workers are, by `crawlog.processes.forkserver`; but any code can be run, and each of them has its
keeper, since only a parent hears how a process ends. All of them die with the suite.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

from crawlog.processes.forkserver import load_modules, refuse_threads
from crawlog.streams.kernel import die_with

LIMIT_S = 180.0
"""For a process to end that no limit is named for."""


class Forked:
    """A process with a code of its own; as much of `subprocess.Popen` as tests need.

    Attributes:
        returncode: As Popen's: below zero for a signal; None while it runs.
    """

    def __init__(self, told: int) -> None:
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Its exit code. Raises: TimeoutExpired: while it runs."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            with self._told:
                self.returncode = int(self._told.readline())
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Nothing, where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Server:
    """What forks; it loads once, when it is first asked.

    Args:
        modules: What it imports; by default what a worker needs.
    """

    def __init__(self, *modules: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(os.getpid()), *modules]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait()

    def fork(self, code: str, folder: Path, environ: Mapping[str, str], output: IO[Any]) -> Forked:
        """Begin a process that runs this code in this folder.

        Args:
            environ: All that it finds in its environment.
            output: Where its standard output and standard error go.
        """
        told, tells = os.pipe()
        order = {"code": code, "folder": str(folder), "environ": dict(environ)}
        socket.send_fds(self._control, [json.dumps(order).encode()], [output.fileno(), tells])
        os.close(tells)
        return Forked(told)


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork at each order; returns in the forks alone, with their order."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        order, files, _, _ = socket.recv_fds(control, 1 << 18, 2)
        if not order:
            os._exit(0)
        server = os.getpid()
        if not os.fork():
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keep(server, *files)
            return json.loads(order)  # type: ignore[no-any-return]  # as it was sent
        for file in files:
            os.close(file)


def keep(server: int, output: int, tells: int) -> None:
    """Fork once more, wait for that process and say how it ended; returns in that process."""
    die_with(server)
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        os.close(output)
        os.write(tells, b"%d\n" % pid)
        os.write(tells, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    die_with(keeper)
    os.close(tells)
    for place in (1, 2):
        os.dup2(output, place)
    os.close(output)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def main() -> None:
    """Load, then fork until the suite lets go; in a fork, run its code to its end."""
    die_with(int(sys.argv[1]))
    sys.path[0] = str(Path(__file__).parents[2])  # code that is forked imports `tests.support`
    if modules := sys.argv[2:]:
        for name in modules:
            import_module(name)
    else:
        load_modules()
    refuse_threads()
    order = serve(socket.socket(fileno=os.dup(0)))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    exec(compile(order["code"], "<forked>", "exec"), {"__name__": "__main__"})  # a test's own code


if __name__ == "__main__":
    main()
