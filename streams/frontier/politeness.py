"""How long a host rests: by our own delay, by robots.txt's Crawl-delay, and by Retry-After. Pure: time is `now`."""

from datetime import UTC
from email.utils import parsedate_to_datetime

TURNED_AWAY = frozenset({429, 503})
"""Statuses that concern the whole host: it rests, not only the URL."""


def crawl_delay_s(floor_s: float, wish_s: float | None, most_s: float) -> float:
    """Seconds between two requests to a host.

    Args:
        floor_s: Our own politeness.
        wish_s: robots.txt's Crawl-delay; raises the floor, never lowers it.
        most_s: The longest wish that is granted.
    """
    if wish_s is None or wish_s <= floor_s:
        return floor_s
    return max(floor_s, min(wish_s, most_s))


def backoff_s(failures: int, base_s: float, most_s: float, jitter: float) -> float:
    """Wait after `failures` failures in a row: `base_s` doubled with each further one, spread by ±25 %.

    Args:
        failures: >= 1.
        jitter: In [0, 1), drawn by the caller.
    """
    wait: float = min(base_s * 2.0 ** min(failures - 1, 30), most_s)
    return wait * (0.75 + 0.5 * jitter)


def retry_after_s(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110 10.2.3), as a number or a date; None if absent or invalid.

    Args:
        now: UTC epoch seconds.
    """
    if not header:
        return None
    text = header.strip()
    whole, point, part = text.partition(".")  # the RFC has no fractions, but servers send them
    if text.isascii() and whole.isdigit() and (part.isdigit() or not point):
        return float(f"{whole[:10]}.{part[:3]}")
    try:
        at = parsedate_to_datetime(text)
        if at.tzinfo is None:  # its zone is missing, or -0000: an HTTP date is in GMT (RFC 9110 5.6.7)
            at = at.replace(tzinfo=UTC)
        return max(at.timestamp() - now, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
