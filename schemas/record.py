"""A record as it is read from a topic."""

from typing import Protocol


class Record(Protocol):
    """A record as Faust hands it to a stage."""

    @property
    def partition(self) -> int:
        """Its partition of the stage's topic."""

    @property
    def offset(self) -> int:
        """Its offset in the partition."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its value."""
