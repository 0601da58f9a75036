"""crawl.items: all items of one page in one record, even none; keyed by job and URL.

The key is `JOB URL` (a job's name holds no space). A record replaces what a sink stored for its key if its page is not
older: (partition, offset) of a page grows with time, as one URL's pages all lie in one partition.
"""

import msgspec

from .codec import decoded

VERSION = 1


class ItemsRecord(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """The items of one page.

    Attributes:
        page: (partition, offset) in crawl.pages of the page they were parsed from.
        spider: The spider and its version: `NAME@HASH`.
        items: Each one a JSON object, kept as bytes so that a sink copies it without decoding it.
    """

    job: str
    url: str
    page: tuple[int, int]
    items: list[msgspec.Raw]
    epoch: int = 0
    spider: str = ""


_decoder = msgspec.json.Decoder(ItemsRecord)
_encoder = msgspec.json.Encoder()


def key(job: str, url: str) -> bytes:
    """The key of a record: shape `JOB URL`."""
    return f"{job} {url}".encode()


def encode(record: ItemsRecord) -> bytes:
    """The record as JSON."""
    return _encoder.encode(record)


def decode(value: bytes | None) -> ItemsRecord:
    """The record in a value of crawl.items.

    Raises: ValueError: not JSON, not a record, or of another version.
    """
    if not value:
        raise ValueError("empty value")
    return decoded(_decoder, value)
