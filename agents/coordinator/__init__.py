"""The coordinator: a duty of the fetch worker that owns partition 0 of crawl.urls; it moves with the partition.

    fold of partition 0: an order was taken or refused ─► copies: the record to the other partitions
                                                            └► acknowledged ─► crawl.control: JobCopy, Finished
    crawl.control ─► FollowedJobs ─┐
    crawl.progress ────────────────┴─► following (a thread) ─► Dues ─► an order to partition 0, or an end
    crawl.control ─► job_hooks ─► a call at the end of a job ─► its note to crawl.control
    crawl.control ─► schedules ─► the planned time to crawl.control ─► scheduled_run (a thread) ─► jobs and their seeds

`streams/jobs/due.py` decides. `coordinator.py` opens with the rules, the table of events, and the worst race.
"""

from . import coordinator
from .coordinator import Coordinator

__all__ = ["Coordinator", "coordinator"]
