"""How a record from any producer is read: whatever its bytes are, the only error is a ValueError."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import msgspec

T = TypeVar("T")


def decoded(decoder: "msgspec.json.Decoder[T]", value: bytes | str) -> T:
    """The value's JSON.

    Raises: ValueError: not JSON, not what the decoder is for, or nested deeper than the interpreter's stack, for which
        msgspec raises RecursionError: at about a thousand levels, ten thousand from Python 3.12 on.
    """
    try:
        return decoder.decode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
