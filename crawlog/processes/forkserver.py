"""The process that workers are forked from: `python -P -m crawlog.processes.forkserver SUPERVISOR`, its input a socket.

    supervisor ── "fetch fetch-0", its log, its gate ──► forkserver ── fork ──► ── fork ──► worker
         ▲                                                                                    │
         └──────────────────────── its pid, once it is a child of the supervisor ─────────────┘

It has loaded whatever a worker needs and begun nothing: no thread, no loop, no client, no file. So a worker takes
milliseconds instead of a CPU second, and shares the memory of what was loaded. The process between the two forks ends
at once; the supervisor, a subreaper for so long, becomes the parent: it waits for its workers and they die with it,
whatever becomes of the forkserver. A worker waits at its gate, its standard input, until the supervisor says where the
log is; when nobody will say so any more, it ends.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from importlib import import_module
from pathlib import Path

from setproctitle import setproctitle

READY = b"ready"

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

ADOPTION_S = 0.0005
"""Between two looks at who the parent is; the process between needs a millisecond to end."""


def prctl(option: int, value: int) -> None:
    """Tells the kernel something about this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when its supervisor ends, however that ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)


def load_modules() -> None:
    """Imports what workers need."""
    gc.disable()  # imports leave next to no cycles, and looking for them is a seventh of their time
    sys.modules["rich"] = None  # type: ignore[assignment]  # hidden: structlog would load it, unused
    import structlog  # noqa: F401  # half of its time would be rich's

    del sys.modules["rich"]  # a spider may want it
    from crawlog.streams.app import build
    from crawlog.streams.settings import Settings
    from crawlog.streams.stages import STAGES

    for module in (
        "crawlog.streams.worker.process",
        "uvloop",
        *(name for row in STAGES.values() for name in row.agents),
    ):
        import_module(module)
    settings = Settings()
    kafka = settings.kafka.model_copy(update={"bootstrap": "none"})
    app = build("fetch", settings.model_copy(update={"kafka": kafka}), "forkserver")
    app.finalize()  # what Faust and pydantic load for an app stays; the app goes


def forget_settings() -> None:
    """Takes them out of the environment: a worker is told its own, and what it starts needs none of their secrets."""
    for name in [name for name in os.environ if name.startswith("CRAWLOG_") and "__" in name]:
        del os.environ[name]


def refuse_threads() -> None:
    """Ends this process if it has another thread: a lock that it holds would be held in each worker for ever."""
    threads = sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    if len(threads) > 1:
        sys.exit(
            f"workers cannot be forked from a process with {len(threads)} threads ({', '.join(threads)}): "
            "a module starts one while it is imported; find it with `python -X importtime`"
        )


def fork_workers(control: socket.socket, supervisor: int) -> str:
    """Forks a worker at each order; returns in the workers alone, with their stage."""
    while True:
        order, files, _, _ = socket.recv_fds(control, 4096, 2)
        if not order:
            os._exit(0)
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            return begin(control, order.decode(), files, between, supervisor)
        for file in files:
            os.close(file)
        if os.waitpid(between, 0)[1]:
            sys.exit("a worker cannot be forked")


def begin(control: socket.socket, order: str, files: list[int], between: int, supervisor: int) -> str:
    """Makes this fork a worker: a child of the supervisor with a session, a log and a gate of its own."""
    stage, name = order.split(" ")
    setproctitle(f"crawlog: {name}")  # for ps and top
    os.setsid()  # a Ctrl-C in the terminal is for the supervisor alone
    while os.getppid() == between:
        time.sleep(ADOPTION_S)
    die_with(supervisor)
    answer = control.dup()  # the gate takes its place
    control.detach()
    log, gate = files
    for file, place in ((gate, 0), (log, 1), (log, 2)):
        os.dup2(file, place)
    for file in files:
        os.close(file)
    with answer:
        answer.send(str(os.getpid()).encode())
    return stage


def main() -> None:
    """Forks until the supervisor lets go; in a worker, works until it is told to stop."""
    supervisor = int(sys.argv[1])
    die_with(supervisor)
    forget_settings()
    load_modules()
    refuse_threads()
    gc.freeze()  # a look for cycles would write to all that workers share
    control = socket.socket(fileno=0)
    control.send(READY)
    stage = fork_workers(control, supervisor)
    told = sys.stdin.buffer.readline()
    if not told:
        return
    environ = json.loads(told)
    os.environ.update({name: value for name, value in environ.items() if "__" not in name})  # its name, its sink
    from crawlog.streams.app import worker
    from crawlog.streams.settings import NO_FILE, load

    worker(stage, lambda: load(config=NO_FILE, environ=environ))  # type: ignore[arg-type]  # the supervisor names stages


if __name__ == "__main__":
    main()
