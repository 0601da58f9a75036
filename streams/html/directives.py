"""What a page asks of robots beside robots.txt, by `meta` robots and X-Robots-Tag, and where a refresh leads.

Read only where a job asks for it (`robots.meta`, `links.sources`).
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Directives that contain a colon, which does not follow the name of a robot.
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})

_ROBOT = re.compile(r"\s*+([^\s:,][^:,]*+):")
_REFRESH = re.compile(
    r"[\t\n\f\r ]*+(?:[0-9][0-9.]*+|\.[0-9.]*+)(?=[;,\t\n\f\r ])[\t\n\f\r ]*+[;,]?+[\t\n\f\r ]*+"
    r"(?:url[\t\n\f\r ]*+=[\t\n\f\r ]*+)?+(?:'([^']*)|\"([^\"]*)|(.+))",
    re.IGNORECASE | re.DOTALL,
)


class Directives(NamedTuple):
    """The directives of a page to us; both are false without any."""

    noindex: bool
    nofollow: bool


NOTHING_SAID = Directives(noindex=False, nofollow=False)


def directives_of(x_robots: Iterable[str], metas: Iterable[tuple[str, str]], token: str) -> Directives:
    """The strictest of the directives to all robots and to us.

    Args:
        x_robots: Values of X-Robots-Tag, one header each; `NAME: …` speaks to that robot only.
        metas: Name and content of the page's `meta` elements, as written.
        token: Our product token.
    """
    ours = token.lower()
    said: set[str] = set()
    for value in x_robots:
        named = _ROBOT.match(value)
        robot = named[1].strip().lower() if named is not None else ""
        if named is None or robot.split()[-1] in _WITH_VALUE:
            said.update(_words(value))
        elif robot in (ours, "*"):
            said.update(_words(value[named.end() :]))
    for name, content in metas:
        if name.strip().lower() in ("robots", ours):
            said.update(_words(content))
    return Directives(
        noindex=not said.isdisjoint({"noindex", "none"}), nofollow=not said.isdisjoint({"nofollow", "none"})
    )


def _words(value: str) -> Iterator[str]:
    for part in value.lower().split(","):
        yield from (part.strip(),) if ":" in part else part.split()  # some forget the commas


def refresh_target(content: str) -> str | None:
    """The target of a refresh in a `meta` or a header, as written; None if it only reloads (WHATWG HTML 4.2.5.3)."""
    found = _REFRESH.match(content)
    return next(filter(None, found.groups()), None) if found else None
