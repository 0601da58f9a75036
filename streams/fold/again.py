"""When a URL that is done is due again: `recrawl.age`, an age of its own, a new `itag`, a newer `lastmod`. Pure.

found ─► of_found ─► row ─► done ─► after_done ─► waits in the due-time index ─► due: dispatched as any other URL
▲                │
found again ─► is_due_at_once ─────────┘ a new version: due now
"""

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.requests import unpacked

from . import rows as r

MAX_ITAG_CHARS = 200  # A longer itag is cut: it is kept in each row


def of_found(rules: u.RecrawlRules, found: u.FoundUrl, was: r.Recurrence | None = None) -> r.Recurrence | None:
    """What a new row knows, of a job with these rules; `done_at` is 0, so the row counts as queued.

    Args:
        was: What is known of the URL from before.
    """
    if rules.age is None:
        return None
    own = was or r.Recurrence()
    age_s, itag = max(found.age, 0.0) or own.age_s, found.itag[:MAX_ITAG_CHARS] or own.itag
    return msgspec.structs.replace(own, done_at=0.0, age_s=age_s, itag=itag)


def after_done(rules: u.RecrawlRules, row: r.QueueRow, result: u.Result, at: float) -> r.Recurrence | None:
    """When a URL with a final result is due again; None for never.

    A request that changes something, is never sent twice, or was sent although it was known is not repeated: each
    `start` that begins again would add one. One that expired is over.
    """
    if rules.age is None or result.reason == EXPIRED or not _is_repeatable(row):
        return None
    known = row.again or r.Recurrence()
    return msgspec.structs.replace(known, done_at=max(at, 1e-3), every_s=known.age_s or rules.age)


def is_due_at_once(known: r.Recurrence, found: u.FoundUrl) -> bool:
    """Whether a found of a URL that is done makes it due now: the page has another version, or changed since."""
    return bool(found.itag and found.itag[:MAX_ITAG_CHARS] != known.itag) or found.lastmod > known.done_at


def _is_repeatable(row: r.QueueRow) -> bool:
    request = unpacked(row.request)
    is_once = request is not None and (request.once or request.unfiltered)
    return request is None or (request.method.upper() in ("GET", "HEAD") and not is_once)


EXPIRED = "expired"  # Reason of a URL that was not fetched before its `expires`
