"""crawlog.streams.sink."""

from .base import Entry, entry
from .formats import one_line
from .state import Behind, Results, empty, final_of, finalise, forget_others, is_complete, sink_of, state_of

__all__ = [
    "Behind",
    "Entry",
    "Results",
    "empty",
    "entry",
    "final_of",
    "finalise",
    "forget_others",
    "is_complete",
    "one_line",
    "sink_of",
    "state_of",
]
