"""crawlog.streams.fold."""

from . import rows
from .described import Row, decoded
from .fold import FOLD_VERSION, Effects, Fold, Job, effective
from .history import Event, History, Offer, Spelling, State, in_order
from .rows import HostRow, Skip

__all__ = [
    "FOLD_VERSION",
    "Effects",
    "Event",
    "Fold",
    "History",
    "HostRow",
    "Job",
    "Offer",
    "Row",
    "Skip",
    "Spelling",
    "State",
    "decoded",
    "effective",
    "in_order",
    "rows",
]
