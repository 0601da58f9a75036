"""`Store`, the base class of stores: PostgreSQL, MongoDB, Redis and so on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from crawlog.streams.errors import CrawlError, Misconfigured, RetryLater
from crawlog.streams.printable import without_secrets
from crawlog.streams.sink_groups import SinkSpec

from .changes import Feed, RowChanges

CONNECT_S = 5  # Longest time of a connection, seconds

ANSWER_S = 60  # Longest time of one transaction, seconds


class RowState(Protocol):
    """The state of a sink, as stores see it."""

    @property
    def feed(self) -> Feed:
        """Which rows it has."""

    def changes(self, after: int) -> RowChanges:
        """The changes behind a number."""


class Store(ABC):
    """A store that takes rows as they come; it is registered under the scheme of its addresses (`postgresql`).

    One thread at a time calls it. `open` comes first, and again after any error: the answer to a write may be lost, so
    only the store knows how far it is.

    Args:
        spec: Its `job`, its `output` (the address), and `on_gone`.

    Attributes:
        hint: What to look at after an error of the store's own.

    Raises: Misconfigured: the address has not the form that it must have.
    """

    hint: ClassVar[str] = "Is the server up, and may this user write there?"
    as_kept = False
    depends_on: tuple[str, ...] = ()

    def __init__(self, spec: SinkSpec) -> None:
        self.spec = spec

    @property
    def place(self) -> str:
        """The address without password, for messages."""
        return without_secrets(self.spec.output)

    @classmethod
    def absolute(cls, output: str) -> str:
        """The address with absolute paths: workers stand in another folder than the command."""
        return output

    @abstractmethod
    def check(self) -> None:
        """Refuse a store that cannot be written now, before a `run` crawls. Raises: Misconfigured."""

    @abstractmethod
    def open(self, feed: Feed) -> int:
        """Connect, and make this the only feed of the job's rows: a write of an older one fails from now on.

        Returns: The number of the last change that the store has of this feed's serial; 0 for another serial.

        Raises: Misconfigured: it cannot be reached or written; the caller tries again later.
        """

    @abstractmethod
    def write(self, changes: RowChanges) -> None:
        """Replace the rows of these keys, and note `changes.end`, all or nothing where the store can.

        A row replaces an older copy of itself: after a failure the same changes may come again. Rows from an older page
        than those in the store are left out.

        Raises: Misconfigured: as `open`. RetryLater: another worker has opened the feed since.
        """

    @abstractmethod
    def finish(self) -> None:
        """The job is finished, and all is written: do with rows that are gone as `spec.on_gone` wants.

        Raises: as `write`.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect, whatever state the connection is in."""

    @contextmanager
    def reported(self) -> Iterator[None]:
        """After an error the store is closed, which undoes a transaction. Raises: Misconfigured: of any error."""
        try:
            yield
        except Exception as error:
            self.close()
            if isinstance(error, CrawlError):
                raise
            text = " ".join(self.text_of(error).split())
            raise Misconfigured(
                f"{self.place}: {text or type(error).__name__}\n{self.hint} Nothing is lost: the rows are in the log,"
                " and are written as soon as it takes them."
            ) from error

    def text_of(self, error: Exception) -> str:
        """What an error of the store's library says."""
        return str(error)


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """For the import of an extra's library. Raises: Misconfigured: it is not installed."""
    try:
        yield
    except ImportError as error:
        raise Misconfigured(
            f"this output needs a library that is not installed ({error}): `pip install 'crawlog[{extra}]'`"
        ) from error


def fill(store: Store, state: RowState) -> None:
    """Give a store all rows of a state, at once. Raises: as `Store.open` and `Store.write`."""
    try:
        at = store.open(state.feed)
        while (changes := state.changes(at)).end > at:
            store.write(changes)
            at = changes.end
        store.finish()
    finally:
        store.close()


def lost_place(store: Store) -> RetryLater:
    """Another worker feeds the store now."""
    return RetryLater(f"{store.place}: another sink worker has taken the rows of job {store.spec.job} over", 1.0)
