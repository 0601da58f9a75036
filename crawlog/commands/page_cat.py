"""`crawlog pages cat`: a stored page by its place in crawl.pages."""

import re
from typing import TYPE_CHECKING

from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import StoredPage

from .one_page import page_at

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

_PLACE = re.compile(r"(\d{1,9}):(\d{1,18})", re.ASCII)


def place_of(text: str) -> tuple[int, int]:
    """Partition and offset. Raises: Misconfigured: the text has another form."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Misconfigured(f"{text!r:.60} is no place of a page: PARTITION:OFFSET, as `crawlog why URL` tells it")
    return int(found[1]), int(found[2])


def page_of(settings: "Settings", partition: int, offset: int) -> StoredPage:
    """The page at a place. A page that was not modified has the body of the older one.

    Raises: Misconfigured: it is not there, or that body is not.
    """
    from crawlog.streams.log import partition_count

    count = partition_count(settings)
    if partition >= count:
        raise Misconfigured(f"there is no partition {partition}: the log has {count}, from 0 to {count - 1}")
    try:
        return page_at(settings, partition, offset)
    except ValueError as error:
        raise Misconfigured(f"{partition}:{offset} of crawl.pages is no page: {error}") from None


def body_of(page: StoredPage) -> bytes:
    """The body of a page. Raises: Misconfigured: it has none, because of an error."""
    if page.meta.error and not page.body:
        raise Misconfigured(f"the page of {page.meta.url} has no body: {page.meta.error}; --headers has what is known")
    return page.body


def text_of(page: StoredPage) -> str:
    """The body as text, by the encoding that the parser takes. Raises: as `body_of`."""
    from crawlog.streams.html import charset

    return charset.decode(body_of(page), page.meta.content_type)[1]
