"""crawl.items: one record for each page, with all its items or none; keyed by job and URL.

The key is `JOB URL` (a job's name has no space), with ` ID` in hex behind it for a request other than a plain GET. A
record replaces the rows that a sink stored for its key, unless its page is older: all pages of one URL are in one
partition, so their (partition, offset) grows with time.
"""

import msgspec

from .codec import decoded

VERSION = 1


class ItemsRecord(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """The items of one page.

    Attributes:
        page: (partition, offset) in crawl.pages of the page they were parsed from.
        spider: The spider and its version: `NAME@HASH`.
        id: Identity of the page's request; 0 for a plain GET.
        items: Each one a JSON object, kept as bytes so that a sink copies it without decoding it.
    """

    job: str
    url: str
    page: tuple[int, int]
    items: list[msgspec.Raw]
    epoch: int = 0
    spider: str = ""
    id: int = 0


_decoder = msgspec.json.Decoder(ItemsRecord)
_encoder = msgspec.json.Encoder()


def key(job: str, url: str, request_id: int = 0) -> bytes:
    """The key of a record: shape `JOB URL`, or `JOB URL ID` for a request other than a plain GET."""
    return f"{job} {url} {request_id:016x}".encode() if request_id else f"{job} {url}".encode()


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
