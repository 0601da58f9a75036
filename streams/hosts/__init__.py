"""The hosts of the fleet as crawl.hosts has them: who reads the topic, and the table that answers.

crawl.hosts ─► HostReader: once for a command, all the time for the service ─► HostTable ─► HostPage of ListedHost
"""

from .reader import HostReader
from .table import HOST_RESTS, KINDS, HostKind, HostPage, HostSort, HostTable, ListedHost

__all__ = [
    "HOST_RESTS",
    "KINDS",
    "HostKind",
    "HostPage",
    "HostReader",
    "HostSort",
    "HostTable",
    "ListedHost",
]
