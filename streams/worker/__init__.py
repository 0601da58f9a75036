"""crawlog.streams.worker."""

from . import logs
from .consumer import COMMIT_S, within
from .crawl_app import CrawlApp
from .lease import boottime
from .member import LARGE_BYTES
from .memory import make_room
from .process import refuse, run
from .suspects import Suspects, Verdict

__all__ = [
    "COMMIT_S",
    "LARGE_BYTES",
    "CrawlApp",
    "Suspects",
    "Verdict",
    "boottime",
    "logs",
    "make_room",
    "refuse",
    "run",
    "within",
]
