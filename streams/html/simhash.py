"""A sketch of a page's text: two pages that share most of it differ in few bits."""

import re
from itertools import pairwise

import xxhash

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
