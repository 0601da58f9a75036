"""What is decided about one request: whether it is made, what its answer means, and what is written. Pure.

    task → outcome.unasked: robots.txt refuses it? ──────────── yes ──→ a done
             │ no: requested                                             ↑
             ▼                                                           │
    answer → retry: again, or final? how long does the host rest? ──→ outcome: the done, and the page if final
             │ a page of a job that renders
             ▼
           `streams/rendering.py`: is it empty without its scripts? what may it load in a browser?

`lost_dones`: the dones of pages whose own were lost. `robots_answer`: what an answer for robots.txt means.
`back_pressure`: how many requests parse and the fold allow. `reported_jobs`: which jobs a worker's reports name,
and how long requests took.
"""

from . import outcome, robots_answer
from .back_pressure import Pressure, Sown, Unfolded
from .lost_dones import LostDones, first_page, most_pages
from .outcome import (
    CONTROL,
    CRASH_LOOP,
    EXPIRED,
    INTERRUPTED,
    Needs,
    Unasked,
    is_plain,
    keeps_any_type,
    needs,
    opens,
    unasked,
    wants_headers,
)
from .reported_jobs import Durations, ReportedJobs, ToldJobs
from .retry import Again, Retrying, is_sent_once, may_pass

__all__ = [
    "CONTROL",
    "CRASH_LOOP",
    "EXPIRED",
    "INTERRUPTED",
    "Again",
    "Durations",
    "LostDones",
    "Needs",
    "Pressure",
    "ReportedJobs",
    "Retrying",
    "Sown",
    "ToldJobs",
    "Unasked",
    "Unfolded",
    "first_page",
    "is_plain",
    "is_sent_once",
    "keeps_any_type",
    "may_pass",
    "most_pages",
    "needs",
    "opens",
    "outcome",
    "robots_answer",
    "unasked",
    "wants_headers",
]
