"""crawlog.streams.sink."""

from .base import Entry, entry
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
    "sink_of",
    "state_of",
]
