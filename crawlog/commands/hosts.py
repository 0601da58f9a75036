"""`crawlog status --hosts`: the hosts of the fleet, as the workers report them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawlog.streams.hosts import HostKind, HostPage
    from crawlog.streams.settings import Settings


def list_hosts(settings: "Settings", kind: "HostKind | None", limit: int) -> "HostPage":
    """The worst hosts of a kind, or of all kinds. Raises: EngineError: the log does not answer."""
    from crawlog.streams.hosts import HostReader

    return HostReader(settings).read().page(kind, limit=limit)
