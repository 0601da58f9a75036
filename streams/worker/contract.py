"""Protocols of the app, for the parts of a worker: the app imports the parts, and no part imports the app."""

from collections.abc import Coroutine
from typing import Any, Protocol

from crawlog.streams.groups import HeldRange
from crawlog.streams.settings import Settings
from crawlog.streams.stages import Stage

from .lease import Lease
from .positions import Positions


class Watched(Protocol):
    """The watchdog, as the member sees it."""

    def look_at_log(self) -> Coroutine[Any, Any, None]:
        """Check whether the log can be read, after a record could not."""

    def end(self, why: str, cause: BaseException | None = None) -> None:
        """Log one line and exit."""


class Membership(Protocol):
    """The member's thread, as the watchdog sees it."""

    rebalances: int
    """How many rebalances began."""

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the group's coordination; None while it runs."""


class Reader(Protocol):
    """The app's consumer."""

    in_hand: Any

    @property
    def thread(self) -> Membership:
        """The member's thread."""

    def partitions(self) -> set[int]:
        """Our partitions of the input topic."""

    async def ranges(self, partitions: set[int]) -> dict[int, HeldRange]:
        """Bounds of the log and commits, by partition."""

    def has_room(self) -> None:
        """The agent's buffer has room again."""

    def is_ours(self, message: Any) -> bool:
        """Whether a record belongs to the current assignment."""

    async def _drain_messages(self, fetcher: Any) -> None:
        """Hand over records until the worker stops; Faust's name."""


class App(Protocol):
    """`CrawlApp`, as consumer, member, watchdog and process see it."""

    stage: Stage
    crawl: Settings
    conf: Any
    worker_name: str
    input_name: str
    lease: Lease
    positions: Positions

    @property
    def reader(self) -> Reader:
        """Its consumer."""

    @property
    def watchdog(self) -> Watched:
        """Its watchdog."""

    def rebalance_started(self) -> None:
        """A rebalance began."""

    async def revoking(self, partitions: set[int], limit_s: float = ...) -> None:
        """These partitions are about to be given up."""

    async def owned(self, partitions: set[int]) -> None:
        """These partitions are ours."""
