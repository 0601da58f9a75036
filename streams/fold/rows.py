"""The state's rows: their keys and their values.

Numbers in keys are big-endian, so key order is fetch order. A job has a number local to its partition (order of
appearance in the log), which no other job gets, even after a deletion.
`host` and `domain` in keys are xxh3_64 of the host key and of the registrable domain.

    b"m"                                                   meta: where in which log this state is
    b"j" job:4                                             job: name, epochs, spec
    b"c" job:4                                             counts of the job
    b"n" job:4 epoch:2 domain:8                            domain: how many pages, URLs queued, the first fingerprints
    b"e" job:4 epoch:2 domain:8 page:4                     page of exact fingerprints: 8 bytes each, low first, sorted
    b"e" job:4 epoch:2 domain:8 page:4 b"+"                the latest of the same page, in order of coming
    b"l" job:4 epoch:2                                     Bloom filter of a job: its URLs
    b"b" job:4 epoch:2 filter:1 block:4                    block of a filter of its chain: 4,096 bits
    b"f" job:4 epoch:2 domain:8 fingerprint:8              depth, row of a URL, if depth is limited or URLs recur
    b"g" job:4 host:8                                      host queue: host key, URLs queued
    b"q" job:4 host:8 priority:4 sequence:8                URL to fetch
    b"w" job:4 host:8 sequence:8                           URL that waits until it is due, or due again
    b"d" job:4 due_ms:8 host:8 sequence:8                  due-time index of the waiting ones: empty
    b"h" host:8                                            host: what politeness must know after a restart
    b"s" job:4 name                                        name that joined the job's scope: empty
    b"k" job:4 domain:8 name                               cookie jar: its cookies
    b"t" job:4 host:8                                      strays of a host: their number, hashes of dates
    b"u" job:4 host:8 path:8                               facets of a path: parameters, hashes of values
    b"v" job:4 domain:8                                    hosts of a domain
    b"p" sequence:8 job name                               URL found for a job that is not known yet

All rows of a job lie under a kind and its number, so that a rewind drops them as a few ranges. The epoch in keys is the
one in which the job began from its seeds.

Changing a layout changes `FORMAT`: another crawlog then sets the state aside and folds the log again.
"""

from collections.abc import Iterable
from struct import Struct as Layout

import msgspec

from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import MAX_PRIORITY, FoundUrl, JobSpec
from crawlog.streams.session import StoredCookie

FORMAT = 9  # Version of the keys and values in a state database

META = b"m"
# Kinds of rows that are dropped when a job begins again.
OF_JOB = (b"n", b"e", b"l", b"b", b"f", b"g", b"q", b"w", b"d", b"s", b"k", b"t", b"u", b"v")

# A sequence is (offset << 16) + index: 65,536 URLs in one found record, 2^47 records in a partition.
SEQUENCE_INDEX_BITS = 16

_queue = Layout(">cIQIQ")
_wait = Layout(">cIQQ")
_due = Layout(">cIQQQ")
_host_queue = Layout(">cIQ")
_host = Layout(">cQ")
_job = Layout(">cI")
_domain = Layout(">cIHQ")
_depth = Layout(">cIHQQ")
_exact = Layout(">cIHQI")
_filter = Layout(">cIH")
_filter_number = Layout(">cIHB")

QUEUE_KEY_BYTES = _queue.size
QUEUE_PREFIX_BYTES = _host_queue.size
_LAST_SEQUENCE = (1 << 64) - 1
LAST_MS = (1 << 64) - 1  # Behind every time of the due-time index


class Skip(msgspec.Struct, frozen=True, array_like=True):
    """Records at [start, end) that a rewind took back. The record of the rewind is at `end` and begins `epoch`."""

    start: int
    end: int
    epoch: int


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """The log that this state is a fold of, and the offset that it has reached.

    Attributes:
        format: `FORMAT` when it was written.
        fold: The fold's version: code, suffix list, URL library.
        offset: The next record to fold.
        cluster, topic: Identities of the Kafka cluster and of crawl.urls.
        last_hash: xxh3_64 of the value of the record at `offset - 1`; 0 at offset 0.
        skipped: The ranges that rewinds took back, in order. A range that ends after `offset` was met before the
            state was rebuilt.
    """

    format: int
    fold: str
    partition: int
    offset: int
    cluster: str
    topic: str
    last_hash: int
    skipped: tuple[Skip, ...] = ()


