"""robots.txt by RFC 9309.

    the file ─► robots: the group of our name ─► RobotsRules ─► may this path be asked? how long between requests?
                  │                                 │
                  └─ robots_patterns: `*`, `$`      └─ SharedRules: hosts with the same file share one object

What an answer for the file means: `streams/fetch/robots_answer.py`. Pure.
"""

from .robots import MAX_BYTES, MAX_TTL_S, RobotsRules, SharedRules

__all__ = [
    "MAX_BYTES",
    "MAX_TTL_S",
    "RobotsRules",
    "SharedRules",
]
