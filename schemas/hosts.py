"""crawl.hosts: figures of hosts, for people; nothing decides by them, and losing them costs nothing. Compacted.

Key `PARTITION/BUCKET`. A host's hash decides its bucket. The owner of a partition of crawl.urls writes a bucket again
when something has changed in it, one bucket at a time; so the figures of a host are as old as their record.
"""

import re
from typing import Annotated

import msgspec

from .codec import decoded
from .progress import Whole

VERSION = 1

BUCKETS = 256  # Of one partition: with 100,000 hosts in 8 partitions a bucket has 50

MAX_HOSTS = 1_000  # Hosts that a bucket names, at most; `HostBucket.left_out` counts the others

MAX_KINDS = 20  # Results that are counted by kind for one host, at most

MAX_RULES = 20  # Lines of a robots.txt that are kept, at most, and `MAX_RULE` characters of each

MAX_RULE = 100

Text = Annotated[str, msgspec.Meta(max_length=300)]


class HostRobots(msgspec.Struct, omit_defaults=True, frozen=True):
    """A host's robots.txt, as it was read last.

    Attributes:
        read_at: UTC epoch seconds.
        status: The status of the answer; 0 if it could not be read.
        error: Why it could not be read.
        rules: The rules that apply to us, as `Disallow: /path`, at most `MAX_RULES`.
        delay_s: Its Crawl-delay; None without one.
    """

    read_at: float = 0.0
    status: Whole = 0
    error: Text = ""
    rules: list[Text] = []
    delay_s: float | None = None


class HostFigures(msgspec.Struct, omit_defaults=True):
    """A host. Counts are those since its partition's state is on its owner's machine; times are UTC epoch seconds.

    Attributes:
        host: `scheme://name:port`.
        queued: URLs that are not done, waiting ones included.
        in_flight: Requests that have not ended.
        asked: Requests that ended, those for robots.txt included.
        rate: Of these, a minute, in the time before the record.
        results: Of these, by status (`200`) or error (`timeout`), without the robots.txt that are well.
        bad_row: Requests in a row, the last ones, that were turned away, failed, or had no answer.
        last: The last result.
        asked_at: When the last request ended.
        next_at: When the next one may be sent; 0 if that is not known, or if none is wanted.
        delay_s: Rest between two requests.
        delay_of: Where it comes from: `setting`, `robots` or `command`.
        per_host: Requests at a time.
        rests: Why it waits longer than its delay: `retry_after`, `backoff`, `exits` (all its exits rest), `pause` or
            `block` (a command); empty if it does not.
        exit: Name of the exit of the last request; empty without exits.
        robots: None until it was read.
    """

    host: Text
    queued: Whole = 0
    in_flight: Whole = 0
    asked: Whole = 0
    rate: float = 0.0
    results: dict[str, Whole] = {}
    bad_row: Whole = 0
    last: Text = ""
    asked_at: float = 0.0
    next_at: float = 0.0
    delay_s: float = 0.0
    delay_of: Text = "setting"
    per_host: Whole = 1
    rests: Text = ""
    exit: Text = ""
    robots: HostRobots | None = None


class HostBucket(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True):
    """The hosts of one bucket that have URLs left, or were asked in the last day."""

    hosts: list[HostFigures]
    left_out: Whole = 0


_decoder = msgspec.json.Decoder(HostBucket)
_encoder = msgspec.json.Encoder()
_KEY = re.compile(rb"(\d{1,9})/(\d{1,9})")


def bucket_of(host_hash: int) -> int:
    """The bucket of a host, by the upper bits of its hash: the state's rows of a bucket are adjacent."""
    return host_hash * BUCKETS >> 64


def key(partition: int, bucket: int) -> bytes:
    return f"{partition}/{bucket}".encode()


def read_key(record_key: bytes | None) -> tuple[int, int] | None:
    """(partition, bucket) of a record's key; None if it is not one."""
    found = _KEY.fullmatch(record_key or b"")
    return (int(found[1]), int(found[2])) if found and int(found[2]) < BUCKETS else None


def encode(record: HostBucket) -> bytes:
    return _encoder.encode(record)


def decode(value: bytes) -> HostBucket | None:
    """The bucket; None for what is not one."""
    try:
        return decoded(_decoder, value)
    except ValueError:
        return None
