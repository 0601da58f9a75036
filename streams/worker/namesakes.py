"""Notices another worker of this one's name.

The name is the id of the static member, so each join puts the other one out:

    1 A is a member → 2 B joins by the same name → 3 A's next heartbeat is refused, A joins → 4 B's is refused, …

None of them gets far, for ever. The later one is to end; it has just become a member when this begins. Other losses
of the membership do not count: a session that timed out has outlived the lease, and a broker that lost the group says
so once.
"""

NEW_S = 20.0
"""A member for less than this is the later one: its first loss comes within some 2 s of its join, or 7 s if the other
one must end its requests first."""

AGAIN_S = 10.0
"""Longest time between two losses by one namesake."""

LOSSES = 3
"""Losses in a row, of which one may have other reasons, such as a namesake that is about to stop."""


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
