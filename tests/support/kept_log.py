"""A log in memory, for code that reads topics from end to end with plain consumers."""

from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

Headers = list[tuple[str, bytes]]


class KeptLog:
    """Records by topic and partition.

    Attributes:
        firsts: The first offset that is left of a partition, where records were deleted.
    """

    def __init__(self) -> None:
        self._records: defaultdict[tuple[str, int], list[tuple[bytes, Headers]]] = defaultdict(list)
        self.firsts: dict[tuple[str, int], int] = {}

    def write(self, topic: str, value: bytes = b"", partition: int = 0, headers: Headers | None = None) -> None:
        """One more record."""
        self._records[topic, partition].append((value, headers or []))

    def delete(self, topic: str, partition: int = 0) -> None:
        """DeleteRecords: all of a partition."""
        self.firsts[topic, partition] = len(self._records[topic, partition])

    def last(self, topic: str, partition: int = 0) -> bytes:
        """The value of the newest record."""
        return self._records[topic, partition][-1][0]

    def serve(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
        """Have modules of crawlog read this log, and write to it."""
        fakes = {"log_bounds": self._bounds, "read_records": self._read, "CommandProducer": lambda *_: self}
        for module in map(import_module, modules):
            for name in fakes.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, fakes[name])

    def send(self, topic: str, value: bytes, partition: int) -> None:
        """As a producer."""
        self.write(topic, value, partition)

    def flush(self, _timeout_s: float) -> bool:
        """As a producer: all is acknowledged."""
        return True

    def _bounds(self, _: object, topic: str, numbers: list[int]) -> dict[int, tuple[int, int]]:
        return {at: (self.firsts.get((topic, at), 0), len(self._records[topic, at])) for at in numbers}

    def _read(self, _: object, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
        for offset in range(max(start, self.firsts.get((topic, partition), 0)), end):
            value, headers = self._records[topic, partition][offset]
            parts = {"value": value, "headers": headers, "offset": offset, "partition": partition}
            yield SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()})
