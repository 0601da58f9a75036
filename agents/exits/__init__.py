"""A worker of the stage `exit`: lends the addresses of its machine to the fetch workers of the fleet.

    fetch worker ── CONNECT host:port, with a ticket ──► ExitServer ──► egress guard ──► the site
        │                                                    │            (TLS goes through, end to end)
        └── its key ──► crawl.progress ──► FleetKeys ────────┘
    its name, address and nonce ──► crawl.progress ──► the fetch workers

The owner of a domain keeps politeness, order and cookies; an exit sees bytes. It serves nobody without a ticket.
`streams/exits/tickets.py` says why no record holds a secret.
"""

from .exit_worker import lend

__all__ = ["lend"]
