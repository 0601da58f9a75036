"""Python processes of tests that are forked from one that has loaded crawlog: to load it anew takes 1 to 2 CPU s.

    a test ── Popen(python -m crawlog …) ──► its server ── fork ──► fork ──► the command, a child of the test
                                                                       │ Popen(… -m crawlog.processes.forkserver …)
                                                                       ▼
                                               its own server, forked before it began ── fork ──► fork ──► …

A server has loaded the modules of all commands and workers, and has done nothing else: as in a new interpreter, a
command finds no state of another one. It has its own environment, folder, standard streams and signals. The process
between the two forks exits at once, and the command is adopted by the process that wants it, as a supervisor's workers
are.

A new interpreter starts all the same
- for any other program, and with options of Popen that are not KNOWN;
- where a variable differs that is read while modules are loaded (AT_IMPORT);
- while `starts_interpreters` is set, as in tests marked `long`: they start commands as users do.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module, reload
from pathlib import Path
from typing import Any, AnyStr, ClassVar, NamedTuple, Self

from setproctitle import getproctitle, setproctitle

from crawlog.processes.forkserver import load_modules, refuse_threads
from crawlog.streams import crash_points
from crawlog.streams.kernel import PR_SET_CHILD_SUBREAPER, die_with, prctl

ROOT = Path(__file__).parents[2]

STARTERS = {"crawlog": "crawlog.__main__", "crawlog.processes.background": "crawlog.processes.background"}
"""Modules by their name behind -m, and where their `main` is; they start other processes."""

MODULES = STARTERS | {"crawlog.processes.forkserver": "crawlog.processes.forkserver"}

KNOWN = {"cwd", "encoding", "env", "start_new_session", "stderr", "stdin", "stdout", "text"}

AT_IMPORT = ("PYTHON", "LC_", "LANG", "SCRAPY_")
"""Prefixes of variables."""

TITLE = 4_000
"""Characters of a command that its process shows; the server's arguments leave the room for them."""

_Popen = subprocess.Popen


class ForkOrder(NamedTuple):
    """What is to be forked.

    Attributes:
        words: The command line.
        code: Runs instead of a module that they name.
        environ: All of its environment.
        is_leader: Whether it has a session of its own.
    """

    words: Sequence[str]
    code: str
    folder: str
    environ: Mapping[str, str]
    is_leader: bool

    @property
    def module(self) -> str:
        """The module that it runs; empty for none of MODULES."""
        python, *words = self.words
        option, module = [*(word for word in words[:3] if word != "-P"), "", ""][:2]
        return module if (python, option) == (sys.executable, "-m") and module in MODULES else ""


class Server:
    """Forks processes that are then children of this one, and dies with it.

    Args:
        control: To the process that forks.
        process: That one, if this process started it.
    """

    def __init__(self, control: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._control, self._process = control, process
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        if self._process is not None:
            self._process.wait()

    def fork(self, order: ForkOrder, streams: Sequence[int]) -> int:
        """The pid of a new process. Raises: OSError: the server has died."""
        with self._lock:
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # only meanwhile: other orphans keep their usual parent
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], streams)
                pid = self._control.recv(64)
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)
        if not pid:
            raise OSError("the server of forks has died")
        return int(pid)


