"""Scrapy's fingerprints, and those of requests that this process gave before.

Most links of a page are known: without this memory a spider's process would record each of them again, and its worker
would read and drop the records.
"""

from typing import Protocol

from scrapy.http import Request
from scrapy.utils.request import RequestFingerprinter

MOST = 200_000  # Fingerprints remembered, 20 MB; then all of them are forgotten, and recorded once more

MOST_URLS = 20_000  # URLs whose fingerprint is remembered; then all of them are forgotten


class Fingerprinter(Protocol):
    """A project's way to tell requests apart."""

    def fingerprint(self, request: Request, /) -> bytes:
        """The fingerprint."""


class Fingerprints:
    """Fingerprints of requests, cut to 64 bits. Scrapy's own depend on method, URL and body alone."""

    def __init__(self, fingerprinter: Fingerprinter) -> None:
        self._make = fingerprinter.fingerprint
        self._is_by_url = type(fingerprinter) is RequestFingerprinter
        self._of_urls: dict[str, int] = {}

    def of(self, request: Request) -> int:
        """The fingerprint of a request."""
        if not self._is_by_url or request.method != "GET" or request.body or request.meta.get("verbatim_url"):
            return self._cut(request)
        known = self._of_urls.get(request.url)
        if known is None:
            if len(self._of_urls) >= MOST_URLS:
                self._of_urls.clear()
            known = self._of_urls[request.url] = self._cut(request)
        return known

    def _cut(self, request: Request) -> int:
        return int.from_bytes(self._make(request)[:8], "big") or 1


class Earlier:
    """Fingerprints of requests that pages without an error gave."""

    def __init__(self) -> None:
        self._all: set[int] = set()

    def __contains__(self, fingerprint: int) -> bool:
        return fingerprint in self._all

    def add(self, fingerprints: set[int]) -> None:
        """Remember those of one page."""
        if len(self._all) >= MOST:
            self._all.clear()
        self._all |= fingerprints


class RefusedRequests:
    """Fingerprints of requests that middlewares refused, each with the page whose request it was.

    Parsed once more, that page gives the same: what its errback made of the request has no other row.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def is_elsewhere(self, fingerprint: int, page: int) -> bool:
        return self._pages.get(fingerprint, page) != page

    def add(self, fingerprint: int, page: int) -> None:
        """Remember a request of a page."""
        if len(self._pages) >= MOST:
            self._pages.clear()
        self._pages[fingerprint] = page
