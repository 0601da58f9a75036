"""The fold: what each record of crawl.urls does to the state of its partition.

    crawl.urls ── fold ─┬─ job record, order ───→ revisions: does it count?
                        │                         jobs ──────────→ rows j c s     scope, epoch, counts of a job
                        ├─ found URLs ──────────→ offers ──┬─ seen (fingerprints) → rows n e b f
                        │                                  ├─ traps             → rows t u v
                        │                                  └─ host_queues ──→ rows g q w d ──→ dispatcher (Listener)
                        ├─ results of attempts ─→ dones ─────┘
                        └─ rewind ──────────────→ Effects: fold again from an earlier offset

`rows` has the keys and values, `overlay` the changes since the last checkpoint, `Effects` (revisions) what a record
asks of the outside. `history` folds again to report what happened to one URL: `watched` picks its records and reads the
verdicts off a fold, `explained` has the words for them, and for a row of the state.
"""

from . import rows
from .again import EXPIRED
from .explained import DescribedRow, decoded
from .fold import FOLD_VERSION, Fold
from .history import Event, History, Offer, Spelling, UrlState, in_order
from .jobs import JobState
from .overlay import Changes, Rows, digest
from .revisions import Answered, Effects, effective, ordered_spec
from .rows import HostRow, Skip

__all__ = [
    "EXPIRED",
    "FOLD_VERSION",
    "Answered",
    "Changes",
    "DescribedRow",
    "Effects",
    "Event",
    "Fold",
    "History",
    "HostRow",
    "JobState",
    "Offer",
    "Rows",
    "Skip",
    "Spelling",
    "UrlState",
    "decoded",
    "digest",
    "effective",
    "in_order",
    "ordered_spec",
    "rows",
]
