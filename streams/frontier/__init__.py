"""crawlog.streams.frontier."""

from .commands import FREE, Commands, Orders, host_of
from .dispatcher import Frontier
from .host import Host, HostQueue, NameTask, RobotsTask, Task
from .kept_rests import Tenure
from .partition import OwnedPartition
from .politeness import RETRY_STATUSES, TURNED_AWAY, backoff_s, retry_after_s
from .unmet_hosts import MET, Patience, Shares, by_partition

__all__ = [
    "FREE",
    "MET",
    "RETRY_STATUSES",
    "TURNED_AWAY",
    "Commands",
    "Frontier",
    "Host",
    "HostQueue",
    "NameTask",
    "Orders",
    "OwnedPartition",
    "Patience",
    "RobotsTask",
    "Shares",
    "Task",
    "Tenure",
    "backoff_s",
    "by_partition",
    "host_of",
    "retry_after_s",
]
