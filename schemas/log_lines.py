"""crawl.logs: lines that people read, by job: of spiders, pipelines, and of workers about a job. Kept 7 days, bounded.

Key: the job's name; empty for lines about no job. One record holds the lines of some moments of one worker.
"""

import msgspec

from .codec import decoded

VERSION = 1

MAX_LINE = 2_000  # Longest line, characters; longer ones are cut

MAX_LINES = 500  # Lines of one record, at most

GOES_ON = ""  # `LogLine.level` of a line that goes on with the one before


class LogLine(msgspec.Struct, omit_defaults=True, frozen=True):
    """One line.

    Attributes:
        at: UTC epoch seconds.
        level: `debug`, `info`, `warning`, `error`, `critical`; `GOES_ON` of a line that goes on with the one before.
        text: Without a line break at its end.
        source: Logger or event; empty for what was printed.
        url: The URL that it is about, if any.
    """

    at: float
    text: str
    level: str = "info"
    source: str = ""
    url: str = ""


class LogLines(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """Lines of one worker about one job.

    Attributes:
        lost: Lines that were left out before these, as the worker had too many.
    """

    job: str
    worker: str
    stage: str
    lines: tuple[LogLine, ...]
    epoch: int = 0
    lost: int = 0


_decoder = msgspec.json.Decoder(LogLines)
_encoder = msgspec.json.Encoder()


def encode(record: LogLines) -> bytes:
    return _encoder.encode(record)


def decode(value: bytes | None) -> LogLines:
    """The record. Raises: ValueError: it is none."""
    if not value:
        raise ValueError("empty value")
    return decoded(_decoder, value)
