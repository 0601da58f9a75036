"""When a URL that is done is due again: `recrawl.age`, an age of its own, a new `itag`, a newer `lastmod`. Pure.

found ─► of_found ─► row ─► done ─► after_done ─► waits in the due-time index ─► due: dispatched as any other URL
▲                             └──── change ─► after_change: half the interval, or half as long again
found again ─► after_found: a new version is due now, the same one later
"""

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.requests import unpacked

from . import rows as r

MAX_ITAG_CHARS = 200  # A longer itag is cut: it is kept in each row

SHORTER, LONGER = 0.5, 1.5  # Factors of the interval after a page that changed, and after one that did not


def of_found(rules: u.RecrawlRules, found: u.FoundUrl, was: r.Recurrence | None = None) -> r.Recurrence | None:
    """What a new row knows, of a job with these rules; `done_at` is 0, so the row counts as queued.

    Args:
        was: What is known of the URL from before.
    """
    if rules.age is None:
        return None
    own = was or r.Recurrence()
    age_s = max(found.age, 0.0) or own.age_s
    return msgspec.structs.replace(_found_as(own, found), done_at=0.0, age_s=age_s)


def after_done(rules: u.RecrawlRules, row: r.QueueRow, result: u.Result, at: float) -> r.Recurrence | None:
    """When a URL with a final result is due again; None for never.

    A request that changes something, is never sent twice, or was sent although it was known is not repeated: each
    `start` that begins again would add one. One that expired is over.
    """
    if rules.age is None or result.reason == EXPIRED or not _is_repeatable(row):
        return None
    known = row.again or r.Recurrence()
    every_s = known.age_s or rules.age
    if rules.adaptive:
        every_s = _bounded(rules, (known.every_s or every_s) * (LONGER if result.status == "not_modified" else 1))
    return msgspec.structs.replace(known, done_at=max(at, 1e-3), every_s=every_s)


def after_change(rules: u.RecrawlRules, known: r.Recurrence, change: u.PageChange) -> r.Recurrence:
    """What is known after a page was parsed. A page that is parsed once more does not change the interval again."""
    every_s = known.every_s or known.age_s or rules.age or 0.0
    if rules.adaptive and known.digest and change.page > known.page:
        every_s = _bounded(rules, every_s * (LONGER if change.digest == known.digest else SHORTER))
    return msgspec.structs.replace(known, every_s=every_s, digest=change.digest, item=change.item, page=change.page)


def after_found(
    rules: u.RecrawlRules, row: r.QueueRow, known: r.Recurrence, found: u.FoundUrl, at: float
) -> tuple[r.Recurrence, float] | None:
    """What is known of a URL that was found again, and how long after it was done it is due; None for no change.

    The same version as before postpones it: it counts as seen when it was found. One that is due may be in flight.

    Args:
        at: When it was found, UTC epoch seconds; 0 if unknown.
    """
    due_s = row.due_ms / 1000 - known.done_at
    if row.attempt or at - known.done_at >= due_s:
        return None
    itag = found.itag[:MAX_ITAG_CHARS]
    after_s = min(found.age or due_s, due_s)
    if (itag and itag != known.itag) or found.lastmod > max(known.done_at, known.lastmod):
        after_s = 0.0
    elif (itag or 0 < found.lastmod <= known.done_at) and due_s >= known.every_s - 1e-3:
        after_s = max(due_s, min(at - known.done_at + known.every_s, rules.max_age))
    return _found_as(known, found), after_s


def is_regular(row: r.QueueRow, known: r.Recurrence, at: float) -> bool:
    """Whether a URL waits, at a time, for the end of its interval: not for a next attempt, and for nothing earlier."""
    is_waiting = row.is_again and not row.attempt and at * 1000 < row.due_ms
    return is_waiting and abs(row.due_ms / 1000 - known.done_at - known.every_s) < 2e-3


def _found_as(known: r.Recurrence, found: u.FoundUrl) -> r.Recurrence:
    itag, lastmod = found.itag[:MAX_ITAG_CHARS] or known.itag, max(found.lastmod, known.lastmod)
    return msgspec.structs.replace(known, itag=itag, lastmod=lastmod)


def _bounded(rules: u.RecrawlRules, every_s: float) -> float:
    return min(max(every_s, rules.min_age), rules.max_age)


def _is_repeatable(row: r.QueueRow) -> bool:
    request = unpacked(row.request)
    is_once = request is not None and (request.once or request.unfiltered)
    return request is None or (request.method.upper() in ("GET", "HEAD") and not is_once)


EXPIRED = "expired"  # Reason of a URL that was not fetched before its `expires`
