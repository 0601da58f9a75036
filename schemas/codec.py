"""Decodes a record from any producer: for any bytes, the only error is a ValueError."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import msgspec

T = TypeVar("T")


def decoded(decoder: "msgspec.json.Decoder[T]", value: bytes | str) -> T:
    """The value's JSON.

    Raises: ValueError: not JSON, not of the decoder's type, or nested deeper than the interpreter's stack: a thousand
        levels, or ten thousand from Python 3.12 on. msgspec raises RecursionError for that.
    """
    try:
        return decoder.decode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
