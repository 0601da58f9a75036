"""crawlog.streams.parse."""

from .founds import Batch, Founds
from .in_order import Page, Taken
from .job import Job, Jobs
from .outputs import Encoded, PageOutputs, again_of, outputs_of
from .waiting import Held, Line, Message, Waiting

__all__ = [
    "Batch",
    "Encoded",
    "Founds",
    "Held",
    "Job",
    "Jobs",
    "Line",
    "Message",
    "Page",
    "PageOutputs",
    "Taken",
    "Waiting",
    "again_of",
    "outputs_of",
]
