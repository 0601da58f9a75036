"""Which URL is requested next: the host queues of this worker's partitions, in memory.

    fold tells each change → partition: hosts awake (host: their queues' windows) or asleep (order: Sleepers)
                             │  waits: URLs that are due later     policies: how each job's URLs are requested,
                             │                                     and which URLs commands keep waiting
                             ▼
    commands, politeness → schedule: each host rests, or stands in line (order: hosts, domains, jobs in turns)
                             │
                             ▼
    fetch asks for the next → dispatcher → Task, RobotsTask or NameTask → fetch says finished, unsent or back

`unmet_hosts` bounds what hosts hold that may never answer; `by_exit` finds an exit for a task; `host_figures` counts
what requests to each host came to, for people.
Imports go one way: host ← order ← schedule ← waits, policies ← partition ← dispatcher; schedule ← by_exit ← dispatcher.
"""

from .by_exit import barred
from .dispatcher import Frontier
from .host import NO_TRIES, Host, HostQueue, NameTask, RobotsTask, Task, Tries
from .partition import OwnedPartition
from .politeness import TURNED_AWAY, KeptRests, backoff_s, crawl_delay_s, retry_after_s
from .unmet_hosts import MET, Patience, Shares, by_partition

__all__ = [
    "MET",
    "NO_TRIES",
    "TURNED_AWAY",
    "Frontier",
    "Host",
    "HostQueue",
    "KeptRests",
    "NameTask",
    "OwnedPartition",
    "Patience",
    "RobotsTask",
    "Shares",
    "Task",
    "Tries",
    "backoff_s",
    "barred",
    "by_partition",
    "crawl_delay_s",
    "retry_after_s",
]
