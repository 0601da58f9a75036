"""crawlog.streams.fold."""

from . import rows
from .described import Row, decoded
from .effects import Effects, effective
from .fold import FOLD_VERSION, Fold
from .history import Event, History, Offer, Spelling, State, in_order
from .jobs import Job
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
