"""Which rows a sink lacks because crawl.items lost their records before it read them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from crawlog.schemas import dead, items
from crawlog.streams.log import Topics, log_bounds, partition_count, read_records, record_headers
from crawlog.streams.recovery import LostPage, newest_pages
from crawlog.streams.url import fingerprint, hashed_to

from .state import SinkState

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def lose(results: SinkState, gone: Mapping[int, range]) -> None:
    """Have a sink read on behind records that are gone, by partition, and note the gaps."""
    gaps = [(at, one.start, one.stop) for at, one in gone.items()]
    results.move({at: end for at, _, end in gaps}, [*results.meta.gaps, *gaps])


def lacking(settings: "Settings", results: SinkState) -> list[tuple[LostPage, bool]]:
    """The pages whose items were in the state's gaps, and of which it has nothing yet, by partition of crawl.pages.

    Each is told with whether its URL was asked again since. A page that is a dead letter has no items. Ask when parse
    and the sink have passed all: else pages on their way count, too.

    Raises: EngineError: the cluster does not answer. Unusable: the state is damaged.
    """
    if not results.meta.gaps:
        return []
    names, sink, count = Topics(settings.kafka.prefix), results.sink, partition_count(settings)
    lost = {partition for partition, _, _ in results.meta.gaps}

    def has_lost(one: LostPage) -> bool:
        if not sink.wants(one.job, one.epoch, (one.partition, one.page)):
            return False
        key = _key(one)
        return hashed_to(key, count) in lost and results.page_of(key[len(one.job) + 1 :]) < (one.partition, one.page)

    found = [one for number in range(count) for one in newest_pages(settings, names, number, has_lost)]
    buried = _buried(settings, names) if found else set()
    return [(one, is_asked) for one, is_asked in found if (one.partition, one.page) not in buried]


def _key(one: LostPage) -> bytes:
    """The key of its record in crawl.items. A GET with a callback has its URL's identity, and a record without one."""
    identity = one.result.id
    return items.key(one.job, one.result.url, 0 if identity == fingerprint(one.result.url) else identity)


def _buried(settings: "Settings", names: Topics) -> set[tuple[int, int]]:
    low, end = log_bounds(settings, names.dead, [0])[0]
    letters = (
        dead.from_headers(dead.by_name(record_headers(one)), None, None)
        for one in read_records(settings, names.dead, 0, low, end)
    )
    return {(one.partition, one.offset) for one in letters if one.topic == names.pages}
