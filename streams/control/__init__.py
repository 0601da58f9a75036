"""The reader of crawl.control and crawl.progress: the state of the jobs, and the reports of the workers.

    crawl.progress ─► ProgressReader ─► FleetReports: the newest report of each partition, and their sums
    crawl.dead ─────► DeadLetterReader ─► the open letters of a job

`progress_reader.py` reads topics, and is loaded when it is needed; all else is pure.
"""

from typing import TYPE_CHECKING, Any

from .fleet_reports import RECENT_S, FleetReports, by_rule, ended, has_answered, needed, remarks_of, without_page

if TYPE_CHECKING:
    from .progress_reader import DeadLetterReader, ProgressReader

__all__ = [
    "RECENT_S",
    "DeadLetterReader",
    "FleetReports",
    "ProgressReader",
    "by_rule",
    "ended",
    "has_answered",
    "needed",
    "remarks_of",
    "without_page",
]


def __getattr__(name: str) -> Any:
    """Names of `progress_reader`: it loads a Kafka client, which `--help` does not need."""
    if name in ("DeadLetterReader", "ProgressReader"):
        from . import progress_reader

        return getattr(progress_reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
