"""The newest page of each URL, as the dones of a partition of crawl.urls name it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from crawlog.schemas import urls as u
from crawlog.streams.cluster import log_bounds
from crawlog.streams.log import Topics, read_records

from .check import LostPage
from .ledger import page_name

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def lost_unread(settings: "Settings", names: Topics, number: int, gone: range) -> Iterator[LostPage]:
    """The dones of a partition whose pages lie at offsets that are gone, without those whose URL was asked again since.

    Raises: as `newest_pages`.
    """
    newest = newest_pages(settings, names, number, lambda one: one.page in gone)
    return (one for one, is_asked in newest if not is_asked)


def newest_pages(
    settings: "Settings", names: Topics, number: int, counts: Callable[[LostPage], bool]
) -> Iterator[tuple[LostPage, bool]]:
    """The newest done with a page of each URL and job of a partition, and whether the URL was asked again since.

    Args:
        counts: Whether to give a done, if it is the newest.

    Raises: EngineError: the cluster does not answer. DamagedLog: a record of crawl.urls is damaged.
    """
    low, end = log_bounds(settings, names.urls, [number])[number]
    found: dict[int, LostPage] = {}
    asked: set[int] = set()
    for message in read_records(settings, names.urls, number, low, end):
        try:
            record = u.decode(message.value())
        except ValueError:
            continue  # a dead letter
        job = record.job or u.DEFAULT_JOB
        for result in record.results or ():
            if result.page is not None:
                name = page_name(job, result.url, result.id)
                one = LostPage(number, message.offset() or 0, record.job or "", record.epoch, result, result.page[1])
                if counts(one):
                    found[name] = one
                else:
                    found.pop(name, None)
                asked.discard(name)
        again = (page_name(job, one.url, one.id) for one in record.urls or () if one.again)
        asked.update(name for name in again if name in found)
    yield from ((one, name in asked) for name, one in found.items())
