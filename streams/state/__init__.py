"""The state on disk: one RocksDB per partition of crawl.urls, always exactly the fold of the log up to its offset.

    States.open ─► newest_copy: which copy in the data folder? ─► partition.Partition ◄─► database.Rocks
                     │ none, or damaged                             fold in memory, checkpoint = one WriteBatch
                     ▼
                   snapshots ─► fetch the newest that fits ─► restore: fold the log from there to its end
                     ▲  stores: a folder or an object store
                   copies: of a database that another process has open

    verify ─► folds the log a second time into a scratch folder, and compares row by row

A lost state costs time only: it can be folded again.
"""

from . import verify
from .copies import copy_database
from .database import Rocks, environment_error, is_environment_error, set_aside
from .newest_copy import States
from .partition import CACHE_COLUMN, Database, Partition, StateMemory, check_database
from .restore import Restorer, bounding, checkpoint_due
from .rewindable import see_rewindable
from .snapshots import Manifest, Snapshots
from .stores import SnapshotStore, store_of
from .verify import Difference, Verdict

__all__ = [
    "CACHE_COLUMN",
    "Database",
    "Difference",
    "Manifest",
    "Partition",
    "Restorer",
    "Rocks",
    "SnapshotStore",
    "Snapshots",
    "StateMemory",
    "States",
    "Verdict",
    "bounding",
    "check_database",
    "checkpoint_due",
    "copy_database",
    "environment_error",
    "is_environment_error",
    "see_rewindable",
    "set_aside",
    "store_of",
    "verify",
]
