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

from .check import Check as Check
from .check import CheckFinding as CheckFinding
from .check import LostPage as LostPage
from .damage import REPORTS_READ as REPORTS_READ
from .damage import CutPartition as CutPartition
from .damage import cuts_against as cuts_against
from .damage import pages_named as pages_named
from .newest_pages import newest_pages as newest_pages
from .parse_places import ParsePlace as ParsePlace
from .parse_places import note_skipped as note_skipped
from .parse_places import parse_places as parse_places
from .parse_places import passed_over as passed_over
from .parse_places import ranges_text as ranges_text
from .power_cut import fetch_again as fetch_again
from .power_cut import fetch_unread as fetch_unread
from .power_cut import sorted_out as sorted_out
from .recovery import Recovery as Recovery
from .recovery import note_missing as note_missing
