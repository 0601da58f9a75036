"""Processes that tests start: none of them outlives its test, and no wait for one is without a limit.

    a test ── Process(…) ──► noted here ──► `end_all`, after each test: SIGTERM, kill -9, those that they have left
    a suite ── MARK in the environment of all ──► `end_marked`, after the last test: what got away

Both are needed: a worker of pytest-xdist that is ended because a test stands still cannot see after its processes, and
a process that holds the standard error of pytest lets `make test | tee` wait for it.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import psutil
import pytest

from tests.support.forked import Popen, Server

LIMIT_S = 480.0
"""For a process to end that no limit is named for."""

STOP_S = 20.0
"""For one that is asked to end, as its test is over; then it is killed."""

TOLD = 3_000
"""Characters of what a process said that its test shows, of each stream."""

MARK = "SUITE_OF_TESTS"
"""Variable of the environment that all processes of a suite have; its value is the suite's own."""

_live: list["Process"] = []


class Process(Popen[str]):
    """A process of this test. A wait that is given no limit fails the test after LIMIT_S, with what was said."""

    def __init__(self, command: Sequence[object], **more: Any) -> None:
        self._words = [str(word) for word in command]
        super().__init__(self._words, text=True, **more)
        _live.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end([self])

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code."""
        with self._limited(timeout):
            return super().wait(LIMIT_S if timeout is None else timeout)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002  # Popen's
        """What it wrote to standard output and standard error."""
        with self._limited(timeout):
            return super().communicate(input, LIMIT_S if timeout is None else timeout)

    @contextlib.contextmanager
    def _limited(self, timeout: float | None) -> Iterator[None]:
        try:
            yield
        except subprocess.TimeoutExpired as late:
            if timeout is not None:
                raise
            said = "\n".join(f"--- {_text(one)[-TOLD:]}" for one in (late.output, late.stderr) if one)
            pytest.fail(f"`{shlex.join(self._words)}` did not end within {LIMIT_S:.0f} s\n{said}")


def forked(code: str, folder: Path, environ: Mapping[str, str], output: IO[Any], by: Server | None = None) -> Process:
    """A process that runs this code in this folder; the modules of crawlog, or those of a server, are loaded."""
    given = {"cwd": folder, "env": environ, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    return Process([sys.executable, "-c", code], code=code, by=by, **given)


def crawlog(*words: object, **more: Any) -> Process:
    """The command line, started; with pipes where nothing else is said."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Process([sys.executable, "-m", "crawlog", *words], **pipes | more)


def ended(process: Process) -> tuple[int, dict[str, Any], str]:
    """Exit code, summary and standard error of a command; what it printed is the reason where that is no object."""
    out, err = process.communicate()
    return process.returncode, json.loads(out) if out.startswith("{") else {"reason": out}, err


def done(process: Process) -> None:
    """Waits for a command that must end with 0; shows what it said if it does not."""
    code, said, err = ended(process)
    assert code == 0, (said, err)


def until(is_so: Callable[[], object], what: str, during: Process | None = None) -> None:
    """Waits for a condition.

    Args:
        during: A command that must not end before, with pipes; if it does, the test shows what it said.
    """
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        if during is not None and during.poll() is not None:
            pytest.fail(f"it ended while the test waited for {what}: {ended(during)}")
        time.sleep(0.02)


def end_all(folder: Path | None) -> None:
    """Ends what the test that is over has left.

    Args:
        folder: Of this test; processes that work on it, such as a broker that its command left, are killed too.
    """
    started, _live[:] = _live[:], []
    if not started:
        return
    end(started)
    if folder is not None:
        for process in psutil.process_iter(["cmdline"]):
            if any(f"{folder}/" in word for word in process.info["cmdline"] or ()):
                _kill(process)


def end(started: Sequence[Process]) -> None:
    """Ends processes and their children, and lets go of their pipes."""
    running = [process for process in started if process.poll() is None]
    family = [child for process in running for child in _children(process.pid)]
    for process in running:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # a stopped one would not hear
    deadline = time.monotonic() + STOP_S
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()
    for child in family:
        _kill(child)
    for process in started:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not sent yet
                    pipe.close()


def end_marked(value: str) -> None:
    """Kills what still runs of a suite."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in mine and process.environ().get(MARK) == value:
                process.kill()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _text(said: bytes | str) -> str:
    return said if isinstance(said, str) else said.decode(errors="replace")
