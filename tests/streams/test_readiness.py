"""When a process counts as ready, and what probes and systemd are told."""

import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from crawlog.streams import readiness
from crawlog.streams.readiness import OwnReadiness


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is due."""
    monkeypatch.setattr(readiness, "TOUCH_S", 0.0)
    monkeypatch.setattr(readiness, "LACKS_S", 0.0)


@pytest.mark.usefixtures("looking")
def test_a_process_is_ready_once_it_is_up_and_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of an earlier process goes; what is not known yet is not ready; what lacks later is trouble only."""
    file, address = tmp_path / "ready", str(tmp_path / "notify")
    file.touch()
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(address)
    heard.setblocking(False)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    ready = OwnReadiness(file)
    states = []
    with heard, capture_logs() as logs:
        for found, is_up in (
            (None, True),
            ("no key", True),
            ("no key", True),
            ("", False),
            ("", True),
            ("no key", True),
        ):
            ready.look(iter([found]).__next__, is_up=is_up)
            states.append((file.exists(), ready.lacks))
        told = [heard.recv(1000) for _ in range(2)]
        with pytest.raises(BlockingIOError):
            heard.recv(1000)
    assert states == [(False, ""), (False, "no key"), (False, "no key"), (False, ""), (True, ""), (True, "no key")]
    assert told == [b"STATUS=not ready: no key", b"READY=1\nSTATUS=ready"]
    assert [one["event"] for one in logs] == ["not_ready", "ready"]


@pytest.mark.usefixtures("looking")
def test_the_time_of_the_file_is_a_sign_of_life(tmp_path: Path) -> None:
    """A probe compares it with the clock, so a process that hangs is not ready."""
    file = tmp_path / "ready"
    ready = OwnReadiness(file)
    ready.look()
    file.touch()
    made = file.stat().st_mtime_ns
    ready.look()
    assert file.stat().st_mtime_ns >= made > 0
    file.unlink()
    ready.look()
    assert file.exists()


@pytest.mark.usefixtures("looking")
def test_a_file_that_cannot_be_made_is_named_once(tmp_path: Path) -> None:
    """The worker works all the same."""
    ready = OwnReadiness(tmp_path / "missing" / "ready")
    with capture_logs() as logs:
        for _ in range(3):
            ready.look()
    assert [one["event"] for one in logs] == ["ready", "ready_file_not_written"]
