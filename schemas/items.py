"""crawl.items: one record for each page, with all its items or none; keyed by job, URL and request.

An item of a spider's `start` has a record of its own.

The key is `JOB URL` (a job's name has no space), with ` ID` in hex behind it for a request other than a plain GET. A
record replaces the rows that a sink stored for its key, unless its page is older: all pages of one URL are in one
partition, so their (partition, offset) grows with time.
"""

from collections.abc import Mapping
from sys import float_info
from typing import Literal

import msgspec

from .codec import decoded, version_1

VERSION = 1

# In place of a URL: the stats of a spider's `start`, summed since its beginning, so that the newest record has all.
START_STATS = "start#stats"

# The largest sum of a stat: JSON has no larger number, so a record or a state with one could not be read again.
LARGEST = float_info.max

# Before the name of a stat: the greatest or the least value that a page gave, in place of a difference.
#
# Printable: stores such as PostgreSQL take no U+0000 in JSON.
GREATEST, LEAST = "<max>", "<min>"


# What has changed on a page since it was parsed before. `same` also of a page that has no items, and had none; a page
# that is gone stays `gone`.
Change = Literal["", "new", "changed", "same", "gone"]


class ItemsRecord(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """The items of one page.

    Attributes:
        page: (partition, offset) in crawl.pages of the page they were parsed from.
        spider: The spider and its version: `NAME@HASH`.
        id: Identity of the page's request; 0 for a plain GET.
        items: Each one a JSON object, kept as bytes so that a sink copies it without decoding it.
        raw: Whether the items are as scraped: tagged values, which become rows behind the job's pipelines.
        stats: Stats that the page changed, as differences; see `START_STATS` and `GREATEST`.
        unread: Why no callback of the spider got the page; empty if one did.
        change: Only for jobs whose URLs are due again; empty also for an answer that does not say, such as a 503. A
            record that is not `same` is in crawl.changes, too, if the page was not gone before.
        was: (partition, offset) in crawl.items of the record with the items before; None if there were none.
    """

    job: str
    url: str
    page: tuple[int, int]
    items: list[msgspec.Raw]
    epoch: int = 0
    spider: str = ""
    id: int = 0
    raw: bool = False
    stats: dict[str, float] = {}
    unread: str = ""
    change: Change = ""
    was: tuple[int, int] | None = None


_decoder = msgspec.json.Decoder(ItemsRecord)
_encoder = msgspec.json.Encoder()


def key(job: str, url: str, request_id: int = 0) -> bytes:
    """The key of a record: shape `JOB URL`, or `JOB URL ID` for a request other than a plain GET."""
    return f"{job} {url} {request_id:016x}".encode() if request_id else f"{job} {url}".encode()


def of_start(number: int) -> str:
    """In place of a URL: an item of a spider's `start`, by its number."""
    return f"start#{number}"


def _sum(known: float, value: float) -> float:
    """The sum, up to `LARGEST`."""
    return min(max(known + value, -LARGEST), LARGEST)


_joins = {GREATEST: max, LEAST: min}


def add_stats(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Add what further pages changed to sums of stats."""
    for name, value in more.items():
        known = sums.get(name)
        sums[name] = value if known is None else _joins.get(name[: len(GREATEST)], _sum)(known, value)


def named_stats(sums: Mapping[str, float]) -> dict[str, float]:
    """Sums of stats by the names that the spider gave them, sorted."""
    named = {name: value for name, value in sums.items() if not name.startswith((GREATEST, LEAST))}
    named |= {name[len(GREATEST) :]: value for name, value in sums.items() if name.startswith((GREATEST, LEAST))}
    return dict(sorted(named.items()))


def encode(record: ItemsRecord) -> bytes:
    return _encoder.encode(record)


def decode(value: bytes | None) -> ItemsRecord:
    """The record in a value of crawl.items.

    Raises: ValueError: not JSON, not a record, or of another version.
    """
    if not value:
        raise ValueError("empty value")
    return decoded(_decoder, version_1(value))
