"""Which jobs a fetch worker's reports name: a log may hold thousands of finished ones. Pure.

A report names every open job, and the finished ones that crawl.control named last. A command that needs the counts of
a finished job writes the job's copy to crawl.control once more; every worker reads that from its beginning.
"""

from collections import OrderedDict

from crawlog.schemas.control import Control, Finished, JobCopy, Join

MOST_FINISHED = 50
"""Finished jobs that a report names: 10 kB of counts at most, where names are short."""


class ReportedJobs:
    """The finished jobs, in the order in which crawl.control named them last."""

    def __init__(self) -> None:
        self._finished: OrderedDict[str, int] = OrderedDict()  # by name: the epoch in which it ended
        self._left_out: frozenset[str] | None = frozenset()

    def heard(self, record: Control) -> None:
        """Take the next record of crawl.control."""
        if isinstance(record, Finished):
            self._finished[record.job] = record.epoch
            self._finished.move_to_end(record.job)
            self._left_out = None
        elif isinstance(record, JobCopy | Join) and record.job in self._finished:
            if isinstance(record, JobCopy) and record.epoch > self._finished[record.job]:
                del self._finished[record.job]
            else:
                self._finished.move_to_end(record.job)
            self._left_out = None

    @property
    def left_out(self) -> frozenset[str]:
        """Jobs that a report leaves out unless they have something to do."""
        if self._left_out is None:
            count = max(len(self._finished) - MOST_FINISHED, 0)
            self._left_out = frozenset(name for name, _ in zip(self._finished, range(count), strict=False))
        return self._left_out
