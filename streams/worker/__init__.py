"""crawlog.streams.worker."""

from . import logs
from .consumer import COMMIT_S, finish_within
from .crawl_app import CrawlApp
from .lease import boottime
from .member import LARGE_BYTES
from .memory import give_back_memory
from .process import refuse_to_start, run_worker
from .suspects import Suspects, Verdict

__all__ = [
    "COMMIT_S",
    "LARGE_BYTES",
    "CrawlApp",
    "Suspects",
    "Verdict",
    "boottime",
    "finish_within",
    "give_back_memory",
    "logs",
    "refuse_to_start",
    "run_worker",
]
