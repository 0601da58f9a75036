"""Decides the outputs of pages, without clock or log.

    crawl.control ─► Jobs ─► Job (`job.py`) ─┐
    a spider's CallResult ─► requested ─► Parsed
    page, Parsed ────────────────────────────┴─► outputs: all outputs of a page, one value ─► founds: batches

    offsets ─► Taken, Page (`ack_order.py`): a page is done with its last output; a partition is done in offset order
    pages that must wait ─► PageLine: for a trial or for smaller pages; Held: for their job

`waiting.py` holds pages that wait. `agents/parse/` calls all of it.
"""

from .ack_order import Page, Taken
from .changed import fields_of, ignored
from .founds import Batch, Founds
from .job import Job, Jobs
from .outputs import Encoded, PageOutputs, again_of, outputs_of, remarked
from .requested import are_known, parsed_of, redirected, wants_spider
from .waiting import Held, KeptRecord, Message, PageLine, TakenPage, Waiting, plain

__all__ = [
    "Batch",
    "Encoded",
    "Founds",
    "Held",
    "Job",
    "Jobs",
    "KeptRecord",
    "Message",
    "Page",
    "PageLine",
    "PageOutputs",
    "Taken",
    "TakenPage",
    "Waiting",
    "again_of",
    "are_known",
    "fields_of",
    "ignored",
    "outputs_of",
    "parsed_of",
    "plain",
    "redirected",
    "remarked",
    "wants_spider",
]
