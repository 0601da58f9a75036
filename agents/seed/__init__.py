"""crawlog.agents.seed."""

from .producer import MAX_NAMES, Source, kept_seeds, old_seeds, plant, scope_names
from .sitemaps import collect

__all__ = [
    "MAX_NAMES",
    "Source",
    "collect",
    "kept_seeds",
    "old_seeds",
    "plant",
    "scope_names",
]
