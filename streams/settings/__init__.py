"""crawlog.streams.settings."""

from . import settings
from .sections import PREFIX, Fetch, Parse, Politeness, Robots
from .settings import NO_FILE, RECORD_HEADROOM, Kafka, Settings, Sources, for_stage, load, resolve, to_environ

__all__ = [
    "NO_FILE",
    "PREFIX",
    "RECORD_HEADROOM",
    "Fetch",
    "Kafka",
    "Parse",
    "Politeness",
    "Robots",
    "Settings",
    "Sources",
    "for_stage",
    "load",
    "resolve",
    "settings",
    "to_environ",
]
