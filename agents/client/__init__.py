"""crawlog.agents.client."""

from .body import FREE_BYTES
from .budget import BodyBudget
from .client import Client
from .per_address import BUSY_S, Addresses, Busy
from .protocol import LeaseLost
from .transport import THE_CRAWL, Asker, HttpRequest, Transport

__all__ = [
    "BUSY_S",
    "FREE_BYTES",
    "THE_CRAWL",
    "Addresses",
    "Asker",
    "BodyBudget",
    "Busy",
    "Client",
    "HttpRequest",
    "LeaseLost",
    "Transport",
]
