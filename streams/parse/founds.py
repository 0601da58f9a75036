"""Gathers links for crawl.urls into batches by partition, and leaves out links that were sent lately.

Invariant: a page is acknowledged after every batch with one of its links is in the log. Two rules follow:

- If a batch in flight already holds a link, the link is not sent again, but the page waits for that batch.
- A link counts as sent only after its batch is acknowledged.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping

from crawlog.schemas.requests import packed
from crawlog.schemas.urls import MAX_BATCH_BYTES, MAX_BATCH_URLS, FoundUrl
from crawlog.streams.html import Outlink

_FOUND_BYTES = 110  # Largest encoded size of a found without its URL and parent

Refusal = Callable[[Outlink, int], str | None]  # The rule that refuses a link at a depth; None if the link is accepted


class Sent:
    """Links of one job revision and epoch that are in the log, with their least depth, and those in flight.

    The newest links are in a dict, 100 bytes each. When it is full, they move to a table, 8 bytes each. The low bits of
    the fingerprint choose a pair of entries there: of three links with the same low bits, the oldest is forgotten.

    Args:
        newest: Most links in the dict; moving 65,536 of them takes some 20 ms.
        bits: The table has 2 to this power pairs. By default it takes 16 MiB, and remembers 98 % of 400,000 links and
            90 % of a million. It is created when the dict is full for the first time: most crawls have none.

    Attributes:
        newest: Least depth by fingerprint.
        on_way: Depth and batch of each link in flight, by fingerprint.
    """

    def __init__(self, newest: int = 65_536, bits: int = 20) -> None:
        self._most = newest
        self._bits = bits
        self._low = (1 << bits) - 1
        self._older: array[int] | None = None
        """An entry has the high bits of a fingerprint, and depth + 1 in place of the low bits; 0 is an empty entry."""
        self.newest: dict[int, int] = {}
        self.on_way: dict[int, tuple[int, Batch]] = {}

    def depth(self, fingerprint: int) -> int | None:
        """The least depth at which a link was sent; None if it was not, or is forgotten."""
        depth = self.newest.get(fingerprint)
        if depth is not None or self._older is None:
            return depth
        low = self._low
        at = 2 * (fingerprint & low)
        entry = self._older[at]
        if (entry ^ fingerprint) > low:  # they differ in a high bit
            entry = self._older[at + 1]
            if (entry ^ fingerprint) > low:
                return None
        return (entry & low) - 1 if entry & low else None

    def unsent(  # a page's links, and where they are counted
        self,
        links: Iterable[Outlink],
        depth: int,
        refusal: Refusal,
        dropped: dict[str, int],
        awaited: "set[Batch]",
        *,
        is_again: bool = False,
    ) -> list[Outlink]:
        """The links of a page to send: not refused, and not sent lately at this or a lesser depth.

        Args:
            dropped: Counts the refused links, by rule.
            awaited: Receives the batches in flight that hold links of this page: the page must wait for them.
            is_again: Whether they are sent although they were: known URLs may be due earlier or later by them.
        """
        chosen: list[Outlink] = []
        unknown = depth + 1
        on_way, newest = (self.on_way, self.newest) if not is_again else ({}, {})
        for link in links:
            fingerprint = link.fingerprint
            if newest.get(fingerprint, unknown) <= depth:  # the hot path: this settles most links
                continue
            known = self.depth(fingerprint) if not is_again else None
            if known is not None and known <= depth:
                continue
            going = on_way.get(fingerprint)
            if going is not None and going[0] <= depth:
                awaited.add(going[1])
                continue
            rule = refusal(link, depth)
            if rule is not None:
                dropped[rule] = dropped.get(rule, 0) + 1
                continue
            chosen.append(link)
        return chosen

    def acknowledged(self, batch: "Batch") -> None:
        for fingerprint, depth in batch.links:
            if len(self.newest) >= self._most:
                self._age()
            known = self.depth(fingerprint)
            self.newest[fingerprint] = depth if known is None else min(known, depth)
            if self.on_way.get(fingerprint, (0, None))[1] is batch:
                del self.on_way[fingerprint]

    def _age(self) -> None:
        """Move the newest links to the table; those too deep for its depth field are forgotten."""
        low = self._low
        if self._older is None:
            self._older = array("Q", [0]) * (2 << self._bits)
        older = self._older
        for fingerprint, depth in self.newest.items():
            if depth < low:
                at = 2 * (fingerprint & low)
                before = older[at]
                if (before ^ fingerprint) > low:
                    older[at + 1] = before
                older[at] = fingerprint & ~low | depth + 1
        self.newest = {}


class Batch:
    """Founds of one job, epoch and partition.

    Attributes:
        domain: The domain of all its URLs; None if there are several, or no URL yet.
        links: (fingerprint, depth) of each URL.
        dropped: Counts of refused links, by rule.
    """

    __slots__ = (
        "_waiting",
        "domain",
        "dropped",
        "epoch",
        "is_acknowledged",
        "job",
        "links",
        "partition",
        "sent",
        "size_bytes",
        "urls",
    )

    def __init__(self, job: str, epoch: int, domain: str | None, partition: int, sent: Sent) -> None:
        self.job = job
        self.epoch = epoch
        self.domain = domain
        self.partition = partition
        self.sent = sent
        self.size_bytes = 0
        self.urls: list[FoundUrl] = []
        self.links: list[tuple[int, int]] = []
        self.dropped: dict[str, int] = {}
        self.is_acknowledged = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether another URL may exceed a limit."""
        return len(self.urls) >= MAX_BATCH_URLS or self.size_bytes >= MAX_BATCH_BYTES - (1 << 12)

    def wait(self, done: Callable[[], None]) -> bool:
        """Call `done` once the batch is in the log. If it is there already: False, and `done` is not called."""
        if not self.is_acknowledged:
            self._waiting.append(done)
        return not self.is_acknowledged

    def acknowledged(self) -> None:
        self.is_acknowledged = True
        self.sent.acknowledged(self)
        for done in self._waiting:
            done()
        self._waiting.clear()


