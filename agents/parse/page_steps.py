"""The steps of one page, under the guard: unpacked once, tried first if it may be costly, parsed.

record as it was read ─► unpacked within the page's limit ─┬─► a plain record, as any other from here on
                                                           ├─► too large or broken: the record as it was read,
                                                           │   which counts as without a body, and why
                                                           └─► too large for this worker alone: a dead letter
a plain record ─► may it be costly? a trial first ─► parsed: by the job's spider, again after an error
"""

from collections.abc import Callable

import structlog

from crawlog.agents.sandbox import error_line
from crawlog.schemas.pages import PageMeta
from crawlog.streams.coded_pages import coding_in, lacks_room, page_of
from crawlog.streams.errors import PoisonRecord
from crawlog.streams.html import is_simple
from crawlog.streams.parse import Job, Message, plain
from crawlog.streams.settings import MAX_BODY_BYTES, RECORD_HEADROOM
from crawlog.streams.spiders import Parsed, TooMuch

from .guard import Guard, TimeUp

log = structlog.get_logger()

# Costly pages of a domain after which its pages are tried first. One is not enough: any page may be slow once, when the
# garbage collector runs.
COSTLY_PAGES = 2

MAX_COSTLY = 10_000  # Domains remembered for a costly page; beyond this number all of them are forgotten

MAX_TRIES = 3  # Attempts to parse a page. A page that failed for lack of memory may succeed at the next attempt.


def unpacked(guard: Guard, key: str, message: Message, meta: PageMeta) -> tuple[Message, PageMeta]:
    """A page with its plain body; a record that cannot be unpacked stays packed, so that its dead letter is the page.

    Args:
        key: Of the page, for the guard's notes.
    Raises:
        PoisonRecord: It may have a larger body than this worker unpacks.
        BaseException: It took too long, or memory is short.
    """
    headers = message.headers
    if not coding_in(headers):
        return message, meta
    room = guard.bounds.size_bytes
    guard.notes.touch(key)
    try:
        found, body = guard.clock.call(page_of, meta, message.value, headers, room)
    finally:
        guard.notes.lift(key)
    if lacks_room(meta, found, room):
        raise no_room(meta, room)
    return plain(message, body) if body else message, found


def no_room(meta: PageMeta, room: int) -> PoisonRecord:
    """The error of a page whose body this worker does not unpack; a row without it would replace a good one.

    Args:
        room: Largest body that this worker unpacks.
    """
    need = min(meta.limit, MAX_BODY_BYTES) + RECORD_HEADROOM
    return PoisonRecord(
        f"its body was fetched under a limit of {meta.limit} bytes, and has more than the {room} that this worker"
        f" unpacks; set kafka.max_record_bytes to {need} for parse, then send it back with `crawlog dead redrive`"
    )


def plain_body(message: Message) -> bytes:
    """The body of a record that `unpacked` returned; empty if it cannot be unpacked."""
    return b"" if coding_in(message.headers) else message.value or b""


class CostlyDomains:
    """Domains whose pages were costly although their tags looked simple, such as one tag with 30,000 attributes."""

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


def parsed(job: Job, meta: PageMeta, body: bytes) -> tuple[PageMeta, Parsed]:
    """The page, a failure if it redirects nowhere, and its spider's result.

    Raises: BaseException: the spider's exception at the last attempt.
    """
    if meta.kind == "sitemap" and meta.error:
        log.warning("sitemap_unread", job=meta.job, url=meta.url, error=meta.error)
    if (undone := job.undone(meta)) is not meta:
        meta, body = undone, b""
    for tries in range(1, MAX_TRIES + 1):
        try:
            return meta, job.parsed(meta, body)
        except (TimeUp, TooMuch):
            raise
        except BaseException as error:
            if tries == MAX_TRIES:
                raise
            log.debug("page_tried_again", job=meta.job, url=meta.url, error=error_line(error))
    raise AssertionError("the last try returns or raises")
