"""The open dead letters by job: crawl.dead is read once, and then as far as it has grown."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from crawlog.streams.cluster import log_bounds
from crawlog.streams.dead_letters import Letters
from crawlog.streams.log import read_records, record_headers

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class OpenLetters:
    """Counts open letters. A thread at a time reads.

    Args:
        topic: crawl.dead.
    """

    def __init__(self, settings: "Settings", topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._lock = threading.Lock()
        self._letters = Letters()
        self._next = 0

    def by_job(self, since: Mapping[str, float]) -> Counter[str]:
        """Open letters of each job now, those of no job under an empty name.

        Args:
            since: By job, the time from which on letters count, UTC epoch seconds: older ones are of an earlier epoch.

        Raises: EngineError: the broker does not answer.
        """
        with self._lock:
            start, end = log_bounds(self._settings, self._topic, [0])[0]
            for record in read_records(self._settings, self._topic, 0, max(self._next, start), end):
                at, offset = record.timestamp()[1] / 1000, record.offset() or 0
                self._letters.take(offset, at, record_headers(record), record.value())
                self._next = offset + 1
            letters = [one for one in self._letters.all.values() if one.offset >= start and not one.handled]
        return Counter(one.job for one in letters if one.at >= since.get(one.job, 0.0))
