"""The process that workers are forked from: `python -P -m crawlog.processes.forkserver PID`, its input a socket.

    supervisor ── "fetch fetch-0", its log, its gate ──► forkserver ── fork ──► ── fork ──► worker
         ▲                                                                                    │
         └──────────────────────── its pid, once it is a child of the supervisor ─────────────┘

PID is the supervisor's. The forkserver has imported all modules of a worker, and has started no thread, no event loop
and no client, and opened no file. So a worker starts in milliseconds instead of a CPU second, and shares the memory of
the modules.

The process between the two forks exits at once. The supervisor is a subreaper meanwhile and so becomes the parent: it
waits for its workers, and they die with it, even if the forkserver has died before.

A worker waits at its gate, its standard input, until the supervisor sends the settings with the log's address. If the
gate closes before, the worker exits.
"""

import gc
import json
import os
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from setproctitle import setproctitle

from crawlog.streams.kernel import collect_seldom, die_with

READY = b"ready"

SERVICE = "service"  # The stage of the HTTP service, which is no Faust app

# Pause between two looks at the parent's pid, seconds; the process between the forks takes a millisecond to exit.
ADOPTION_S = 0.0005


def load_modules() -> None:
    """Imports the modules of all workers."""
    gc.disable()  # cycle collection takes a seventh of the import time, and finds next to nothing
    import crawlog.streams.logs  # noqa: F401  # first: it loads structlog alone
    from crawlog.streams.app import build
    from crawlog.streams.settings import Settings
    from crawlog.streams.stages import STAGES
    from crawlog.streams.url import registrable_domain

    for module in (
        "crawlog.streams.worker.process",
        "uvloop",
        *(name for row in STAGES.values() for name in row.agents),
    ):
        import_module(module)
    settings = Settings()
    kafka = settings.kafka.model_copy(update={"bootstrap": "none"})
    app = build("fetch", settings.model_copy(update={"kafka": kafka}), "forkserver")
    app.finalize()  # loads the modules that Faust and pydantic need for an app; the app is dropped
    registrable_domain("example.com")  # reads the list of public suffixes once; it takes 50 ms of CPU


def forget_settings() -> None:
    """Removes settings from the environment: workers get theirs at the gate, and child processes get no secrets."""
    for name in [name for name in os.environ if name.startswith("CRAWLOG_") and "__" in name]:
        del os.environ[name]


def refuse_threads() -> None:
    """Exits if this process has a second thread: a lock held by that thread would stay locked in each worker."""
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
            threads.append((task / "comm").read_text().strip())
    if len(threads) > 1:
        sys.exit(
            f"workers cannot be forked from a process with {len(threads)} threads ({', '.join(sorted(threads))}): "
            "a module starts one while it is imported; find it with `python -X importtime`"
        )


def fork_workers(control: socket.socket, supervisor: int) -> str:
    """Forks a worker for each order; returns only in workers, with their stage."""
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
    os.setsid()  # the terminal sends Ctrl-C to the supervisor alone
    while os.getppid() == between:
        time.sleep(ADOPTION_S)
    die_with(supervisor)
    answer = control.dup()  # the gate replaces it as standard input
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
    """Forks workers until the supervisor closes the socket. In a forked worker: runs it until it is stopped."""
    supervisor = int(sys.argv[1])
    die_with(supervisor)
    forget_settings()
    load_modules()
    refuse_threads()
    gc.freeze()  # cycle collection would write to the memory that workers share
    control = socket.socket(fileno=0)
    control.send(READY)
    stage = fork_workers(control, supervisor)
    told = sys.stdin.buffer.readline()
    if not told:
        return
    work(stage, json.loads(told))


def work(stage: str, environ: dict[str, str]) -> None:
    """Runs a worker until it is stopped. Each one collects cycles again, which `load_modules` has ended."""
    os.environ.update({name: value for name, value in environ.items() if "__" not in name})  # its name, its sink
    from crawlog.streams.settings import NO_FILE, load

    if stage == SERVICE:  # a room above this one: it is known by its name
        serve = import_module("crawlog.service.process").serve
        collect_seldom()
        serve(lambda: load(config=NO_FILE, environ=environ))
    from crawlog.streams.app import worker

    worker(stage, lambda: load(config=NO_FILE, environ=environ))  # type: ignore[arg-type]  # the supervisor sends valid stages


if __name__ == "__main__":
    main()
