"""The forkserver with real processes: whose children workers are, what they share, and what its own death changes."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from crawlog.processes import forkserver
from crawlog.processes import workers as module
from crawlog.processes.forkserver import SERVICE, refuse_threads, work
from crawlog.processes.workers import LOADED_S, Forked, Forkserver, Name, Worker
from tests.support.garbage import uncollected
from tests.support.processes import LIMIT_S, Process

WHO = Name("fetch", "fetch-0")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forkserver]:
    """One that has loaded: a CPU second."""
    server = Forkserver(tmp_path_factory.mktemp("data"))
    server.start(time.monotonic())
    assert server.is_ready(LOADED_S), server.last_words()
    yield server
    server.kill()


@pytest.fixture
def forked(loaded: Forkserver, tmp_path: Path) -> Iterator[Forked]:
    """A worker at its gate."""
    with (tmp_path / "worker.log").open("ab") as log:
        worker = loaded.fork(WHO, log)
    assert worker is not None
    yield worker
    end(worker)


def end(worker: Forked) -> None:
    """Ends it, and lets go of its gate."""
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert worker.stdin
    worker.stdin.close()


def test_a_worker_is_a_child_of_the_supervisor_with_a_name_a_session_and_a_log_of_its_own(
    forked: Forked, tmp_path: Path
) -> None:
    """As if the supervisor had started it; so it can be waited for, and dies with it."""
    process = psutil.Process(forked.pid)
    assert process.ppid() == os.getpid()
    assert os.getsid(forked.pid) == forked.pid
    assert " ".join(process.cmdline()).strip() == "crawlog: fetch-0"
    files = {number: Path(f"/proc/{forked.pid}/fd/{number}").resolve() for number in (1, 2)}
    assert files == dict.fromkeys((1, 2), (tmp_path / "worker.log").resolve())


def test_a_worker_shares_the_memory_of_what_was_loaded(forked: Forked) -> None:
    """A tenth of it is its own when it begins."""
    memory = psutil.Process(forked.pid).memory_full_info()
    assert memory.uss < memory.rss / 4


def test_the_forkserver_has_one_thread(loaded: Forkserver) -> None:
    """Else a lock that another one holds would be held in each worker for ever."""
    assert loaded.process
    assert psutil.Process(loaded.process.pid).num_threads() == 1


def test_a_process_with_another_thread_refuses_to_be_forked() -> None:
    """The message names the threads, and how to find who starts them."""
    done = threading.Event()
    another = threading.Thread(target=done.wait)
    another.start()
    with pytest.raises(SystemExit, match=r"with \d+ threads .*importtime"):
        refuse_threads()
    done.set()
    another.join(LIMIT_S)


def test_a_worker_whose_gate_is_closed_ends(forked: Forked) -> None:
    """Nobody will tell it where the log is: so no worker works that its supervisor does not know."""
    assert forked.stdin
    forked.stdin.close()
    assert forked.wait() == 0


def test_the_service_collects_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports go without; a service would keep all cycles of its requests."""

    def serve(_: object) -> None:
        raise SystemExit(0 if gc.isenabled() else 1)

    monkeypatch.setattr(forkserver, "import_module", lambda _: SimpleNamespace(serve=serve))
    thresholds = gc.get_threshold()
    with uncollected():
        try:
            with pytest.raises(SystemExit) as end:
                work(SERVICE, {})
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)
    assert end.value.code == 0


def test_how_a_worker_ended_is_known(loaded: Forkserver, tmp_path: Path) -> None:
    """The signal that killed it; its exit code and its last words."""
    worker = Worker(WHO, tmp_path)
    worker.start(time.monotonic(), loaded, {"CRAWLOG_FETCH__CONCURRENCY": "none"})
    assert worker.process
    assert worker.process.wait() == 2
    assert "fetch.concurrency" in worker.bury(time.monotonic(), has_worked=False)
    with worker.open_log() as log:
        worker.process = loaded.fork(WHO, log)
    assert worker.process
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert worker.bury(time.monotonic(), has_worked=False) == "killed by SIGKILL"


def test_workers_outlive_a_killed_forkserver_and_a_stopped_one_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is forked by a stopped one, and a worker that it may still fork finds its gate closed."""
    monkeypatch.setattr(module, "FORK_S", 0.2)
    server = Forkserver(tmp_path)
    server.start(time.monotonic())
    assert server.is_ready(LOADED_S), server.last_words()
    with ExitStack() as ends, server.open_log() as log:
        assert server.process
        ends.callback(server.kill)
        first = server.fork(WHO, log)
        assert first
        ends.callback(end, first)
        os.kill(server.process.pid, signal.SIGSTOP)
        assert server.fork(WHO, log) is None
        assert server.process.wait() == -signal.SIGKILL
        assert not server.is_ready()
        assert first.poll() is None


SUPERVISOR = """
    import sys, time
    from pathlib import Path
    from crawlog.processes import workers
    from crawlog.processes.workers import Forkserver, Name
    workers.FORK_S = 180.0
    server = Forkserver(Path(sys.argv[1]))
    server.start(time.monotonic())
    server.is_ready(180.0)
    with server.open_log() as log:
        worker = server.fork(Name("fetch", "fetch-0"), log)
    print(server.process.pid, worker.pid, flush=True)
    time.sleep(60)
"""


def test_forkserver_and_workers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    """The kernel sees to it."""
    command = [sys.executable, "-c", textwrap.dedent(SUPERVISOR), str(tmp_path)]
    with Process(command, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout
        family = [psutil.Process(int(pid)) for pid in supervisor.stdout.readline().split()]
        supervisor.kill()
    assert len(family) == 2
    _, alive = psutil.wait_procs(family, 180)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
