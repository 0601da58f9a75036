"""The front door: the names that users program against. It imports nothing before one of them is asked for.

    from crawlog import …          a script, a spider, a sink, a test
      │ api                        crawl(): a run as a function
      ▼
    crawlog …                      __main__ (signals) → cli (arguments in, text and exit code out)
      ▼
    commands                       what each command does; values out
      ▼
    processes, progress            engine and workers kept alive; what they report
      ▼
    agents, streams, schemas       the crawl itself

Imports go down this drawing, never up.
"""

TYPE_CHECKING = False  # type checkers take it for true; `typing` might be a file of the current folder: see __main__.py
if TYPE_CHECKING:
    from crawlog.agents.client import Transport as Transport
    from crawlog.api import Summary as Summary
    from crawlog.api import crawl as crawl
    from crawlog.streams.errors import CrawlError as CrawlError
    from crawlog.streams.errors import EngineError as EngineError
    from crawlog.streams.errors import GiveUp as GiveUp
    from crawlog.streams.errors import Misconfigured as Misconfigured
    from crawlog.streams.errors import RetryLater as RetryLater
    from crawlog.streams.settings import Settings as Settings
    from crawlog.streams.sink import Sink as Sink
    from crawlog.streams.spiders import Request as Request
    from crawlog.streams.spiders import Response as Response
    from crawlog.streams.spiders import Spider as Spider
    from crawlog.streams.state import SnapshotStore as SnapshotStore

    __version__: str

__all__ = [
    "CrawlError",
    "EngineError",
    "GiveUp",
    "Misconfigured",
    "Request",
    "Response",
    "RetryLater",
    "Settings",
    "Sink",
    "SnapshotStore",
    "Spider",
    "Summary",
    "Transport",
    "__version__",
    "crawl",
]

_HOMES = {
    "Request": "streams.spiders",
    "Response": "streams.spiders",
    "Settings": "streams.settings",
    "Sink": "streams.sink",
    "SnapshotStore": "streams.state",
    "Spider": "streams.spiders",
    "Summary": "api",
    "Transport": "agents.client",
    "crawl": "api",
}
"""The rooms of the names; the errors are all in one."""


def __getattr__(name: str) -> object:
    """The names, once asked for: a spider's bring a parser, and the front door takes signals before all else."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("crawlog")
    from importlib import import_module

    return getattr(import_module(f"crawlog.{_HOMES.get(name, 'streams.errors')}"), name)
