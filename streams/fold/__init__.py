"""crawlog.streams.fold."""

from . import rows
from .described import Row, decoded
from .fold import FOLD_VERSION, Effects, Fold, Job, effective
from .history import Event, History, Offer, Spelling, State, in_order
from .overlay import Changes, Rows, digest
from .rows import HostRow, Skip

__all__ = [
    "FOLD_VERSION",
    "Changes",
    "Effects",
    "Event",
    "Fold",
    "History",
    "HostRow",
    "Job",
    "Offer",
    "Row",
    "Rows",
    "Skip",
    "Spelling",
    "State",
    "decoded",
    "digest",
    "effective",
    "in_order",
    "rows",
]
