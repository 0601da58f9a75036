"""Decodes a record from any producer: for any bytes, the only error is a ValueError."""

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import msgspec


# A record as it is read from a topic.


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


T = TypeVar("T")

_EARLIER = (b'{"v":2,', b'{"v":3,')  # Beginnings of records in logs that began before each topic had one version


def decoded(decoder: "msgspec.json.Decoder[T]", value: bytes | str) -> T:
    """The value's JSON.

    Raises: ValueError: not JSON, not of the decoder's type, or nested deeper than the interpreter's stack: a thousand
        levels, or ten thousand from Python 3.12 on. msgspec raises RecursionError for that.
    """
    try:
        return decoder.decode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def version_1(value: bytes) -> bytes:
    """The value of a record of crawl.urls, crawl.pages or crawl.items with its present version."""
    return b'{"v":1,' + value[7:] if value.startswith(_EARLIER) else value
