"""The fleet as commands and the service show it: jobs, workers, lag.

    crawl.control, crawl.progress ─► FleetView ─► FleetState ─► JobView, WorkerView, StageView, HostView

`fleet_view.py` reads topics, and is loaded when it is needed; all else is pure.
"""

from typing import TYPE_CHECKING, Any

from .fleet_state import DEFAULT_COPY, FleetState
from .views import FleetStatus, HostView, JobView, OutputView, StageView, WorkerView

if TYPE_CHECKING:
    from .fleet_view import FleetView, letters_of

__all__ = [
    "DEFAULT_COPY",
    "FleetState",
    "FleetStatus",
    "FleetView",
    "HostView",
    "JobView",
    "OutputView",
    "StageView",
    "WorkerView",
    "letters_of",
]


def __getattr__(name: str) -> Any:
    """Names of `fleet_view`: it loads a Kafka client, which `--help` does not need."""
    if name in ("FleetView", "letters_of"):
        from . import fleet_view

        return getattr(fleet_view, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