def fits(skipped: Iterable[Skip], offset: int, effective: Iterable[Skip]) -> bool:
    """Whether a state at an offset can be folded on to one with the effective ranges: both agree before the offset."""
    return [skip for skip in skipped if skip.start < offset] == [skip for skip in effective if skip.start < offset]


class JobRow(msgspec.Struct, frozen=True, array_like=True):
    """A job as this partition knows it.

    Attributes:
        since: The epoch in which it began from its seeds; a part of keys.
        awaited: Whether its job record of this epoch is still to come; none of its URLs is fetched until then.
        after: Epoch of the deleted job that had its name; records of it and before do not count. -1 without one.
        answers: Offset of the last order for the job (partition 0); -1 before the first.
        refusal: Why that order was refused; empty if it was taken.
    """

    name: str
    epoch: int
    spec: JobSpec
    since: int = 0
    awaited: bool = False
    after: int = -1
    answers: int = -1
    refusal: str = ""


class DomainRow(msgspec.Struct, frozen=True, array_like=True):
    """A registrable domain in a job.

    Attributes:
        size: The number of its pages.
        queued: URLs ever queued, for the budget.
        few: Its fingerprints while it has no page, in the layout of a page.
    """

    size: int
    queued: int
    few: bytes = b""


class HostQueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A host queue: its host key, registrable domain and the URLs in it, waiting ones included."""

    host: str
    domain: str
    queued: int


class HostRow(msgspec.Struct, frozen=True, array_like=True):
    """What politeness needs to know about a host after a restart; times come from the log.

    Attributes:
        last_at: UTC epoch seconds when the last attempt ended.
        wait_s: How long the host must rest from then on, beside the crawl delay.
        failures: Attempts in a row that failed or were turned away.
    """

    last_at: float
    wait_s: float
    failures: int


class Recurrence(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a URL that is due again after it is done.

    Attributes:
        done_at: When it was last done, UTC epoch seconds; 0 before the first time.
        every_s: How long after that it is due.
        age_s: That length as the request asked for it; 0 for the job's.
        itag: Version of the page, as it was found last.
        digest, item: As in the newest `PageChange`; 0 and None before the first.
        page: The offset of its page; -1 before the first.
        lastmod: The newest that it was found with.
    """

    done_at: float = 0.0
    every_s: float = 0.0
    age_s: float = 0.0
    itag: str = ""
    digest: int = 0
    item: tuple[int, int] | None = None
    page: int = -1
    lastmod: float = 0.0


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A URL not yet done.

    Attributes:
        sitemap: Whether it is the URL of a sitemap.
        via: As in its found.
        id: Identity of its request; 0 for a plain GET.
        request: All of its request but the URL (`crawlog.schemas.requests`); empty for a plain GET.
        began: Whether its next attempt may have been made: the request is one that is never sent twice.
        attempt: Attempts made so far.
        due_ms, wait_s: When the next attempt is due (UTC epoch milliseconds), and the length of that wait; both are 0
            for a URL that may be fetched now.
        expires: UTC epoch seconds from which on it is not fetched; 0 for never. A whole number takes one byte.
        again: Of a job whose URLs are due again; None in other jobs.
    """

    url: str
    depth: int = 0
    hops: int = 0
    seed: bool = False
    attempt: int = 0
    priority: int = 0
    due_ms: int = 0
    wait_s: float = 0.0
    sitemap: bool = False
    id: int = 0
    request: bytes = b""
    began: bool = False
    via: bytes = b""
    expires: int = 0
    again: Recurrence | None = None

    @property
    def is_again(self) -> bool:
        """Whether the URL was done before: it is due again, and counts as `again` in place of queued."""
        return self.again is not None and self.again.done_at > 0


class JarRow(msgspec.Struct, frozen=True, array_like=True):
    """A cookie jar; the order of its cookies is the one in which they are sent."""

    cookies: tuple[StoredCookie, ...]


def without_request(row: QueueRow) -> QueueRow:
    """The row as memory keeps it while it waits for its turn; its request is read again then."""
    return msgspec.structs.replace(row, request=b"") if row.request else row


pack = msgspec.msgpack.Encoder().encode  # Any row as bytes

read_meta = msgspec.msgpack.Decoder(Meta).decode
read_job = msgspec.msgpack.Decoder(JobRow).decode
read_counts = msgspec.msgpack.Decoder(JobCounts).decode
read_domain = msgspec.msgpack.Decoder(DomainRow).decode
read_host_queue = msgspec.msgpack.Decoder(HostQueueRow).decode
read_host = msgspec.msgpack.Decoder(HostRow).decode
read_parked = msgspec.msgpack.Decoder(FoundUrl).decode
read_queued = msgspec.msgpack.Decoder(QueueRow).decode
read_jar = msgspec.msgpack.Decoder(JarRow).decode


def queue_key(job: int, host: int, priority: int, sequence: int, lifo: bool) -> bytes:
    """Key of a URL to fetch: the higher priority first, then the older (FIFO) or the newer (LIFO) sequence."""
    return _queue.pack(b"q", job, host, MAX_PRIORITY - priority, _LAST_SEQUENCE - sequence if lifo else sequence)


def queue_prefix(job: int, host: int) -> bytes:
    return _host_queue.pack(b"q", job, host)


def wait_key(job: int, host: int, sequence: int) -> bytes:
    return _wait.pack(b"w", job, host, sequence)


def due_key(due_ms: int, job: int, host: int, sequence: int) -> bytes:
    return _due.pack(b"d", job, due_ms, host, sequence)


def unpack_due(key: bytes) -> tuple[int, int, int, int]:
    """(due_ms, job, host, sequence) of a key in the due-time index."""
    _, job, due_ms, host, sequence = _due.unpack(key)
    return due_ms, job, host, sequence


def host_queue_key(job: int, host: int) -> bytes:
    return _host_queue.pack(b"g", job, host)


def unpack_host_queue(key: bytes) -> tuple[int, int]:
    """(job, host) of a host queue's key."""
    _, job, host = _host_queue.unpack(key)
    return job, host


