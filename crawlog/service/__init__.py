"""The HTTP service: a process beside the workers; it shows and steers through `crawlog/jobs/` and the fleet's view.

crawl.control, crawl.progress ─► FleetView ─► /api/v1, Scrapyd's API and pages, /metrics, health

    crawlog up, crawlog worker service
      ▼
    process     address, port, token, signals; the middlewares in their order, and the modules with routes
      │ doors   who may hold a connection
      ▼
    answers ─► guards ─► access ─► a route (routing) ─► in a thread: crawlog/jobs/, crawlog/commands/
    errors     Host,     who,
    as JSON    Origin,   and the role
               prefix,
               rate

Every route names the role that it needs. Code of users never runs in this process.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .access import check_reach
    from .process import serve

__all__ = ["check_reach", "serve"]


def __getattr__(name: str) -> Any:
    """They load aiohttp's server, which `--help` does not need."""
    if name == "check_reach":
        from .access import check_reach

        return check_reach
    if name == "serve":
        from .process import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
