"""What a job makes of a page in one call, under the guard's clock.

the default spider, again after an error ─► (page, Parsed)
"""

import structlog

from crawlog.agents.sandbox import error_line
from crawlog.schemas.pages import PageMeta
from crawlog.streams.parse import Job
from crawlog.streams.spiders import Parsed, TooMuch

from .guard import TimeUp

log = structlog.get_logger()

MAX_TRIES = 3  # Attempts to parse a page. A page that failed for lack of memory may succeed at the next attempt.


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
