"""The local engine: Apache Kafka as a child process, for users who have no cluster.

    start ─► lock.held ─► a broker runs here? ─► yes: adopt it
      │                                      └► no: jars (fetched once, per kafka.lock) + java ─► broker.launch
      │                                             changed_files: may Kafka trust its files?    broker.Readiness.wait
      └► Engine: address and password for the settings; `stop` ends the broker and notes its files

    engine.py         start, stop, adopt; the meaning of each file         changed_files.py  noted, compared, rechecked
    broker.py         one process: configuration, launch, readiness, end   segments.py       founds of a damaged segment
    jars.py, java.py  sources of Kafka and of a JRE                        lock.py           one command at a time

Used as a module: `from crawlog.streams import engine`, then `engine.start(…)`. It imports settings and no other room.
"""

from .changed_files import recheck, record_files
from .engine import (
    STOP_TIMEOUT_S,
    Engine,
    again,
    exists,
    is_at,
    is_up,
    login,
    reserve,
    running,
    start,
    stop,
)
from .jars import cache_folder, fetch_jars, kafka_version, locked_jars
from .java import find_java
from .lock import Users

__all__ = [
    "STOP_TIMEOUT_S",
    "Engine",
    "Users",
    "again",
    "cache_folder",
    "exists",
    "fetch_jars",
    "find_java",
    "is_at",
    "is_up",
    "kafka_version",
    "locked_jars",
    "login",
    "recheck",
    "record_files",
    "reserve",
    "running",
    "start",
    "stop",
]
