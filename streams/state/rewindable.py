"""Looks, before crawl.urls is rewound, whether the workers can follow.

A state that has folded what a rewind takes back is folded again from a place before it: from offset 0, or from a
snapshot. If the log no longer begins at 0, only a snapshot is left. The rewind's record stays in the log, so a worker
that cannot follow it could never go on.
"""

from collections.abc import Mapping

from crawlog.streams.cluster import log_bounds, log_identity
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.log import Topics
from crawlog.streams.settings import Settings

from .partition import fold_version
from .snapshots import Manifest, Snapshots, fitting
from .stores import store_of


def see_rewindable(settings: Settings, to: Mapping[int, int]) -> None:
    """See that each partition can be folded again up to an offset.

    Args:
        to: By partition of crawl.urls, the offset of the first record that does not count any more. Only partitions
            whose states have folded it.

    Raises:
        Misconfigured: The log has lost its first records, and no snapshot lies between its start and the offset.
        EngineError: The log or the store of the snapshots does not answer.
    """
    if not to:
        return
    topic = Topics(settings.kafka.prefix).urls
    trimmed = {number: low for number, (low, _) in log_bounds(settings, topic, list(to)).items() if low}
    if not trimmed:
        return
    kept = settings.snapshots
    snapshots = Snapshots(store_of(kept.to), log_identity(settings, topic)) if kept.to else None
    for number, low in trimmed.items():
        found = _found(snapshots, number)
        if not _starts(found, low, to[number]):
            later = [one.offset for one in _starts(found, low)]
            raise Misconfigured(
                f"{topic}[{number}] begins at offset {low}, and no snapshot lies between there and {to[number]}, so the"
                " crawl's state cannot be folded again to there. "
                + (
                    f"Rewind that partition to {min(later)} or later"
                    if later
                    else "Name snapshots with -s snapshots.to=DIR"
                )
                + ", or crawl a job anew with `crawlog run --fresh`."
            )


def _found(snapshots: Snapshots | None, number: int) -> list[Manifest]:
    if snapshots is None:
        return []
    try:
        return snapshots.of(number)
    except Exception as error:  # a store may raise anything
        raise EngineError(f"the snapshots of partition {number} cannot be read: {error}") from error


def _starts(found: list[Manifest], low: int, high: int | None = None) -> list[Manifest]:
    """The snapshots that a fold to `high` may begin from, as far as the newest one knows of earlier rewinds."""
    known = found[0].meta.skipped if found else ()
    skipped = tuple(skip for skip in known if high is None or skip.end < high)
    return fitting(found, fold_version(), low=low, high=high, skipped=skipped)
