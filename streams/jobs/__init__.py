"""The jobs: what the log holds of them, their states, when one is finished, and which orders and ends are due. Pure.

    crawl.control ──► ControlState: the newest record of each key      Commands: those in force
    crawl.progress ─► FleetReports: the newest report of each partition, and their sums
    states: which order leads from which state to which      Flow: which job waits for which

    FleetReports ─► EndSteps: is it finished? ────┐
    crawl.control ─► FollowedJobs ────────────────┴─► Dues: orders and ends for the coordinator

The types of a job: JobSpec (its record) · JobCopy (the record in crawl.control) · JobState (in a fold) · Followed (what
the coordinator needs) · JobView (what people see) · Job (of parse). Equal JobRevisions: one state of a record.
"""

from .commands import FREE, Commands, Orders, host_of
from .control_state import ControlState, FollowedJobs, JobRevision, NextStart
from .due import DueOrder, Dues, is_begun, is_offered
from .finished import EndSteps
from .fleet_reports import RECENT_S, FleetReports, ended, has_answered, is_in_vain
from .flow import Flow
from .states import (
    OPERATOR,
    PARTIAL_ENDS,
    SHOWN_STATES,
    SHUTDOWN,
    OrderName,
    after,
    finish_reason,
    how_ended,
    is_final,
    leads_to,
    traits,
)

__all__ = [
    "FREE",
    "OPERATOR",
    "PARTIAL_ENDS",
    "RECENT_S",
    "SHOWN_STATES",
    "SHUTDOWN",
    "Commands",
    "ControlState",
    "DueOrder",
    "Dues",
    "EndSteps",
    "FleetReports",
    "Flow",
    "FollowedJobs",
    "JobRevision",
    "NextStart",
    "OrderName",
    "Orders",
    "after",
    "ended",
    "finish_reason",
    "has_answered",
    "host_of",
    "how_ended",
    "is_begun",
    "is_final",
    "is_in_vain",
    "is_offered",
    "leads_to",
    "traits",
]
