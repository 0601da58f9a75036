"""Writes the figures of this worker's hosts to crawl.hosts, one bucket at a time, for people.

    requests ─► HostLedger ─┐
    offset of the fold ─────┼─► Round: which bucket is due? ─► HostLedger.figures ─► changed? ─► crawl.hosts
    commands ───────────────┘                                     ▲─── the record before, in the cache column

A partition writes at most one bucket a second, and all of them together take at most 1/`SHARE` of a CPU. So the figures
of 100,000 hosts are fresh within some minutes, those of few busy hosts within seconds. At rest nothing is written.
"""

import asyncio
import time
from collections.abc import Collection
from math import inf
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas import hosts as h

if TYPE_CHECKING:
    from crawlog.streams.state import Partition

    from .frontier_agent import OwnedFrontier

log = structlog.get_logger()

EVERY_S = 1.0  # Time between two buckets of a partition, at least

SHARE = 100  # Buckets take at most 1/100 of a CPU, however many hosts there are

Mark = tuple[int, int]  # What a bucket's figures depend on, beside requests: the fold's offset, changes of commands


class Round:
    """Which bucket of a partition is written next. Pure.

    Buckets whose hosts were asked, and all others if the fold has moved, have turns: a busy bucket holds up no other.

    Args:
        began: When the partition became this worker's.

    Attributes:
        written: When a bucket was looked at last, by the same steady clock.
        unsettled: Buckets whose last record has a rate or requests in flight: another one takes these back.
    """

    def __init__(self, began: float = 0.0) -> None:
        self.began = began
        self.written: dict[int, float] = {}
        self.unsettled: set[int] = set()
        self._marks: dict[int, Mark] = {}
        self._next = 0
        self._complete: Mark | None = None
        self._is_others_turn = False

    def take(self, asked: Collection[int], mark: Mark) -> int | None:
        """The next bucket; None if no figure can have changed.

        Args:
            asked: Buckets with hosts that were asked.
        """
        busy = min({*asked, *self.unsettled}, key=lambda bucket: self.written.get(bucket, -inf), default=None)
        self._is_others_turn = not self._is_others_turn
        other = self._other(mark) if busy is None or self._is_others_turn else None
        bucket = busy if other is None else other
        if bucket is not None:
            self._marks[bucket] = mark
        return bucket

    def _other(self, mark: Mark) -> int | None:
        """The next bucket in order that was not looked at since the mark."""
        if self._complete == mark:
            return None
        for step in range(h.BUCKETS):
            bucket = (self._next + step) % h.BUCKETS
            if self._marks.get(bucket) != mark:
                self._next = bucket + 1
                return bucket
        self._complete = mark
        return None


class HostReports:
    """The figures of one worker's hosts."""

    def __init__(self, stage: "OwnedFrontier") -> None:
        self._stage = stage
        self._rounds: dict[int, tuple[Partition, Round]] = {}

    async def run(self) -> None:
        """Until the worker ends. An error is only logged: no crawl ends for the sake of its figures."""
        while True:
            numbers = list(self._stage.live)
            rest_s = EVERY_S / max(len(numbers), 1)
            self._rounds = {number: one for number, one in self._rounds.items() if number in self._stage.live}
            for number in numbers or [-1]:
                began_s = time.thread_time()
                try:
                    self.report(number)
                except Exception as error:
                    log.exception("hosts_unreported", partition=number, error=repr(error))
                await asyncio.sleep(max(rest_s, SHARE * (time.thread_time() - began_s)))

    def report(self, number: int) -> None:
        """Write the bucket of a partition that is due, if there is one and it has changed."""
        stage = self._stage
        partition, owned = stage.live.get(number), stage.frontier.owned.get(number)
        if partition is None or owned is None:
            return
        now = time.monotonic()
        known, turns = self._rounds.get(number, (None, Round()))
        if known is not partition:
            turns = Round(now)
            self._rounds[number] = partition, turns
        bucket = turns.take(stage.frontier.ledger.news.get(number, {}).keys(), (partition.offset, stage.obeyed))
        if bucket is None:
            return
        cached = owned.cached(key := f"hosts {bucket}".encode())
        before = (h.decode(cached) if cached else None) or h.HostBucket([])
        since_s = now - turns.written.get(bucket, turns.began)
        figures = stage.frontier.ledger.figures(owned, bucket, before.hosts, since_s)
        is_moving = any(one.rate or one.in_flight for one in figures.hosts)
        (turns.unsettled.add if is_moving else turns.unsettled.discard)(bucket)
        value = h.encode(figures)
        is_new = bucket not in turns.written and bool(figures.hosts)  # perhaps the topic was lost
        turns.written[bucket] = now
        if is_new or value != (cached or h.encode(before)):
            owned.remember(key, value)
            record = value if figures.hosts else None
            stage.producer.send(stage.names.hosts, record, key=h.key(number, bucket), partition=0)
