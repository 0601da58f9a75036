"""The sink: crawl.items, folded into one output of one job.

    record of crawl.items
      │ batch      `entry`: is it this job's, and what are its rows? `SinkBatch`: the changes of many
      ▼
    SinkState      state: FILE.partial with all rows, RocksDB with the place of each URL's newest ones
      │ finish     when the job is finished: the newest rows, FILE by rename, whole or not at all
      ▼
    Sink.write     base: the class to derive from; formats: JSON lines, JSON, CSV, standard output
                   registry: which class writes `-o OUTPUT`, built-in or a plug-in of the group `crawlog.sinks`

The worker (agents/sink) runs the fold; `crawlog run` finishes.
"""

from .base import ResultRows, Sink
from .batch import Entry, entry
from .finish import finalise, is_complete
from .registry import is_file, sink_of
from .state import SinkState, empty, final_of, forget_others, state_of

__all__ = [
    "Entry",
    "ResultRows",
    "Sink",
    "SinkState",
    "empty",
    "entry",
    "final_of",
    "finalise",
    "forget_others",
    "is_complete",
    "is_file",
    "sink_of",
    "state_of",
]
