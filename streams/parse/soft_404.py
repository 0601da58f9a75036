"""Finds soft 404s: error pages with status 200. A probe, a URL that cannot exist, shows how a host's error page looks.

    several near duplicates ─► a found: the probe ─► its page, if status 200 ─► crawl.control: the page's sketch
                                                                                     │
                               pages like it: `soft_404`, links not followed ◄───────┘

The probe is fetched like any URL, under robots.txt and the host's rests. It is in the folder of the page that raised
the suspicion, because a host's folders often have separate programs (Bar-Yossef et al., WWW 2004). The pages a host
sent lately are in memory only. The result of a probe is a record that every parse worker reads.
"""

from collections import OrderedDict

import xxhash

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html import simhash_of
from crawlog.streams.spiders import is_followed, is_html, is_redirect

from .duplicates import HOSTS, NEAR_BITS, Twins

SUSPICIOUS = 3
"""Near duplicates of a host after which the probe is sent."""

_NAME = "crawlog-soft-404-probe-"
"""Tells the site's operator, who finds it in an access log, what the request was."""

_PATH_FROM = len("https://")

Sketches = dict[str, set[int]]
"""Sketches of the answers to probes, by host."""


class SoftErrors:
    """Soft 404s of one job, as one parse worker knows them.

    Args:
        found: Results of probes; `Jobs` adds those that it reads.
    """

    def __init__(self, job: str, found: Sketches) -> None:
        self._job = job
        self._found = found
        self._twins = Twins(near=True)
        self._repeats: OrderedDict[str, int] = OrderedDict()

    def is_one(self, meta: PageMeta, host: str, body: bytes) -> bool:
        """Whether a page looks like its host's answer to a probe. A seed or a front page never counts as one."""
        found = self._found.get(host)
        if not found or not _is_page(meta, body) or meta.seed or self.is_probe(meta.url, host):
            return False
        if meta.url.find("/", _PATH_FROM) == len(meta.url) - 1:
            return False
        sketch = simhash_of(body)
        return any((sketch ^ one).bit_count() <= NEAR_BITS for one in found)

    def probe(self, meta: PageMeta, host: str, body: bytes) -> str:
        """The host's probe, at the moment when it has sent enough near duplicates; else empty."""
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
        """The sketch of the answer to a probe; None after an error status, without a page, or without words.

        Pages without words (images, frames) all have the same sketch.
        """
        return (simhash_of(body) or None) if _is_page(meta, body) else None


def _name(job: str, host: str) -> str:
    """A name that no page has; the same each time."""
    return f"{_NAME}{xxhash.xxh3_64_hexdigest(f'{job} {host}'.encode())}"


def _is_page(meta: PageMeta, body: bytes) -> bool:
    is_answer = meta.kind == "page" and is_followed(meta) and not is_redirect(meta)
    return is_answer and bool(body) and is_html(meta)
