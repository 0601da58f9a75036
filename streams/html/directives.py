"""Directives to robots beside robots.txt: `meta` robots, X-Robots-Tag, and links in the Link header.

Read only where a job asks for it (`robots.meta`, `links.sources`).
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Directives that contain a colon, which does not follow the name of a robot.
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})

_ROBOT = re.compile(r"\s*+([^\s:,][^:,]*+):")
_LINK = re.compile(r"""<([^<>]*)>((?:[^",<]|"(?:[^"\\]|\\.)*+")*+)""", re.DOTALL)
_REL = re.compile(r"""(?:^|;)\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))""", re.IGNORECASE)
_NOT_PAGES = frozenset(
    {
        "stylesheet",
        "preload",
        "modulepreload",
        "preconnect",
        "dns-prefetch",
        "prefetch",
        "prerender",
        "icon",
        "pingback",
    }
)
_REFRESH = re.compile(
    r"[\t\n\f\r ]*+(?:[0-9][0-9.]*+|\.[0-9.]*+)(?=[;,\t\n\f\r ])[\t\n\f\r ]*+[;,]?+[\t\n\f\r ]*+"
    r"(?:url[\t\n\f\r ]*+=[\t\n\f\r ]*+)?+(?:'([^']*)|\"([^\"]*)|(.+))",
    re.IGNORECASE | re.DOTALL,
)
_DESCRIPTORS = re.compile(r"(?:[^,(]|\([^)]*\)?)*+")
_SKIPPED = re.compile(r"[\s,]*+")
_WORD = re.compile(r"\S+")


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


def header_links(values: Iterable[str]) -> list[str]:
    """Targets in Link headers that are pages, as written, in order (RFC 8288)."""
    return [found[1] for value in values for found in _LINK.finditer(value) if _NOT_PAGES.isdisjoint(_rels(found[2]))]


def _rels(parameters: str) -> list[str]:
    found = _REL.search(parameters)
    return (found[1] or found[2] or "").lower().split() if found else []


def refresh_target(content: str) -> str | None:
    """The target of a refresh in a `meta` or a header, as written; None if it only reloads (WHATWG HTML 4.2.5.3)."""
    found = _REFRESH.match(content)
    return next(filter(None, found.groups()), None) if found else None


def srcset_urls(value: str) -> Iterator[str]:
    """The URLs of a `srcset`, as written (WHATWG HTML 4.8.4.3)."""
    at = 0
    while True:
        skipped = _SKIPPED.match(value, at)
        word = _WORD.match(value, skipped.end() if skipped else at)
        if word is None:
            return
        at = word.end()
        url = word[0].rstrip(",")
        yield url
        if url == word[0]:
            descriptors = _DESCRIPTORS.match(value, at)
            at = descriptors.end() if descriptors else at
