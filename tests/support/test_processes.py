"""What tests start: it ends with its test, and no wait for it is without a limit."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from crawlog import __version__
from tests.support import processes
from tests.support.forked import Popen
from tests.support.processes import Process, crawlog, end_all, forked, until

LEAVING = "sleep 600 & echo said; exec sleep 601 #"


def left(folder: Path) -> list[str]:
    """Processes whose command names this folder."""
    found = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    return [" ".join(words) for words in found if any(f"{folder}/" in word for word in words)]


def is_over(process: psutil.Process) -> bool:
    """Whether it runs no more; nobody may have asked how it ended."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_wait_that_no_limit_is_given_for_fails_with_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a suite stands still for as long as a command does."""
    monkeypatch.setattr(processes, "LIMIT_S", 0.5)
    started = Process(["sh", "-c", LEAVING], stdout=subprocess.PIPE)
    with pytest.raises(pytest.fail.Exception, match=r"did not end within 0 s\n--- said"):
        started.communicate()
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(0.01)


def test_what_a_test_leaves_ends_with_it(tmp_path: Path) -> None:
    """A command that runs, its children, and what an earlier one has left that works on the test's folder."""
    running = Process(["sh", "-c", LEAVING], stdout=subprocess.PIPE)
    until(lambda: len(psutil.Process(running.pid).children()) == 1, "its child")
    [child] = psutil.Process(running.pid).children()
    Process(["sh", "-c", f"(sh -c 'sleep 602; true {tmp_path}/') & exit 0"]).wait()
    until(lambda: left(tmp_path), "what it leaves")
    end_all(tmp_path)
    assert running.returncode is not None
    assert running.stdout is not None
    assert running.stdout.closed
    until(lambda: is_over(child) and not left(tmp_path), "all of them to end")


def test_a_stopped_process_is_ended_soon() -> None:
    """It is woken to hear that it shall end."""
    stopped = Process(["sleep", "603"])
    psutil.Process(stopped.pid).suspend()
    end_all(None)
    assert stopped.returncode == -signal.SIGTERM


def test_a_forked_process_is_as_a_new_one(tmp_path: Path) -> None:
    """A child of this process with a command line, folder, environment and streams of its own, and an end."""
    code = "import os, time; print(os.getcwd(), *os.environ, flush=True); time.sleep(604)"
    with (tmp_path / "said").open("w") as said:
        process = forked(code, tmp_path, {"ONLY": "1"}, said)
    until((tmp_path / "said").read_text, "its words")
    assert (tmp_path / "said").read_text() == f"{tmp_path} ONLY\n"
    found = psutil.Process(process.pid)
    assert found.ppid() == os.getpid()
    assert "time.sleep(604)" in found.cmdline()[0]
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("is_new", [False, True])
def test_a_command_of_crawlog_is_forked_unless_a_new_interpreter_is_wanted(
    monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """Both do the same."""
    monkeypatch.setattr(Popen, "starts_interpreters", is_new)
    process = crawlog("--version")
    out, err = process.communicate()
    assert (process.is_forked, process.returncode, err) == (not is_new, 0, "")
    assert out == f"crawlog, version {__version__}\n"
