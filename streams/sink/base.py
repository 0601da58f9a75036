"""`Sink`, the base class of all result formats and stores, and `ResultRows`, the rows that it writes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar

import msgspec

from crawlog.streams.log import SinkSpec


class ResultRows:
    """The rows of a finished job, only the newest ones of each URL. Each reading starts with the first row.

    Args:
        chunks: Gives all rows as JSON lines, in pieces that end with a row.
    """

    def __init__(self, chunks: Callable[[], Iterable[bytes]]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[dict[str, object]]:
        decode = msgspec.json.Decoder(dict[str, object]).decode
        for chunk in self.chunks():
            for line in chunk.splitlines():
                yield decode(line)


class Sink(ABC):
    """A result format or a store: it writes the rows of a finished job.

    A class is registered in the entry point group `crawlog.sinks`: a format by the suffix of its files (`.parquet`), a
    store by the scheme of its addresses (`redis`). `-o` selects it. One object is made before the crawl begins, so
    `__init__` raises `Misconfigured` for an output that cannot be written; another one writes when the job is finished.

    Args:
        spec: Its `job` and its `output`: the absolute path of FILE, or the store's address.

    Attributes:
        as_kept: Whether FILE holds the very bytes of `ResultRows.chunks`: the kept rows are then renamed, not copied.
        depends_on: Fields of `spec` that change the content of FILE: FILE is made again after a change of one.
    """

    as_kept: ClassVar[bool] = False
    depends_on: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: SinkSpec) -> None:
        self.spec = spec

    @abstractmethod
    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Write all rows.

        A run that was killed, or that is repeated, writes them again: in a store, a row must replace its older copy.

        Args:
            out: For a format, a new file that replaces FILE when this returns, and is removed when this raises. For a
                store, standard output.
        """
