"""How long a host rests: by our own delay, by robots.txt's Crawl-delay, and by Retry-After. Pure: time is `now`."""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import log2

TURNED_AWAY = frozenset({429, 503})  # Statuses that concern the whole host: it rests, not only the URL

_LEAST_BASE_S = 0.001


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


def failures_of(rest_s: float, base_s: float) -> int:
    """Failures in a row after which a host rests so long: the inverse of `backoff_s`, whatever its jitter.

    Args:
        rest_s: Above its limit the number is that of the limit.
        base_s: That of `backoff_s`; of several the shortest one gives the greatest number.
    """
    return 1 + round(log2(max(rest_s / max(base_s, _LEAST_BASE_S), 1.0)))


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


# How long the hosts of a partition rest, kept while a rebalance takes the partition away and gives it back.


class KeptRests:
    """Rests of the hosts of given-up partitions, until the partitions come back or another generation owns them."""

    def __init__(self) -> None:
        self._generation = -1
        self._rests: dict[int, Mapping[int, float]] = {}

    def assigned(self, generation: int, partitions: set[int]) -> None:
        """This worker owns these partitions from this generation of the group on."""
        follows = generation == self._generation + 1
        kept = self._rests.items() if follows else ()
        self._rests = {partition: rests for partition, rests in kept if partition in partitions}
        self._generation = generation

    def is_kept(self, partition: int) -> bool:
        """Whether no other worker can have owned a given-up partition since."""
        return partition in self._rests

    def given_up(self, partition: int, rests: Mapping[int, float]) -> None:
        """Keep the rests of a partition without requests in flight: times by the host's hash."""
        self._rests[partition] = rests

    def taken_up(self, partition: int) -> Mapping[int, float] | None:
        """Take the rests back; None where another worker may have asked the hosts since."""
        return self._rests.pop(partition, None)
