"""The frontier stage: folds crawl.urls into the state of each owned partition; fetch dispatches from it.

    assigned → restoring: open and fold to the log's end, in a thread ──→ live
                   └──→ LostPages: dones of pages that have none          │
                                                                           │
    crawl.urls → frontier_agent: take → fold → checkpoint ←────────────────┘
                   │                     └──→ outgoing: forwarded founds, dead letters
                   └──→ reports → crawl.progress
    revoked → frontier_agent: drain, checkpoint, close

Beside it: `host_turns` (requests that are not the queue's: a page in the browser, a redirected robots.txt),
`host_reports` (figures of hosts → crawl.hosts, for people), `snapshots` (copies of live states to a store), `standby`
(warm copies of other workers' partitions).
"""

from . import frontier_agent
from .frontier_agent import OwnedFrontier
from .host_reports import HostReports
from .host_turns import HostHeld, Hosts
from .snapshots import Snapshotter
from .standby import Standby

__all__ = [
    "HostHeld",
    "HostReports",
    "Hosts",
    "OwnedFrontier",
    "Snapshotter",
    "Standby",
    "frontier_agent",
]
