"""crawlog.streams.state."""

from . import verify
from .copies import NotCopied, copy_database
from .database import Rocks, is_machines_fault, set_aside
from .newest_copy import States
from .partition import CACHE_COLUMN, Database, Memory, Partition, check
from .restore import Interrupted, Restorer, restore_changes
from .snapshots import Manifest, Snapshots, store_of
from .verify import Difference, Verdict

__all__ = [
    "CACHE_COLUMN",
    "Database",
    "Difference",
    "Interrupted",
    "Manifest",
    "Memory",
    "NotCopied",
    "Partition",
    "Restorer",
    "Rocks",
    "Snapshots",
    "States",
    "Verdict",
    "check",
    "copy_database",
    "is_machines_fault",
    "restore_changes",
    "set_aside",
    "store_of",
    "verify",
]
