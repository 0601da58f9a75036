"""crawlog.streams.parse."""

from .founds import Batch, Founds
from .in_order import Page, Taken
from .job import Job, Jobs
from .soft_404 import SoftErrors
from .waiting import Held, Line, Message, Waiting

__all__ = [
    "Batch",
    "Founds",
    "Held",
    "Job",
    "Jobs",
    "Line",
    "Message",
    "Page",
    "SoftErrors",
    "Taken",
    "Waiting",
]
