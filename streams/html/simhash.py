"""Pages that a host sent before under another URL: soft errors, print views, traps whose URLs look honest.

An option, for parse: the row of such a page is written like any other, its links are not followed. What is
remembered is bounded and in memory only, so another worker, or a replay, may follow what this one did not; the first
page of its kind is always followed.
"""

import re
from collections import OrderedDict
from itertools import pairwise

import xxhash

HOSTS = 4096
"""Hosts remembered; the one asked for longest ago goes first."""

PAGES = 256
"""Pages remembered of one host, the latest ones."""

NEAR_BITS = 3
"""Bits of 64 in which two pages that are nearly the same may differ (Manku, Jain, Das Sarma: WWW 2007)."""

MAX_WORDS = 4096
"""Words of a page that its sketch is made of: 4 ms at most."""

_LANE_BITS = 16
_TAG = re.compile(rb"<(script|style)\b.*?(?:</\1|\Z)|<[^<>]*>?", re.DOTALL | re.IGNORECASE)
_WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]+")
_LANES = tuple(sum(1 << (_LANE_BITS * bit) for bit in range(8) if byte >> bit & 1) for byte in range(256))
"""Each bit of a byte as a number of its own, so that one addition counts eight of them."""


def simhash_of(body: bytes) -> int:
    """A 64-bit sketch of a page's text, by pairs of words: pages that share most of them differ in few bits."""
    words = _WORD.findall(_TAG.sub(b" ", body[: 16 * MAX_WORDS]))[:MAX_WORDS]
    pairs = {first + b" " + second for first, second in pairwise(words)} or set(words)
    sums = [0] * 8
    for pair in pairs:
        for at, byte in enumerate(xxhash.xxh3_64_digest(pair)):
            sums[at] += _LANES[byte]
    mask = (1 << _LANE_BITS) - 1
    half = len(pairs) // 2
    bits = (lanes >> (_LANE_BITS * bit) & mask > half for lanes in sums for bit in range(8))
    return sum(1 << at for at, is_set in enumerate(bits) if is_set)


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
