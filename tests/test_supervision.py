"""How the supervisor treats the deaths of its workers: when the next process starts, what it says, when it gives up."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from crawlog import workers as module
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.workers import (
    HEALTHY_S,
    KILLED_BACKOFF_S,
    LOADING_S,
    MAX_BACKOFF_S,
    MAX_FAILURES,
    RESTART_WANTED,
    Name,
    Workers,
)

KILLED = -9
CRASHED = -11


class Process:
    """Stands in for a child; it lives until the test says how it ended."""

    def __init__(self, _command: list[str], *, stdout: Any, **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = id(self)
        self.log = stdout.name
        self.stdin: IO[bytes] | None = None

    def poll(self) -> int | None:
        """How it ended."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """It obeys."""
        self.returncode = -number

    def wait(self) -> int | None:
        """It has ended."""
        return self.returncode


class Loading(Process):
    """One that reads what it is told when the test says so."""

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command, **options)
        self._gate, write = os.pipe()
        self.stdin = os.fdopen(write, "wb")

    def is_loaded(self) -> None:
        """It has read what it was told, and works."""
        os.read(self._gate, 65_536)

    def wait(self) -> int | None:
        """It has ended."""
        os.close(self._gate)
        return super().wait()


class House:
    """One worker under supervision, on a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.started: list[Process] = []
        self.worked: set[int] = set()
        monkeypatch.setattr("subprocess.Popen", self._start)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.workers = Workers([Name("fetch", "fetch-0")], folder, self.said.append, self.worked.__contains__)
        self.workers.launch(1)

    def _start(self, command: list[str], **options: Any) -> Process:
        self.started.append(Process(command, **options))
        return self.started[-1]

    def dies(self, code: int, lived_s: float = 1.0, words: str = "") -> float:
        """The process ends; returns the seconds until the next one was started."""
        self.now += lived_s
        number = len(self.started)
        if words:
            with Path(self.started[-1].log).open("a") as log:
                log.write(words)
        self.started[-1].returncode = code
        died_at = self.now
        while len(self.started) == number:
            self.workers.look()
            self.now += 0.01
        return self.now - died_at


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A worker that lives."""
    made = House(tmp_path, monkeypatch)
    yield made
    made.workers.kill()


def test_the_first_restart_comes_within_half_a_second(house: House) -> None:
    """Whatever ended it."""
    assert house.dies(KILLED) <= 0.55


def test_deaths_in_a_row_wait_longer_each_time_up_to_a_limit(house: House) -> None:
    """A worker that dies at once would otherwise cost a core."""
    waits = [house.dies(CRASHED) for _ in range(8)]
    assert waits[:4] == pytest.approx([0.5, 1.0, 2.0, 4.0], abs=0.05)
    assert max(waits) == pytest.approx(MAX_BACKOFF_S, abs=0.05)


def test_five_healthy_seconds_forget_the_deaths_before(house: House) -> None:
    """A crash every few seconds is no reason to be slow."""
    for _ in range(5):
        house.dies(CRASHED)
    assert house.dies(CRASHED, lived_s=HEALTHY_S) <= 0.55


def test_kills_in_a_row_leave_time_between_them(house: House) -> None:
    """With one every few seconds, each life is to be longer than the wait before it."""
    assert max(house.dies(KILLED) for _ in range(8)) == pytest.approx(KILLED_BACKOFF_S, abs=0.05)
    for _ in range(5):
        house.dies(CRASHED)
    assert house.dies(KILLED) == pytest.approx(KILLED_BACKOFF_S, abs=0.05)


@pytest.mark.parametrize("code", [KILLED, -11, *RESTART_WANTED])
def test_who_is_killed_or_asks_for_it_is_always_started_again(house: House, code: int) -> None:
    """A hundred times, though it never got so far as to report."""
    for _ in range(100):
        house.dies(code, lived_s=0.1)
    assert len(house.started) == 101


def test_who_ends_by_itself_without_ever_having_worked_is_given_up(house: House) -> None:
    """Its last words and its log are named."""
    for _ in range(MAX_FAILURES - 1):
        house.dies(1)
    with pytest.raises(EngineError, match=r"fetch-0 fails again and again; it ended with code 1: no such thing\n.*log"):
        house.dies(1, words="trace\nno such thing\n")


def test_who_has_worked_is_not_given_up(house: House) -> None:
    """It may work again."""
    for _ in range(3 * MAX_FAILURES):
        house.worked.add(house.started[-1].pid)
        house.dies(1)


def test_a_kill_between_them_starts_the_count_of_failures_anew(house: House) -> None:
    """Only failures in a row say that nothing can be done."""
    for _ in range(3):
        for _ in range(MAX_FAILURES - 1):
            house.dies(1)
        house.dies(KILLED)


def test_wrong_settings_end_the_run_at_once(house: House) -> None:
    """They will be wrong tomorrow."""
    with pytest.raises(Misconfigured, match="ended with code 2: it is empty"):
        house.dies(2, words="it is empty")


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        (KILLED, "", "worker fetch-0 killed by SIGKILL; started again in 0.5 s"),
        (-11, "", "worker fetch-0 killed by SIGSEGV; started again in 0.5 s"),
        (0, "one\nstopped", "worker fetch-0 ended with code 0: stopped; started again in 0.5 s"),
        (75, "worker_stuck why=x\n\n", "worker fetch-0 ended with code 75: worker_stuck why=x; started again in 0.5 s"),
        (70, "y" * 999, f"worker fetch-0 ended with code 70: {'y' * 300}; started again in 0.5 s"),
        (1, "", "worker fetch-0 ended with code 1: it said nothing; started again in 0.5 s"),
    ],
)
def test_the_reason_is_one_line(house: House, code: int, words: str, line: str) -> None:
    """How it ended, and what it said last."""
    house.dies(code, words=words)
    assert house.said == [line]


def test_the_next_one_is_told_what_the_first_was(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log is, once the gates are open."""
    told: list[str] = []
    monkeypatch.setattr(module.Worker, "open_gate", lambda _self, environ: told.append(json.dumps(environ)))
    house.workers.go({"fetch": {"A": "b"}})
    house.dies(KILLED)
    assert told == ['{"A": "b"}'] * 2


def test_a_few_workers_load_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that work keep their cores; one that loads for too long holds nobody up."""
    started: list[Loading] = []

    def start(command: list[str], **options: Any) -> Loading:
        started.append(Loading(command, **options))
        return started[-1]

    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr(module, "AT_A_TIME", 2)
    workers = Workers([Name("fetch", f"fetch-{at}") for at in range(6)], tmp_path, lambda _: None, lambda _: False)
    workers.launch(3)
    workers.go({"fetch": {}})
    now = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    counts = []
    for process in range(4):
        workers.look()
        counts.append(len(started))
        started[process].is_loaded()
    assert counts == [3, 3, 4, 5]
    started[0].returncode = KILLED
    workers.look()
    assert len(started) == 6, "the one that died waits for its time"
    now[0] += 2 * LOADING_S
    workers.look()
    assert len(started) == 7, "two load, and have done so for too long"
    workers.kill()
