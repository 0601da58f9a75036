"""The fold: what each record of crawl.urls does to the state of its partition.

    crawl.urls ── fold ─┬─ job record, order ───→ revisions: does it count?
                        │                         jobs ──────────→ rows j c s     scope, epoch, counts of a job
                        ├─ found URLs ──────────→ offers ──┬─ seen (fingerprints) → rows n e b f
                        │                                  ├─ traps             → rows t u v
                        │                                  └─ host_queues ──→ rows g q w d ──→ dispatcher (Listener)
                        ├─ results of attempts ─→ dones ─────┘
                        └─ rewind ──────────────→ effects: fold again from an earlier offset

`rows` has the keys and values, `overlay` the changes since the last checkpoint, `effects` what a record asks of the
outside. `history` folds again to tell what happened to one URL: `needle` picks its records, `watched` reads the
verdicts off a fold, `explained` says them. `described` shows a row to people.
"""

from . import rows
from .described import DescribedRow, decoded
from .effects import Answered, Effects, effective
from .fold import FOLD_VERSION, Fold
from .history import Event, History, Offer, Spelling, UrlState, in_order
from .jobs import JobState
from .overlay import Changes, Rows, digest
from .revisions import ordered_spec
from .rows import HostRow, Skip

__all__ = [
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
