"""crawlog.agents.client."""

from .body import FREE_BYTES
from .budget import BodyBudget
from .client import THE_CRAWL, Asker, Client
from .per_address import BUSY_S, Busy
from .protocol import LeaseLost

__all__ = [
    "BUSY_S",
    "FREE_BYTES",
    "THE_CRAWL",
    "Asker",
    "BodyBudget",
    "Busy",
    "Client",
    "LeaseLost",
]