class Founds:
    """The open batches.

    Args:
        send: Takes a batch that is full or flushed, and calls its `acknowledged` once it is in the log.
    """

    def __init__(self, send: Callable[[Batch], None]) -> None:
        self._send = send
        self._open: dict[tuple[int, int], Batch] = {}
        self._counting: dict[int, Batch] = {}

    def put(self, job: str, epoch: int, sent: Sent, link: Outlink, found: FoundUrl) -> Batch:
        """Put one link into its batch; does not check whether it was sent before."""
        place = link.place
        key = (id(sent), place.partition)
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = Batch(job, epoch, place.domain, place.partition, sent)
        elif batch.domain != place.domain:
            batch.domain = None
        batch.urls.append(found)
        batch.links.append((link.fingerprint, found.depth))
        batch.size_bytes += len(found.url) + len(found.parent) + _FOUND_BYTES
        if found.request is not None:
            batch.size_bytes += len(packed(found.request))
        sent.on_way[link.fingerprint] = (found.depth, batch)
        if batch.is_full:
            del self._open[key]
            self._send(batch)
        return batch

    def count(self, job: str, epoch: int, sent: Sent, partition: int, dropped: Mapping[str, int]) -> Batch:
        """Add counts of refused links to an open batch of the job; the page must wait for that batch.

        Any partition will do, because a job's counts are summed over all partitions. So most counts cost no record.

        Args:
            partition: Where to open a batch if the job has none.
        """
        batch = self._counting.get(id(sent))
        if batch is None or self._open.get((id(sent), batch.partition)) is not batch:
            batch = next((one for one in self._open.values() if one.sent is sent), None)
            if batch is None:
                batch = self._open[id(sent), partition] = Batch(job, epoch, None, partition, sent)
            self._counting[id(sent)] = batch
        for rule, count in dropped.items():
            batch.dropped[rule] = batch.dropped.get(rule, 0) + count
        return batch

    def flush(self) -> None:
        """Send all that is open."""
        self._counting.clear()
        opened, self._open = self._open, {}
        for batch in opened.values():
            self._send(batch)
