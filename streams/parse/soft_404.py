"""Soft 404s: pages of a host that answers 200 to what does not exist, told by asking it once for what cannot exist.

    several pages nearly alike ─► a found: the probe ─► its page, answered with 200 ─► crawl.control: its sketch
                                                                                            │
                                        pages like it are `soft_404`, their links stay ◄────┘

The probe is a URL like any other: robots.txt, rests, the log. It stands in the folder of the page that woke the
suspicion, for a host's folders often have programs of their own (Bar-Yossef et al., WWW 2004). What a host sent lately
is in memory only; what a probe found is a record that every parse worker reads.
"""

from collections import OrderedDict

import xxhash

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html import simhash_of
from crawlog.streams.spiders import is_followed, is_html, is_redirect

from .duplicates import HOSTS, NEAR_BITS, Twins

SUSPICIOUS = 3
"""Pages nearly like one before them, after which a host is asked."""

_NAME = "crawlog-soft-404-probe-"
"""The site's operator, who finds it in a log, shall know what it was."""

_PATH_FROM = len("https://")

Sketches = dict[str, set[int]]
"""By host, of what it answers to probes."""


class SoftErrors:
    """What one job's parse worker knows of soft 404s.

    Args:
        found: What probes found, kept by whoever reads the log.
    """

    def __init__(self, job: str, found: Sketches) -> None:
        self._job = job
        self._found = found
        self._twins = Twins(near=True)
        self._repeats: OrderedDict[str, int] = OrderedDict()

    def is_one(self, meta: PageMeta, host: str, body: bytes) -> bool:
        """Whether a page is what its host answers to a probe; never a seed, nor a host's front page."""
        found = self._found.get(host)
        if not found or not _is_page(meta, body) or meta.seed or self.is_probe(meta.url, host):
            return False
        if meta.url.find("/", _PATH_FROM) == len(meta.url) - 1:
            return False
        sketch = simhash_of(body)
        return any((sketch ^ one).bit_count() <= NEAR_BITS for one in found)

    def probe(self, meta: PageMeta, host: str, body: bytes) -> str:
        """The URL by which the host is to be asked, once it sent enough pages that are nearly alike; else empty."""
        repeats = self._repeats.get(host, 0)
        if repeats >= SUSPICIOUS or not _is_page(meta, body) or not self._twins.is_one(host, meta.url, body):
            return ""
        self._repeats[host] = repeats + 1
        self._repeats.move_to_end(host)
        if len(self._repeats) > HOSTS:
            self._repeats.popitem(last=False)
        if repeats + 1 < SUSPICIOUS:
            return ""
        path = meta.url.partition("?")[0]
        return path[: path.rindex("/") + 1] + _name(self._job, host)

    def is_probe(self, url: str, host: str) -> bool:
        """Whether a URL is a probe of this job."""
        return _NAME in url and url.endswith("/" + _name(self._job, host))

    @staticmethod
    def sketch(meta: PageMeta, body: bytes) -> int | None:
        """Of what a probe was answered; None where the host said that it does not exist, or sent no page, or no words.

        Pages without words, as of images or frames, are all alike.
        """
        return (simhash_of(body) or None) if _is_page(meta, body) else None


def _name(job: str, host: str) -> str:
    """No page's; the same for whoever parses the page again."""
    return f"{_NAME}{xxhash.xxh3_64_hexdigest(f'{job} {host}'.encode())}"


def _is_page(meta: PageMeta, body: bytes) -> bool:
    is_answer = meta.kind == "page" and is_followed(meta) and not is_redirect(meta)
    return is_answer and bool(body) and is_html(meta)