def host_key(host: int) -> bytes:
    return _host.pack(b"h", host)


def job_key(job: int) -> bytes:
    return _job.pack(b"j", job)


def counts_key(job: int) -> bytes:
    return _job.pack(b"c", job)


def domain_key(job: int, epoch: int, domain: int) -> bytes:
    return _domain.pack(b"n", job, epoch, domain)


def exact_key(job: int, epoch: int, domain: int, page: int) -> bytes:
    return _exact.pack(b"e", job, epoch, domain, page)


def latest_key(job: int, epoch: int, domain: int, page: int) -> bytes:
    """Key of a page's latest fingerprints; it follows the key of the page."""
    return _exact.pack(b"e", job, epoch, domain, page) + b"+"


def filter_key(job: int, epoch: int) -> bytes:
    return _filter.pack(b"l", job, epoch)


def filter_prefix(job: int, epoch: int, number: int) -> bytes:
    """Prefix of the blocks of one filter of a Bloom filter's chain."""
    return _filter_number.pack(b"b", job, epoch, number)


def block_key(prefix: bytes, block: int) -> bytes:
    """Key of a block of the filter with a prefix."""
    return prefix + block.to_bytes(4, "big")


def depth_key(job: int, epoch: int, domain: int, fingerprint: int) -> bytes:
    """Key of a URL's depth; the keys of a domain are adjacent, because the links of a page are read together."""
    return _depth.pack(b"f", job, epoch, domain, fingerprint)


def of_job(kind: bytes, job: int) -> bytes:
    return _job.pack(kind, job)


def joined_key(job: int, name: str) -> bytes:
    return _job.pack(b"s", job) + name.encode()


def jar_key(job: int, domain: int, name: str) -> bytes:
    return _host_queue.pack(b"k", job, domain) + name.encode()


def strays_key(job: int, host: int) -> bytes:
    return _host_queue.pack(b"t", job, host)


def facets_key(job: int, host: int, path: int) -> bytes:
    return _wait.pack(b"u", job, host, path)


def hosts_key(job: int, domain: int) -> bytes:
    return _host_queue.pack(b"v", job, domain)


def job_of(key: bytes) -> int:
    return int.from_bytes(key[1:5], "big")


def parked_key(sequence: int, job: str) -> bytes:
    return b"p" + sequence.to_bytes(8, "big") + job.encode()


def after(prefix: bytes) -> bytes:
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
