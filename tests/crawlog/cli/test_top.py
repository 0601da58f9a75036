"""`crawlog jobs top` on a terminal, and elsewhere."""

import json
import os
import pty
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from crawlog.cli import top
from crawlog.schemas import progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_job
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.settings.settings import Settings
from tests.support.processes import LIMIT_S, Process

LIVE = """
import sys
from types import SimpleNamespace
from crawlog import outcome
from crawlog.cli import top
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import FleetStatus, JobView
frames = [(FleetStatus((JobView("first", "running"), JobView("second", "running")), (), ()), [])]
def status():
    if not frames:
        raise EngineError("the broker is away")
    return frames.pop()
def live():
    with outcome.stopped_by_signals():
        return top._live(SimpleNamespace(status=status), 0.2)
outcome.hear_interrupts()
sys.exit(outcome.exit_code(live, verbose=lambda: True))
"""


class Terminal:
    """A pseudo-terminal with the command on it; what it wrote is read until it is there."""

    def __init__(self) -> None:
        self._own, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = Process([sys.executable, "-c", LIVE], code=LIVE, env=environ, **streams)
        self._theirs, self._written = theirs, ""

    def press(self, key: str) -> None:
        """Sends a key."""
        os.write(self._own, key.encode())

    def reads(self, text: str) -> None:
        """Waits for a text, behind what was read."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self._written:
            assert time.monotonic() < deadline, self._written
            self._written += os.read(self._own, 1 << 16).decode(errors="replace")
        self._written = self._written.partition(text)[2]

    def close(self) -> None:
        """Closes both ends."""
        os.close(self._own)
        os.close(self._theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal that shows two jobs, then a log that does not answer."""
    opened = Terminal()
    yield opened
    opened.close()


def test_keys_sort_and_quit_and_a_log_that_is_away_ends_nothing(terminal: Terminal) -> None:
    """The last state stays on the screen with the reason; at the end the screen is as before."""
    terminal.reads("first")
    terminal.reads("the log does not answer")
    terminal.press("n")
    terminal.press("n")
    terminal.reads("second")
    terminal.reads("first")
    terminal.press("q")
    terminal.reads("\x1b[?1049l")
    assert terminal.process.wait() == 0


def test_ctrl_c_leaves_the_screen_as_it_was(terminal: Terminal) -> None:
    """With the exit code of an interrupt."""
    terminal.reads("first")
    terminal.process.send_signal(signal.SIGINT)
    terminal.reads("\x1b[?1049l")
    assert terminal.process.wait() == 130


@pytest.mark.broker
@pytest.mark.parametrize("as_json", [False, True])
def test_elsewhere_one_frame_is_written(
    cluster: Settings, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """As text, or as one object."""
    ensure_topics(cluster)
    producer, topics = Producer(cluster, "test"), Topics(cluster.kafka.prefix)
    write_job(cluster, producer, topics, "shop", JobSpec(at=200.0))
    report = progress.Progress("fetch-0", "fetch", 0, time.time(), pid=7, host="m1")
    producer.send(topics.progress, progress.encode(report), key=progress.key(report), partition=0)
    assert producer.flush(LIMIT_S)
    assert top.show(cluster, 2.0, as_json=as_json) == 0
    out = capsys.readouterr().out
    if as_json:
        told = json.loads(out)
        assert [job["name"] for job in told["jobs"]] == ["shop"]
        assert [worker["id"] for worker in told["workers"]] == ["fetch-0"]
    else:
        assert "1 job, 0 running · 1 worker" in out
        assert any(line.startswith("shop ") for line in out.splitlines())
