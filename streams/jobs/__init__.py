"""The jobs: what the log says of them, when one is finished, and which orders and ends are due. Pure.

crawl.control ──► ControlState: the newest record of each key      Commands: those in force
crawl.progress ─► FleetReports: the newest report of each partition, and their sums

FleetReports ─► Finish: is the job finished? ─┐
crawl.control ─► FollowedJobs ────────────────┴─► Dues: orders and ends for the coordinator
"""

from .commands import FREE, Commands, Orders, host_of
from .control_state import STARTABLE, ControlState, is_end_of
from .due import DueEnd, DueOrder, Dues, End, is_begun, is_offered
from .finished import Finish
from .fleet_reports import RECENT_S, FleetReports, by_rule, ended, has_answered, needed, remarks_of, without_page
from .followed import Followed, FollowedJobs, JobRevision
from .job_end import OPERATOR, PARTIAL_ENDS, SHUTDOWN, finish_reason, how_ended, is_final

__all__ = [
    "FREE",
    "OPERATOR",
    "PARTIAL_ENDS",
    "RECENT_S",
    "SHUTDOWN",
    "STARTABLE",
    "Commands",
    "ControlState",
    "DueEnd",
    "DueOrder",
    "Dues",
    "End",
    "Finish",
    "FleetReports",
    "Followed",
    "FollowedJobs",
    "JobRevision",
    "Orders",
    "by_rule",
    "ended",
    "finish_reason",
    "has_answered",
    "host_of",
    "how_ended",
    "is_begun",
    "is_end_of",
    "is_final",
    "is_offered",
    "needed",
    "remarks_of",
    "without_page",
]
