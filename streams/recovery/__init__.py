"""What the log has lost, and what is done about it.

Recovery (one supervisor's) ─► marks, damage: has a partition lost records? ──► no: the log is not read
│                                                 │ yes, or an unclean end of the broker
│                                                 ▼
│                     check: reads the whole log ─► ledger: which pages and items are gone?
▼                                                 │
power_cut: jobs are written again, gone pages are fetched again, parse and sinks go back ◄┘

parse_places   how far parse is, and the pages that another program had it leave out
newest_pages   the newest page of each URL, for what a worker finds lost: rows without items, pages not parsed
Damaged files of the local engine are cut by `streams/engine/segments.py`, before a broker runs.
"""

from .check import Check, CheckFinding, LostPage
from .damage import REPORTS_READ, CutPartition, cuts_against, pages_named
from .newest_pages import newest_pages
from .parse_places import ParsePlace, note_skipped, parse_places, passed_over, ranges_text
from .power_cut import fetch_again, fetch_unread, sorted_out
from .recovery import Recovery, note_missing

__all__ = [
    "REPORTS_READ",
    "Check",
    "CheckFinding",
    "CutPartition",
    "LostPage",
    "ParsePlace",
    "Recovery",
    "cuts_against",
    "fetch_again",
    "fetch_unread",
    "newest_pages",
    "note_missing",
    "note_skipped",
    "pages_named",
    "parse_places",
    "passed_over",
    "ranges_text",
    "sorted_out",
]
