"""Domains whose pages were costly although their tags looked simple, such as one tag with 30,000 attributes."""

from collections.abc import Callable

import structlog

from crawlog.streams.html import is_simple

log = structlog.get_logger()

# Costly pages of a domain after which its pages are tried first. One is not enough: any page may be slow once, when the
# garbage collector runs.
COSTLY_PAGES = 2

MAX_COSTLY = 10_000  # Domains remembered for a costly page; beyond this number all of them are forgotten


class CostlyDomains:
    """Counts costly pages by domain."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def may_cost(self, domain_of: Callable[[str], str], url: str, body: bytes) -> bool:
        """Whether a page needs a trial: by its tags, or because pages of its domain were costly."""
        if not is_simple(body):
            return True
        return bool(self._counts) and self._counts.get(domain_of(url), 0) >= COSTLY_PAGES

    def note(self, domain: str, url: str) -> None:
        """Count a costly page."""
        if len(self._counts) >= MAX_COSTLY:
            self._counts.clear()
        self._counts[domain] = count = self._counts.get(domain, 0) + 1
        if count == COSTLY_PAGES:
            log.warning("pages_costly", url=url, then=f"pages of {domain} are tried first from now on")
