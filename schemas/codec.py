"""Decodes a record from any producer: for any bytes, the only error is a ValueError."""

import contextlib
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

_LATER = (b'{"v":2,', b'{"v":3,')
"""Beginnings of records of later versions as msgspec writes them."""


def decoded(decoder: "msgspec.json.Decoder[T]", value: bytes | str) -> T:
    """The value's JSON.

    Raises: ValueError: not JSON, not of the decoder's type, or nested deeper than the interpreter's stack: a thousand
        levels, or ten thousand from Python 3.12 on. msgspec raises RecursionError for that.
    """
    try:
        return decoder.decode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decoded_as(decoders: "tuple[msgspec.json.Decoder[T], ...]", value: bytes) -> T:
    """The value by the decoder of the version that the record says; the first one is of version 1.

    Raises: ValueError: as `decoded`.
    """
    first, *later = decoders
    for begins, decoder in zip(_LATER, later, strict=False):
        if value.startswith(begins):
            return decoded(decoder, value)
    try:
        return decoded(first, value)
    except ValueError:
        for decoder in later:  # another client may order its fields otherwise
            with contextlib.suppress(ValueError):
                return decoded(decoder, value)
        raise
