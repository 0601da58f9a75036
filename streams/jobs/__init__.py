"""The jobs: their states, when one is finished, and which orders and ends are due. Pure.

FleetReports ─► Finish: is the job finished? ─┐
crawl.control ─► FollowedJobs ────────────────┴─► Dues: orders and ends for the coordinator
"""

from .due import DueEnd, DueOrder, Dues, End, is_begun, is_offered
from .finished import Finish
from .followed import Followed, FollowedJobs, JobRevision
from .job_end import OPERATOR, PARTIAL_ENDS, SHUTDOWN, finish_reason, how_ended, is_final

__all__ = [
    "OPERATOR",
    "PARTIAL_ENDS",
    "SHUTDOWN",
    "DueEnd",
    "DueOrder",
    "Dues",
    "End",
    "Finish",
    "Followed",
    "FollowedJobs",
    "JobRevision",
    "finish_reason",
    "how_ended",
    "is_begun",
    "is_final",
    "is_offered",
]
