"""The fleet and its jobs as the log shows them: who follows crawl.control, crawl.progress and crawl.dead.

    crawl.control, crawl.progress ─► Tail ─┬─► FleetView ─► FleetState ─► JobView, WorkerView, StageView, HostView
                                           ├─► ProgressReader ─► FleetReports (streams/jobs/)
                                           └─► the workers (agents/control.py), the answer to an order
    crawl.dead ─► DeadLetterReader: of one job, from now on      OpenLetters: of all jobs

`FleetState` and the views are pure. The other names load a Kafka client, which `--help` does not need, so they are
loaded when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .estimate import EndEstimate
from .fleet_state import DEFAULT_COPY, FleetState
from .paces import STILL, JobPace
from .views import (
    ExitView,
    FleetStatus,
    HookView,
    HostView,
    JobView,
    LostWorker,
    OutputView,
    PlaceView,
    StageView,
    WorkerView,
)

if TYPE_CHECKING:
    from .fleet_view import FleetView, letters_of
    from .readers import DeadLetterReader, ProgressReader
    from .tail import AtEnd, BadRecord, ControlRecord, Item, ReadFault, Report, Tail

__all__ = [
    "DEFAULT_COPY",
    "STILL",
    "AtEnd",
    "BadRecord",
    "ControlRecord",
    "DeadLetterReader",
    "EndEstimate",
    "ExitView",
    "FleetState",
    "FleetStatus",
    "FleetView",
    "HookView",
    "HostView",
    "Item",
    "JobPace",
    "JobView",
    "LostWorker",
    "OutputView",
    "PlaceView",
    "ProgressReader",
    "ReadFault",
    "Report",
    "StageView",
    "Tail",
    "WorkerView",
    "letters_of",
]

_MODULES = {
    "FleetView": "fleet_view",
    "letters_of": "fleet_view",
    "DeadLetterReader": "readers",
    "ProgressReader": "readers",
}


def __getattr__(name: str) -> Any:
    """Loads a name of a module with a Kafka client."""
    if name.startswith("__") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES.get(name, 'tail')}", __name__), name)
