"""What a record asks of the outside world."""

import msgspec

from crawlog.schemas import urls as u

from .rows import Skip


class Effects(msgspec.Struct):
    """What a record asks of the outside, in live reading and in restore alike; doing it twice is harmless.

    Attributes:
        forward: URLs that belong to another partition, with that partition, one record each, `fwd` counted up.
        dead: Why the record, or a part of it, goes to crawl.dead.
        rewind: What the record takes back of what was folded. It changed nothing; the state is to be folded again,
            with `effective(fold.skipped, rewind)`.
    """

    forward: dict[int, u.UrlsRecord] = {}
    dead: list[str] = []
    rewind: Skip | None = None


NO_EFFECTS = Effects()
"""Of nearly every record; shared, so never changed."""


def effective(skipped: tuple[Skip, ...], rewind: Skip) -> tuple[Skip, ...]:
    """The ranges that count once a rewind has been met: those behind it too, of rewinds that were met before."""
    before = tuple(skip for skip in skipped if skip.end < rewind.start)
    return (*before, rewind, *(skip for skip in skipped if skip.start > rewind.end))
