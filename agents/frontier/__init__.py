"""crawlog.agents.frontier."""

from . import frontier_agent
from .frontier_agent import Stage
from .host_turns import Hosts
from .snapshots import Snapshotter
from .standby import Standby

__all__ = [
    "Hosts",
    "Snapshotter",
    "Stage",
    "Standby",
    "frontier_agent",
]
