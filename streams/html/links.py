"""Hrefs to outlinks: resolved, canonical, with fingerprint and place; those that lead out of the scope as URLs alone.

`Links` remembers what it resolved, because the pages of a site repeat their links: a remembered link costs a look-up,
a new one a URL parse, a fingerprint and a place. Most links of the open web lead to hosts that no scope takes. These
are asked about once a host; they cost neither fingerprint nor place.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from crawlog.streams.url import Canonicaliser, InvalidUrl, Place, Places, fingerprint

_HTTP = ("http://", "https://")
# What an href begins with that names a host; a path whose first segment is empty looks like one.
_AUTHORITY = ("//", "/\\")

_NO_LINKS = ("javascript:", "mailto:", "tel:", "data:")  # Schemes of hrefs that are no links, in their usual spelling

# A longer href is resolved anew each time: a page of 8 MiB may be one link, and 100,000 are remembered.
MEMORABLE_CHARS = 256


class Outlink(msgspec.Struct, frozen=True, gc=False):
    """A link with all that later steps need; a hundred thousand are remembered, and none is in a reference cycle."""

    url: str
    fingerprint: int
    place: Place


def is_plain(href: str) -> bool:
    """Whether an href joined to its base is the base's origin or directory with the href behind it, parsed as one URL.

    Parsing one URL costs a third of a join. Not plain are an empty href, one with a scheme or a host of its own, one
    that is only a query or fragment, and what white space and control characters might turn into one.
    """
    first = href[:1]
    if first <= " " or first in "?#\\" or not href.isprintable():
        return False
    if first == "/":
        return href[1:2] not in ("/", "\\")
    if first == ".":  # of no scheme
        return True
    colon = href.find(":")
    return colon < 0 or 0 <= href.find("/") < colon


def climbed(directory: str, href: str) -> str:
    """A plain href that begins with dots, behind the directory it means: spelled so, most links are known unparsed.

    Args:
        directory: The path of one, from its first slash to its last, as a serialised URL has it: without dots.
    """
    while True:
        if href.startswith("../"):  # above the root is the root
            directory = directory[: directory.rfind("/", 0, -1) + 1] or "/"
            href = href[3:]
        elif href.startswith("./"):
            href = href[2:]
        else:
            return directory + href


class Resolved(NamedTuple):
    """The http(s) links of one page, in order, each canonical URL once.

    Attributes:
        foreign: Canonical URLs that are out of the scope by their host.
    """

    links: list[Outlink]
    foreign: list[str]


_Link = Outlink | str | Literal[False]  # A foreign one is its URL; False is no link

_Written = dict[str, dict[str, _Link]]  # Links by the origin of the page, then by href

_FOREIGN_CACHED = 65_536  # Origins whose answer is remembered

_fingerprint = attrgetter("fingerprint")


class Links:
    """Resolves hrefs to outlinks by one job's rules.

    Two memories, each in two generations, the older one let go when the newer one is full: of hrefs as pages of an
    origin write them, from the root; and of absolute URLs as they are spelled and in canonical form, for all origins.

    Args:
        cached: Entries of each memory, at most, but for the last page's.
        is_foreign: Whether no URL of an origin is in the job's scope. When that changes, call `scope_grew`.
    """

    def __init__(
        self,
        canonicaliser: Canonicaliser,
        places: Places,
        cached: int = 100_000,
        is_foreign: Callable[[str], bool] | None = None,
    ) -> None:
        self._canonical = canonicaliser.canonical
        self._dropped = canonicaliser.dropped
        self._place = places.of
        self._is_foreign = is_foreign
        self._foreign: dict[str, bool] = {}
        self._has_grown = False
        self._half = max(1, cached // 2)
        self._new: _Written = {}
        self._count = 0
        self._old: _Written = {}
        self._known: dict[str, Outlink | str] = {}
        self._known_before: dict[str, Outlink | str] = {}

    def scope_grew(self) -> None:
        """Forget which origins are foreign. Links stay remembered; those that were foreign are asked about again."""
        self._foreign = {}
        self._has_grown = True

    def resolve(self, base: str, hrefs: list[str]) -> list[Outlink]:
        """The links among the hrefs of one page, whatever the scope, in order, each canonical URL once."""
        found = self._found(base, hrefs)
        return _each_once([self._outlink(link) if isinstance(link, str) else link for link in found if link])

    def split(self, base: str, hrefs: list[str]) -> Resolved:
        """The links among the hrefs of one page, and apart from them those that are foreign."""
        found = self._found(base, hrefs)
        if self._has_grown:
            found = [self._known_again(link) if isinstance(link, str) else link for link in found]
        return _apart(found)

    def judged_again(self, urls: Iterable[str]) -> Resolved:
        """Canonical URLs that another resolver took for foreign, as this one judges them."""
        return _apart([self._known_again(url) for url in urls])

    def _found(self, base: str, hrefs: list[str]) -> list[_Link | None]:
        """The link of each href."""
        if not base.startswith(_HTTP):
            return [self._link(href, base) for href in hrefs]
        origin = base[: base.find("/", 8)]
        directory = base[len(origin) : base.rfind("/", 0, _path_end(base)) + 1]
        written = self._written(origin)
        found = list(map(written.get, hrefs))  # no Python call for a link that is known
        known = self._known.get
        for at, link in enumerate(found):
            if link is None:
                href = hrefs[at]
                absolute = known(href)
                found[at] = self._resolve(written, origin, directory, base, href) if absolute is None else absolute
        return found

    def _written(self, origin: str) -> dict[str, _Link]:
        """The newer memory of an origin; there is room in it for a page."""
        if self._count >= self._half:
            self._old, self._new, self._count = self._new, {}, 0
        written = self._new.get(origin)
        if written is None:
            written = self._new[origin] = {}
            self._count += 1
        return written

    def _resolve(  # an href, and what its page gives it
        self, written: dict[str, _Link], origin: str, directory: str, base: str, href: str
    ) -> _Link:
        """The link of an href that is not remembered as it is written; False where it is none.

        Remembered without its fragment, and from the root on; not where it needs the base's last part.
        """
        if not href or href[0] == "#":
            href = base
        if len(href) > MEMORABLE_CHARS:
            return self._link(href, base) or False
        fragment = href.find("#")
        if fragment > 0 and href[fragment - 1] > " ":  # before a `#` white space counts, at the end it does not
            href = href[:fragment]
        if href.startswith(_HTTP):
            return self._absolute(href) or False
        return self._relative(written, origin, directory, base, href)

    def _relative(self, written: dict[str, _Link], origin: str, directory: str, base: str, href: str) -> _Link:
        """The link of an href that its page's origin is a part of, or of one with another scheme."""
        if href.startswith("/"):
            return self._from_root(written, origin, base, href)
        if href.startswith(_NO_LINKS):
            return False
        if not is_plain(href):
            return self._link(href, base) or False
        href = climbed(directory, href) if href[0] == "." else directory + href
        if href.startswith(_AUTHORITY) or len(href) > MEMORABLE_CHARS:
            return self._absolute(origin + href) or False
        return self._from_root(written, origin, base, href)

    def _from_root(self, written: dict[str, _Link], origin: str, base: str, href: str) -> _Link:
        """The link of an href that goes from the root; from now on it is remembered."""
        link = written.get(href)
        if link is None:
            link = self._old.get(origin, written).get(href)
            link = written[href] = self._first(origin, base, href) or False if link is None else link
            self._count += 1
        return link

    def _first(self, origin: str, base: str, href: str) -> _Link | None:
        """The same of one that is not remembered."""
        if is_plain(href):
            return self._absolute(origin + href)
        if href.startswith("//") and href.isascii() and href.isprintable():
            return self._absolute(origin[: origin.index("/")] + href)
        return self._link(href, base)

    def _absolute(self, url: str) -> _Link | None:
        """The link of an absolute URL; from now on it is remembered, as it is spelled and in its canonical form."""
        link = self._known.get(url)
        if link is None and "?" in url:  # without what is dropped from every URL it may be known too
            link = self._known.get(self._dropped(url))
        if link is None:
            link = self._known_before.get(url) or self._link(url, None)
            if link is None:
                return None
            self._make_room()
            if link.__class__ is Outlink:
                link = self._known.setdefault(link.url, link)
            self._known[url] = link
        return link

    def _make_room(self) -> None:
        """Let the older generation go when the newer one is full."""
        if len(self._known) >= self._half:
            self._known_before, self._known = self._known, {}

    def _link(self, href: str, base: str | None) -> Outlink | str | None:
        """The link of an href by its canonical URL; None if it is none."""
        try:
            url = self._canonical(href, base)
        except InvalidUrl:
            return None
        return url if self._leads_out(url) else self._outlink(url)

    def _known_again(self, url: str) -> Outlink | str:
        """The link of a canonical URL that was foreign when it was remembered."""
        if self._leads_out(url):
            return url
        link = self._known.get(url)
        if link is None or isinstance(link, str):
            self._make_room()
            link = self._known[url] = self._outlink(url)
        return link

    def _leads_out(self, url: str) -> bool:
        if self._is_foreign is None:
            return False
        origin = url[: url.find("/", 8)]
        is_foreign = self._foreign.get(origin)
        if is_foreign is None:
            if len(self._foreign) >= _FOREIGN_CACHED:
                self._foreign = {}
            is_foreign = self._foreign[origin] = self._is_foreign(origin)
        return is_foreign

    def _outlink(self, url: str) -> Outlink:
        return Outlink(url, fingerprint(url), self._place(url))


def _apart(found: Sequence[_Link | None]) -> Resolved:
    links = [link for link in found if link.__class__ is Outlink]
    foreign = [link for link in found if link.__class__ is str] if len(links) < len(found) else []
    return Resolved(_each_once(links), list(dict.fromkeys(foreign)))


def _each_once(links: list[Outlink]) -> list[Outlink]:
    return list(dict(zip(map(_fingerprint, links), links, strict=True)).values())  # asked for later on anyway


def _path_end(base: str) -> int:
    question = base.find("?")
    return question if question >= 0 else len(base)
