"""One request: aiohttp behind the egress guard.

    transport: HttpRequest, the Transport protocol

    Client.get ─► request (headers, cookies, proxy) ─► connections (names resolved, addresses checked, SOCKS)
                                                             │
                                                             ▼
    Answer ◄─ body (pieces, decoded, limited) ◄─ protocol (the lease checked before each write)
       └─ failures: one word for each error

    cookie_jars  cookies by job, domain and name: rows under the answers in flight
    per_address  turns: how many requests an IP address gets at a time, and how often
    BodyBudget   memory for large bodies, given in the order of asking

Nothing here knows of crawling.
"""

from .body import FREE_BYTES, BodyBudget
from .client import Client
from .connections import GuardedResolver, Refused
from .cookie_jars import CookieJars, StoredJar
from .exit_sources import list_fault, named_exits, read_place
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
    "CookieJars",
    "GuardedResolver",
    "HttpRequest",
    "LeaseLost",
    "Refused",
    "StoredJar",
    "Transport",
    "list_fault",
    "named_exits",
    "read_place",
]
