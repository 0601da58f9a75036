"""Pages that a host sent before under another URL: soft errors, print views, traps whose URLs look honest.

An option: the row of such a page is written like any other, but its links are not followed. The memory is bounded and
in this process only, so another worker, or a replay, may follow links that this one did not. The first page of its kind
is always followed.
"""

from collections import OrderedDict

import xxhash

from crawlog.streams.html import simhash_of

HOSTS = 4096
"""Hosts remembered; the one asked for longest ago goes first."""

PAGES = 256
"""Pages remembered of one host, the latest ones."""

NEAR_BITS = 3
"""Bits of 64 in which two pages that are nearly the same may differ (Manku, Jain, Das Sarma: WWW 2007)."""


class Twins:
    """What hosts sent lately.

    Args:
        near: Whether nearly the same counts, beside the very same.
    """

    def __init__(self, *, near: bool) -> None:
        self._near = near
        self._hosts: OrderedDict[str, OrderedDict[int, str]] = OrderedDict()

    def is_one(self, host: str, url: str, body: bytes) -> bool:
        """Whether the host sent this page under another URL before; if not, it is remembered."""
        known = self._hosts.setdefault(host, OrderedDict())
        self._hosts.move_to_end(host)
        if len(self._hosts) > HOSTS:
            self._hosts.popitem(last=False)
        sketch = simhash_of(body) if self._near else 0
        mark = sketch or xxhash.xxh3_64_intdigest(body)  # pages without words, of images or frames, have no sketch
        first = known.get(mark)
        if first is None and sketch:
            first = next((other for seen, other in known.items() if (seen ^ mark).bit_count() <= NEAR_BITS), None)
        if first is not None:
            return first != url
        known[mark] = url
        if len(known) > PAGES:
            known.popitem(last=False)
        return False
