"""crawlog.streams.fetch."""

from . import outcome, robots_answer
from .back_pressure import Pressure, Sown, Unfolded
from .outcome import CRASH_LOOP, Needs, Unasked, needs, opens, unasked
from .rendering import CACHED, Cors, Reach, Rendering, Verdict, Wish, emptiness, forwarded, is_shown, refusal
from .reported_jobs import ReportedJobs
from .retry import Again, Retrying, may_pass
from .robots_answer import UNREACHABLE_TTL_S, Access, Counts, Later

__all__ = [
    "CACHED",
    "CRASH_LOOP",
    "UNREACHABLE_TTL_S",
    "Access",
    "Again",
    "Cors",
    "Counts",
    "Later",
    "Needs",
    "Pressure",
    "Reach",
    "Rendering",
    "ReportedJobs",
    "Retrying",
    "Sown",
    "Unasked",
    "Unfolded",
    "Verdict",
    "Wish",
    "emptiness",
    "forwarded",
    "is_shown",
    "may_pass",
    "needs",
    "opens",
    "outcome",
    "refusal",
    "robots_answer",
    "unasked",
]