def start(*modules: str) -> Server:
    """A server that loads these modules, or those of all commands and workers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CRAWLOG_")}
    environ["SPT_NOENV"] = "1"  # setproctitle leaves the environment where psutil reads it
    with theirs:
        command = [sys.executable, "-P", __file__, str(os.getpid()), "-" * TITLE, *modules]
        return Server(ours, _Popen(command, stdin=theirs.fileno(), env=environ))


class Popen(_Popen[AnyStr]):
    """As that of `subprocess`, but a command of crawlog is forked.

    Args:
        code: Python code that a forked process runs instead of `args`.
        by: Forks it; by default the server of this process.

    Attributes:
        is_forked: Whether it is; else it is a new interpreter, or another program.
    """

    server: ClassVar[Server | None] = None
    starts_interpreters: ClassVar[bool] = False

    def __init__(self, args: Any, *more: Any, code: str = "", by: Server | None = None, **options: Any) -> None:
        self.is_forked, self._by = False, by
        self._order: ForkOrder | None = None
        if isinstance(args, list) and not more and options.keys() <= KNOWN:
            environ = os.environ if options.get("env") is None else options["env"]
            folder = os.fspath(options.get("cwd") or Path.cwd())
            words = [os.fspath(word) for word in args]
            order = ForkOrder(words, code, folder, dict(environ), bool(options.get("start_new_session")))
            if code or (
                order.module and not self.starts_interpreters and _at_import(environ) == _at_import(os.environ)
            ):
                self._order = order
        super().__init__(args, *more, **options)

    def _execute_child(self, *given: Any) -> None:
        """Popen's own step, from the making of its pipes to a process that has a pid."""
        if self._order is not None:
            pipes = given[10:16]
            streams = [place if pipe == -1 else pipe for place, pipe in enumerate(pipes[at] for at in (0, 3, 5))]
            with contextlib.suppress(OSError):
                self.pid = (self._by or _own_server()).fork(self._order, streams)
                self._child_created = self.is_forked = True
                self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # Popen's own
                return
        super()._execute_child(*given)  # type: ignore[misc]  # Popen's own


def _own_server() -> Server:
    Popen.server = Popen.server or start()
    return Popen.server


def _at_import(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(AT_IMPORT)}


# In the server


def main() -> None:
    """Load, then fork until the process that wants forks lets go; in a fork, run what was ordered."""
    die_with(int(sys.argv[1]))
    getproctitle()  # finds its place while the environment is the one that the process began with
    if not sys.argv[3:]:
        load_modules()
    for name in sys.argv[3:] or ("crawlog.cli.main", "crawlog.commands.up", "crawlog.jobs.run", *MODULES.values()):
        import_module(name)
    refuse_threads()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the server of a command, too
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    while True:
        order, streams = serve(control)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = os.getpid()
        if order.module in STARTERS and not os.fork():  # the command's own server: it goes on here
            die_with(command)
            control.close()
            ours.close()
            for place in streams:
                os.close(place)
            control = theirs
            continue
        begin(order, streams, ours)
        run(order)
        return


def serve(control: socket.socket) -> tuple[ForkOrder, list[int]]:
    """Fork at each order; returns in the forks alone, with their order and their streams."""
    while True:
        told, streams, _, _ = socket.recv_fds(control, 1 << 18, 3)
        if not told:
            os._exit(0)
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                os.sched_yield()
            control.send(str(os.getpid()).encode())
            return ForkOrder(*json.loads(told)), streams
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)


def begin(order: ForkOrder, streams: Sequence[int], control: socket.socket) -> None:
    """Make this fork a process as a new interpreter is one."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    server = os.dup2(control.detach(), 3, inheritable=False)
    os.closerange(server + 1, os.sysconf("SC_OPEN_MAX"))
    Popen.server = Server(socket.socket(fileno=server))
    subprocess.Popen = Popen  # type: ignore[misc]  # for all that this process starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order.is_leader:
        os.setsid()
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environ)
    setproctitle(" ".join(order.words))
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        was, buffering = getattr(sys, name), 1 if name == "stderr" else -1
        new = os.fdopen(place, "w" if place else "r", buffering, was.encoding, was.errors, closefd=False)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    gc.enable()


def run(order: ForkOrder) -> None:
    """Run what was ordered to its end."""
    if crash_points.VARIABLE in os.environ:
        reload(crash_points)
    if order.code:
        sys.path.insert(0, str(ROOT))
        exec(compile(order.code, "<forked>", "exec"), {"__name__": "__main__"})  # a test's own code
        return
    place = order.words.index(order.module)
    sys.argv = [MODULES[order.module], *order.words[place + 1 :]]
    import_module(MODULES[order.module]).main()


if __name__ == "__main__":
    main()
