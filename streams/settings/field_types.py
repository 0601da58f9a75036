"""The base class of sections, and types of their fields."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from crawlog.streams.spans import span_s

T = TypeVar("T")

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Span = Annotated[float, BeforeValidator(lambda value: span_s(value) if isinstance(value, str) else value), Field(gt=0)]

MAX_RECORD_BYTES = 1_000_000_000  # librdkafka's own bound of `message.max.bytes`

# Room in a record beside the largest body: metadata with two URLs of 64 KiB each, keys, framing; bytes.
RECORD_HEADROOM = 256 * 1024

# The largest limit of a body that a page may have been fetched under, whatever the settings of its reader.
MAX_BODY_BYTES = MAX_RECORD_BYTES - RECORD_HEADROOM

# The largest whole number: no row of the state holds one of more than 64 bits, so no worker could take the job.
MAX_WHOLE = (1 << 63) - 1

# The largest number that is not whole: each is a time, in seconds, hours or days; 1e9 s are 31 years.
MAX_TIME = 1_000_000_000.0


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")  # one for all fields: pydantic builds each validator of each field at every start
    @classmethod
    def is_possible(cls, value: T) -> T:
        """A NUL ends a C string, so no file, header or environment variable can carry it; see also `MAX_WHOLE`."""
        if isinstance(value, int):
            if value > MAX_WHOLE:
                raise ValueError(f"more than {MAX_WHOLE}")
        elif isinstance(value, float):
            if value > MAX_TIME:
                raise ValueError(f"more than {MAX_TIME:.0f}")
        elif any("\0" in str(part) for part in (value if isinstance(value, tuple) else (value,))):
            raise ValueError("holds a NUL character")
        return value


def compiled(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns, checked. Raises: ValueError: as `url.compiled`."""
    if patterns:
        from crawlog.streams import url  # 20 ms that only a user of patterns pays

        url.compiled(patterns)
    return patterns


def each_readable(texts: tuple[str, ...], read: Callable[[str], object]) -> tuple[str, ...]:
    """The texts, checked. Raises: ValueError: `read` refuses one; the message has its number, and not the text."""
    for number, text in enumerate(texts, 1):
        try:
            read(text)
        except ValueError as error:
            raise ValueError(f"number {number}: {error}" if len(texts) > 1 else str(error)) from None
    return texts
