"""crawlog.streams.engine."""

from . import engine
from .engine import running
from .jars import cache_folder, fetch_jars, kafka_version, locked
from .java import find_java

__all__ = [
    "cache_folder",
    "engine",
    "fetch_jars",
    "find_java",
    "kafka_version",
    "locked",
    "running",
]
