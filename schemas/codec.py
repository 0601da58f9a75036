"""Decodes a record from any producer: for any bytes, the only error is a ValueError."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import msgspec

T = TypeVar("T")

_SECOND = b'{"v":2,'
"""Beginning of a record of version 2 as msgspec writes it."""


def decoded(decoder: "msgspec.json.Decoder[T]", value: bytes | str) -> T:
    """The value's JSON.

    Raises: ValueError: not JSON, not of the decoder's type, or nested deeper than the interpreter's stack: a thousand
        levels, or ten thousand from Python 3.12 on. msgspec raises RecursionError for that.
    """
    try:
        return decoder.decode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decoded_as(decoders: "tuple[msgspec.json.Decoder[T], msgspec.json.Decoder[T]]", value: bytes) -> T:
    """The value by the first decoder; by the second, if the record says version 2.

    Raises: ValueError: as `decoded`.
    """
    first, second = decoders
    if value.startswith(_SECOND):
        return decoded(second, value)
    try:
        return decoded(first, value)
    except ValueError as error:
        try:  # another client may order its fields otherwise
            return decoded(second, value)
        except ValueError:
            raise error from None
