"""The front door: the names that users program against. A name is imported when it is first used.

    from crawlog import …          a script, a spider, a sink, a test
      │ api                        crawl(): `crawlog run` as a function
      ▼
    crawlog …                      __main__ (signals) → cli (arguments in, text and exit code out)
      ▼
    commands                       what each command does; values out
      ▼
    processes, progress            keep engine and workers alive; read the workers' reports
      ▼
    agents, streams, schemas       the crawl itself

Imports go down this drawing, never up.
"""

TYPE_CHECKING = False  # true for type checkers; `import typing` may load a file of the current folder, see __main__.py
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
    from crawlog.streams.spiders import BadAnswer as BadAnswer
    from crawlog.streams.spiders import ConnectionFailed as ConnectionFailed
    from crawlog.streams.spiders import DnsFailed as DnsFailed
    from crawlog.streams.spiders import DropItem as DropItem
    from crawlog.streams.spiders import Failure as Failure
    from crawlog.streams.spiders import FetchError as FetchError
    from crawlog.streams.spiders import HttpError as HttpError
    from crawlog.streams.spiders import NotSent as NotSent
    from crawlog.streams.spiders import Request as Request
    from crawlog.streams.spiders import Response as Response
    from crawlog.streams.spiders import Rule as Rule
    from crawlog.streams.spiders import Spider as Spider
    from crawlog.streams.spiders import TimedOut as TimedOut
    from crawlog.streams.spiders import TlsFailed as TlsFailed
    from crawlog.streams.spiders import Tried as Tried
    from crawlog.streams.spiders import every as every
    from crawlog.streams.spiders import try_page as try_page
    from crawlog.streams.state import SnapshotStore as SnapshotStore
    from crawlog.streams.stores import Store as Store

    __version__: str

__all__ = [
    "BadAnswer",
    "ConnectionFailed",
    "CrawlError",
    "DnsFailed",
    "DropItem",
    "EngineError",
    "Failure",
    "FetchError",
    "GiveUp",
    "HttpError",
    "Misconfigured",
    "NotSent",
    "Request",
    "Response",
    "RetryLater",
    "Rule",
    "Settings",
    "Sink",
    "SnapshotStore",
    "Spider",
    "Store",
    "Summary",
    "TimedOut",
    "TlsFailed",
    "Transport",
    "Tried",
    "__version__",
    "crawl",
    "every",
    "try_page",
]

# The modules of the names; all others are errors, in `streams.errors`.
_HOMES = {
    "try_page": "streams.spiders",
    "Tried": "streams.spiders",
    "TlsFailed": "streams.spiders",
    "TimedOut": "streams.spiders",
    "Rule": "streams.spiders",
    "NotSent": "streams.spiders",
    "HttpError": "streams.spiders",
    "FetchError": "streams.spiders",
    "Failure": "streams.spiders",
    "DnsFailed": "streams.spiders",
    "ConnectionFailed": "streams.spiders",
    "BadAnswer": "streams.spiders",
    "DropItem": "streams.spiders",
    "Request": "streams.spiders",
    "Response": "streams.spiders",
    "Settings": "streams.settings",
    "Sink": "streams.sink",
    "Store": "streams.stores",
    "SnapshotStore": "streams.state",
    "Spider": "streams.spiders",
    "Summary": "api",
    "Transport": "agents.client",
    "crawl": "api",
    "every": "streams.spiders",
}


def __getattr__(name: str) -> object:
    """Imports a name on first use: spiders load an HTML parser, and `__main__` must set signal handlers before that."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("crawlog")
    from importlib import import_module

    return getattr(import_module(f"crawlog.{_HOMES.get(name, 'streams.errors')}"), name)
