"""What a worker tells of itself."""

import os
import socket

import pytest

from crawlog.schemas.progress import SUPERVISOR, Progress
from crawlog.streams.worker.own_process import OwnProcess


def test_reports_say_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine, version, age, CPU, memory and the command that keeps it alive."""
    monkeypatch.setenv(SUPERVISOR, "up")
    report = Progress("fetch-0", "fetch", 0, 1.0)
    OwnProcess("1.2.3").sign([report])
    assert (report.host, report.version, report.supervisor) == (socket.gethostname(), "1.2.3", "up")
    assert report.started > 1e9
    assert 0.0 < report.cpu_s <= sum(os.times()[:4]) + 0.1
    assert 10 << 20 < report.rss < 4 << 30
