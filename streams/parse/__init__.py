"""Decides what becomes of pages, without clock or log.

crawl.control ─► Jobs ─► Job (`job.py`) ─┬─► soft_404, duplicates: does the page say anything new?
page, Parsed ────────────────────────────┴─► outputs: all that it gives, one value ─► founds: batches by partition
offsets ─► Taken, Page (`in_order.py`): a page is done with its last output, a partition in offset order
pages that cannot be parsed yet ─► Line, Held (`waiting.py`)
"""

from .founds import Batch, Founds
from .in_order import Page, Taken
from .job import Job, Jobs
from .outputs import Encoded, PageOutputs, again_of, outputs_of
from .waiting import Held, Message, PageLine, Waiting

__all__ = [
    "Batch",
    "Encoded",
    "Founds",
    "Held",
    "Job",
    "Jobs",
    "Message",
    "Page",
    "PageLine",
    "PageOutputs",
    "Taken",
    "Waiting",
    "again_of",
    "outputs_of",
]
