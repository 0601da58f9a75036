"""When a job's queue may be fetched, if nothing more is found. Pure.

queue / pace of the last minute ─┬─► the later one: at least so long
longest queues × delay ──────────┘   and how many hosts decide that
"""

from collections.abc import Sequence

import msgspec

from crawlog.schemas.progress import JobCounts

from .paces import JobPace

LEAST_S = 10.0  # A job that was watched for a shorter time gets no estimate, seconds


class EndEstimate(msgspec.Struct, frozen=True):
    """How long a job needs at least.

    Attributes:
        left_s: Seconds until all that is queued is fetched.
        hosts: Number of hosts whose queues take longer than the rest; 0 if the pace of all decides.
    """

    left_s: float
    hosts: int = 0


def estimate(counts: JobCounts, pace: JobPace, queues: Sequence[int], delay_s: float) -> EndEstimate | None:
    """The estimate; None if nothing is queued, or nobody can know.

    Args:
        queues: The longest queues of hosts; none if other jobs have URLs in them.
        delay_s: Least time between two requests to a host, divided by the requests at a time.
    """
    if not counts.queued or counts.paused or counts.needs or not pace.pages or pace.over_s < LEAST_S:
        return None
    by_pace = counts.queued / pace.pages * 60
    longest = [queued * delay_s for queued in queues if queued * delay_s > by_pace]
    return EndEstimate(round(max(longest, default=by_pace), 1), len(longest))
