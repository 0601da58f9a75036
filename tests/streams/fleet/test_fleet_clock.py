"""Whether workers live, where the clocks of broker and reader differ or are set; without a broker."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.schemas.progress import Progress
from crawlog.streams.fleet import FleetView, Report, fleet_view
from crawlog.streams.fleet import tail as tails
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka

END = 10
"""The end of crawl.progress when the view begins."""


class Clocks:
    """The clocks of a machine, some seconds ahead of the broker's.

    Attributes:
        at: The true time.
        ahead_s: How much the machine's clock is ahead.
    """

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.at = 1000.0
        self.ahead_s = ahead_s

    def time(self) -> float:
        """What it says now."""
        return self.at + self.ahead_s

    def monotonic(self) -> float:
        """Seconds since it started."""
        return self.at - 900.0


def began(monkeypatch: pytest.MonkeyPatch, clocks: Clocks) -> FleetView:
    """A view on this machine."""
    fakes: dict[str, Any] = {
        "time": clocks,
        "Admin": lambda _: SimpleNamespace(),
        "log_bounds": lambda *_: {0: (0, END)},
        "offset_at": lambda *_: 0,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(fleet_view, name, fake)
    monkeypatch.setattr(tails, "Consumer", lambda _: SimpleNamespace(assign=lambda _: None))
    return FleetView(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))


def tell(view: FleetView, offset: int, at: float, **fields: Any) -> None:
    """A report with this time in the log."""
    given: dict[str, Any] = {"worker": "fetch-0", "stage": "fetch", "partition": 0, "at": 0.0, "pid": 7} | fields
    view._take(Report(Progress(**given), at, offset))


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 20.0, 3600.0])
def test_a_report_that_arrives_sets_the_clock(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    """Earlier reports are of living workers then, if they are recent by the broker's clock."""
    view = began(monkeypatch, Clocks(ahead_s))
    tell(view, END - 3, 900.0, worker="gone")
    tell(view, END - 2, 999.0, worker="fetch-1")
    tell(view, END, 1000.0)
    assert [one.id for one in view.workers()] == ["fetch-0", "fetch-1"]
    assert view.has_fleet()


def test_a_clock_that_is_set_changes_no_rate_and_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the broker's nor the reader's: the rates go on, and a process that ended goes in time."""
    clocks = Clocks()
    view = began(monkeypatch, clocks)
    for second in range(40):
        clocks.at = 1000.0 + second
        back_s = 3600.0 if second >= 20 else 0.0
        clocks.ahead_s = -back_s
        tell(view, END + second, clocks.at - back_s, pages=10 * second)
        if second < 20:
            tell(view, END + second, clocks.at, worker="fetch-1", pid=8)
    assert [(one.id, one.pages_per_s) for one in view.workers()] == [("fetch-0", 10.0)]
