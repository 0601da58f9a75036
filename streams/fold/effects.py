"""What a record asks of the outside: to forward URLs, to send dead letters, to fold again, to answer orders."""

import msgspec

from crawlog.schemas import urls as u

from .rows import Skip


class Answered(msgspec.Struct, frozen=True):
    """An order that was folded.

    Attributes:
        offset: Of its record.
        refusal: Why nothing was changed; empty if the order was taken.
    """

    job: str
    offset: int
    refusal: str = ""


class Effects(msgspec.Struct):
    """What the partition must do after a record, live or in a restore; doing it twice is harmless.

    Attributes:
        forward: URLs that belong to another partition, with that partition, one record each, `fwd` counted up.
        dead: Why the record, or a part of it, goes to crawl.dead.
        rewind: The range that the record takes back. Nothing was changed yet: the state must be folded again, with
            `effective(fold.skipped, rewind)`.
        answered: Orders that were taken or refused (partition 0). `JobState.answers` keeps the last one of each job.
    """

    forward: dict[int, u.UrlsRecord] = {}
    dead: list[str] = []
    rewind: Skip | None = None
    answered: list[Answered] = []


NO_EFFECTS = Effects()
"""Of nearly every record; shared, so never changed."""


def effective(skipped: tuple[Skip, ...], rewind: Skip) -> tuple[Skip, ...]:
    """The skipped ranges after a rewind was met; ranges inside it no longer count, ranges after it still do."""
    before = tuple(skip for skip in skipped if skip.end < rewind.start)
    return (*before, rewind, *(skip for skip in skipped if skip.start > rewind.end))
