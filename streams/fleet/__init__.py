"""The fleet as its reports and crawl.control show it: workers, jobs, lag; and when a job is finished.

    crawl.progress ─► Watch ─► Picture ──┬─► Finish: is a job finished? ─► Dues: orders and ends for the coordinator
    crawl.control ─────────► FleetView ◄─┘      FleetView: jobs, workers and lag, for commands and the service

`watch.py` and `fleet_view.py` read topics, and are loaded when they are needed; all else is pure.
"""

from typing import TYPE_CHECKING, Any

from .due import DueEnd, DueOrder, Dues, End, is_begun
from .finished import Finish
from .fleet_state import DEFAULT_COPY, FleetState
from .followed import Followed, FollowedJobs, JobRevision
from .job_end import OPERATOR, PARTIAL_ENDS, SHUTDOWN, finish_reason, how_ended, is_final
from .picture import RECENT_S, Picture, by_rule, ended, has_answered, needed, remarks_of, without_page
from .views import FleetStatus, HostView, JobView, OutputView, StageView, WorkerView

if TYPE_CHECKING:
    from .fleet_view import FleetView, letters_of
    from .watch import Losses, Watch

__all__ = [
    "DEFAULT_COPY",
    "OPERATOR",
    "PARTIAL_ENDS",
    "RECENT_S",
    "SHUTDOWN",
    "DueEnd",
    "DueOrder",
    "Dues",
    "End",
    "Finish",
    "FleetState",
    "FleetStatus",
    "FleetView",
    "Followed",
    "FollowedJobs",
    "HostView",
    "JobRevision",
    "JobView",
    "Losses",
    "OutputView",
    "Picture",
    "StageView",
    "Watch",
    "WorkerView",
    "by_rule",
    "ended",
    "finish_reason",
    "has_answered",
    "how_ended",
    "is_begun",
    "is_final",
    "letters_of",
    "needed",
    "remarks_of",
    "without_page",
]


def __getattr__(name: str) -> Any:
    """Names of `watch` and `fleet_view`: they load a Kafka client, which `--help` does not need."""
    if name in ("Losses", "Watch"):
        from . import watch

        return getattr(watch, name)
    if name in ("FleetView", "letters_of"):
        from . import fleet_view

        return getattr(fleet_view, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
