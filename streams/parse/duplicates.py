"""Finds pages that a host sent before under another URL: soft errors, print views, traps with ordinary URLs.

This is an option. The row of a duplicate is written as usual, but its links are not followed. Links of the first such
page are always followed. The memory is bounded and lies in this process only, so another worker or a replay may follow
links that this worker skipped.
"""

from collections import OrderedDict

import xxhash

from crawlog.streams.html import simhash_of

HOSTS = 4096
"""Hosts remembered; the least recently used one is forgotten first."""

PAGES = 256
"""Latest pages remembered of one host."""

NEAR_BITS = 3
"""Bits of 64 in which the sketches of two near duplicates may differ (Manku, Jain, Das Sarma: WWW 2007)."""


class Twins:
    """The pages that hosts sent lately.

    Args:
        near: Whether near duplicates count too, not only identical pages.
    """

    def __init__(self, *, near: bool) -> None:
        self._near = near
        self._hosts: OrderedDict[str, OrderedDict[int, str]] = OrderedDict()

    def is_one(self, host: str, url: str, body: bytes) -> bool:
        """Whether the host sent this page under another URL before; a new page is remembered."""
        known = self._hosts.setdefault(host, OrderedDict())
        self._hosts.move_to_end(host)
        if len(self._hosts) > HOSTS:
            self._hosts.popitem(last=False)
        sketch = simhash_of(body) if self._near else 0
        mark = sketch or xxhash.xxh3_64_intdigest(body)  # a page without words (images, frames) has no sketch
        first = known.get(mark)
        if first is None and sketch:
            first = next((other for seen, other in known.items() if (seen ^ mark).bit_count() <= NEAR_BITS), None)
        if first is not None:
            return first != url
        known[mark] = url
        if len(known) > PAGES:
            known.popitem(last=False)
        return False
