"""The coordinator: a duty of the fetch worker that owns partition 0 of crawl.urls; it moves with the partition.

    fold of partition 0: an order was taken or refused ─► copies: the job's record to the other partitions
                                                            └► acknowledged ─► crawl.control: JobCopy, Finished
    crawl.control ─► FollowedJobs ─┐
    crawl.progress ────────────────┴─► following (a thread) ─► Dues ─► an order to partition 0, or an end

The decisions are in `streams/jobs/due.py`. Each write may be repeated: orders name the revision that was looked at,
copies of an older revision change nothing, and an end names its revision.
"""

from . import coordinator
from .coordinator import Coordinator

__all__ = ["Coordinator", "coordinator"]
