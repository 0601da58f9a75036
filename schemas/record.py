"""A record as it is read from a topic."""

from typing import Protocol


class Record(Protocol):
    """A record as Faust hands it to a stage."""

    @property
    def partition(self) -> int:
        """Of the stage's topic."""

    @property
    def offset(self) -> int:
        """In its partition."""

    @property
    def key(self) -> bytes | None:
        """What it is keyed by."""

    @property
    def value(self) -> bytes | None:
        """What it holds."""
