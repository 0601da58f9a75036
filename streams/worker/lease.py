"""The lease on a worker's partitions: the time until which no other worker can own them. A second worker of its name.

Rules

    1  The broker moves a member's partitions one session timeout after it received the last heartbeat. The lease counts
       from when that heartbeat was *sent*, which is earlier, and ends a margin before.
    2  An answer renews the lease from the time of its request, not from now. The clock counts suspended time.
    3  The lease is dropped at once when the broker no longer knows the member, and before the worker leaves.
    4  What must not happen twice asks for the lease last: each request directly before it is written to the socket
       (`agents/client/protocol.py`), and the coordinator's orders. Records of the log need none: they may come twice.

The worst race: the owner sleeps with an answer unread.

    1  A sends a heartbeat, and the broker answers. A is stopped (SIGSTOP, a laptop's lid) before it reads that.
    2  The session ends. The broker gives A's partitions to B, which restores them and asks their hosts.
    3  A goes on. It reads the answer of 1, a good one: the lease runs from 1 (rule 2), and has run out.
    4  A's tasks are about to write their requests: the check in the transport stops each (rule 4).
    5  A's next heartbeat is refused: it drops the lease (rule 3), closes its states and joins again.
"""

import time

MARGIN_S = 0.5  # The lease ends this long before the session, so that work begun after a check can end

_CLOCK = getattr(
    time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC
)  # macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep


def boottime() -> float:
    """Seconds on the clock of leases; suspended time counts."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """Whether the partitions are still ours; written by the consumer's thread, read by any.

    One float is all the state, so a read is atomic.

    Args:
        session_timeout_s: The group's session timeout.
    """

    def __init__(self, session_timeout_s: float) -> None:
        self._length_s = session_timeout_s - MARGIN_S
        self._until = 0.0

    def held(self, now: float) -> bool:
        """True while no other worker can own our partitions; `now` is `boottime()`."""
        return now < self._until

    def left_s(self, now: float) -> float:
        """Seconds until the lease runs out, 0 when it has."""
        return max(0.0, self._until - now)

    def renew(self, sent_at: float) -> None:
        """Renew from the time of a request: its answer counts us as a member."""
        self._until = max(self._until, sent_at + self._length_s)

    def drop(self) -> None:
        """End the lease: the broker said that we are no member, or we are leaving."""
        self._until = 0.0


# A member for less than this is the later one: its first loss comes within some 2 s of its join, or 7 s if the other
# one must end its requests first.
NEW_S = 20.0

AGAIN_S = 10.0  # Longest time between two losses by one namesake

LOSSES = 3  # Losses in a row, of which one may have other reasons, such as a namesake that is about to stop


class Namesakes:
    """Counts how often this worker was put out; times are `boottime()`."""

    def __init__(self) -> None:
        self._joined_at: float | None = None
        self._lost_at = 0.0
        self._began_at = 0.0
        self._count = 0

    def joined(self, now: float) -> None:
        """The broker counts this worker as a member."""
        if self._joined_at is None:
            self._joined_at = now

    def lost(self, now: float) -> bool:
        """The broker does not know this member, whose lease is held. True if an earlier namesake puts it out."""
        if not self._count or now - self._lost_at > AGAIN_S:
            self._began_at, self._count = now, 0
        self._lost_at = now
        self._count += 1
        is_new = self._joined_at is not None and self._began_at - self._joined_at < NEW_S
        return is_new and self._count >= LOSSES
