"""What the parts of a worker know of its app: so the app imports them, and none of them the app."""

from collections.abc import Coroutine
from typing import Any, Protocol

from crawlog.streams.log import HeldRange
from crawlog.streams.settings import Settings
from crawlog.streams.stages import Stage

from .lease import Lease
from .positions import Positions


class Watched(Protocol):
    """The watchdog, to those who tell it that something moves."""

    def look_at_log(self) -> Coroutine[Any, Any, None]:
        """Ask the broker soon whether its log can be read: a record could not."""


class Membership(Protocol):
    """The member's thread, to those who ask whether it has failed."""

    @property
    def failure(self) -> BaseException | None:
        """What ended it."""


class Reader(Protocol):
    """The app's consumer."""

    in_hand: Any

    @property
    def thread(self) -> Membership:
        """The member."""

    async def ranges(self, partitions: set[int]) -> dict[int, HeldRange]:
        """What the log holds of partitions, and what is committed."""

    def has_room(self) -> None:
        """A record was taken out of the buffer."""

    def is_ours(self, message: Any) -> bool:
        """Whether a record came with the newest assignment."""

    async def _drain_messages(self, fetcher: Any) -> None:
        """Faust's name: hand over records until the worker stops."""


class App(Protocol):
    """`CrawlApp`, to consumer, member, watchdog and process."""

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
        """The member was told of one."""

    async def revoking(self, partitions: set[int], limit_s: float = ...) -> None:
        """These partitions are about to be given up."""

    async def owned(self, partitions: set[int]) -> None:
        """These partitions are ours."""
