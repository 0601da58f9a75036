"""The entries of a sitemap or feed: made of what a file says, and what the frontier makes of them."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from crawlog.schemas.urls import MAX_URL_BYTES
from crawlog.streams.url import InvalidUrl, serialise

# The host of a URL whose scheme was left out; `www.html` is a relative one.
WWW = re.compile(r"www(?:\.[\w-]+){2,}(?::\d+)?(?![^/?#\s])", re.IGNORECASE)

_SPACE = re.compile(r"[\t\n\r]+ *")


class SitemapEntry(NamedTuple):
    """One URL of a sitemap.

    Attributes:
        loc: Absolute, WHATWG-serialised, http(s), no fragment.
        lastmod: As written; empty when it says none. `changed_at` reads it.
        priority: 0.0 to 1.0; None when it says none.
    """

    loc: str
    lastmod: str = ""
    priority: float | None = None


def changed_at(lastmod: str) -> float | None:
    """UTC epoch seconds of a W3C date (sitemaps, Atom) or an RFC 822 one (RSS); None when it is neither.

    A date without a time is its first instant, one without a zone is UTC.
    """
    text = lastmod.strip()
    if re.fullmatch(r"\d{4}(?:-\d{2})?", text):
        text = f"{text}-01-01"[:10]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


_DAYS = {4: 366, 7: 31, 10: 1}  # That a date of so many characters has: a year, a month, a day


def changed_by(lastmod: str) -> float:
    """By when the page had changed, UTC epoch seconds: the end of a date without a time; 0 if there is none."""
    text = lastmod.strip()
    at = changed_at(text) if text else None
    return at + 86_400 * _DAYS.get(len(text), 0) if at is not None else 0.0


def found_priority(entry: SitemapEntry) -> int:
    """A frontier priority from a sitemap's: 0.5, its default, is 0; 0.0 and 1.0 are -10 and 10."""
    return 0 if entry.priority is None else round((entry.priority - 0.5) * 20)


def newest_first(entries: list[SitemapEntry]) -> list[SitemapEntry]:
    """Entries by the date of their last change, those without one last, otherwise in their order."""
    return sorted(entries, key=lambda entry: -(changed_at(entry.lastmod) or 0.0) if entry.lastmod else 0.0)


class Entries:
    """Entries as they are found, each URL once."""

    def __init__(self, base: str, most: int) -> None:
        self.base = base
        self._most = most
        self.urls: dict[str, SitemapEntry] = {}
        self.sitemaps: dict[str, SitemapEntry] = {}
        self.full = False

    def add(self, href: str, *, is_sitemap: bool = False, lastmod: str = "", priority: str = "") -> None:
        """Take an entry if its URL is one."""
        href = with_scheme(_SPACE.sub("", href.strip()), self.base)
        if not href or len(href) > MAX_URL_BYTES:
            return
        try:
            loc = serialise(href, None if href.startswith(("http://", "https://")) else self.base)
        except InvalidUrl:
            return
        taken = self.sitemaps if is_sitemap else self.urls
        if loc in taken:
            return
        if len(taken) >= self._most:
            self.full = True
            return
        taken[loc] = SitemapEntry(loc, " ".join(lastmod.split())[:100], _number(priority))


def _number(text: str) -> float | None:
    try:
        number = float(text.strip()[:20])
    except ValueError:
        return None
    return min(max(number, 0.0), 1.0) if number == number else None  # noqa: PLR0124  # NaN is not itself


def permalink(name: str) -> str:
    """What an entry without a link is known by, if it can be asked for: it may be a `tag:`, a `urn:` or a number."""
    return name if name[:8].lower().startswith(("http://", "https://")) or WWW.match(name) else ""


def with_scheme(href: str, base: str) -> str:
    """A link without a scheme, as people write hosts, with that of its file."""
    return f"{base.partition(':')[0]}://{href}" if WWW.match(href) else href
