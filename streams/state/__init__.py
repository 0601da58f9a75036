"""crawlog.streams.state."""

from . import verify
from .copies import copy_database
from .database import Rocks, is_machines_fault, set_aside
from .newest_copy import States
from .partition import CACHE_COLUMN, Database, Partition, StateMemory, check_database
from .restore import Restorer, restore_changes
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
    "check_database",
    "copy_database",
    "is_machines_fault",
    "restore_changes",
    "set_aside",
    "store_of",
    "verify",
]
