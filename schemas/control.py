"""crawl.control: what every worker must know, compacted by name.

Keys: `job/NAME` (a copy of the job record, for parse), `finished/NAME` (the supervisor's word that a job ended, and
how), `join/NAME/HOST` (a host that a seed led to and that joined the job's scope).
"""

import msgspec

from .urls import JobSpec

VERSION = 1


class JobCopy(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A copy of a job record."""

    job: str
    spec: JobSpec
    epoch: int = 0


class Finished(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A job has ended: every fold, parse and sink had passed these offsets.

    Attributes:
        reason: `finished`, `max_pages` or `cancelled`.
        urls: End of each partition of crawl.urls at that moment.
        dead: Records of this job in crawl.dead by then.
    """

    job: str
    at: float
    epoch: int = 0
    reason: str = "finished"
    urls: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()
    items: tuple[int, ...] = ()
    dead: int = 0


class Join(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A scope name (host:port or registrable domain) that joined a job's scope while it ran."""

    job: str
    name: str


_job = msgspec.json.Decoder(JobCopy)
_finished = msgspec.json.Decoder(Finished)
_join = msgspec.json.Decoder(Join)
_encoder = msgspec.json.Encoder()

Control = JobCopy | Finished | Join


def key(record: Control) -> bytes:
    """The compaction key of a record."""
    if isinstance(record, JobCopy):
        return f"job/{record.job}".encode()
    if isinstance(record, Finished):
        return f"finished/{record.job}".encode()
    return f"join/{record.job}/{record.name}".encode()


def encode(record: Control) -> bytes:
    """The record as JSON."""
    return _encoder.encode(record)


def decode(record_key: bytes | None, value: bytes | None) -> Control | None:
    """The record, or None for a tombstone.

    Raises: ValueError: a name that this version does not know, not JSON, or not what its key says.
    """
    if not value:
        return None
    kind = (record_key or b"").partition(b"/")[0]
    if kind == b"job":
        return _job.decode(value)
    if kind == b"finished":
        return _finished.decode(value)
    if kind == b"join":
        return _join.decode(value)
    raise ValueError(f"nothing is known by the key {record_key!r:.100}")
