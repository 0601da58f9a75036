"""What `why` reads beside the log's founds and dones: redirects one too many in a row, robots.txt in the state.

Parse drops the target of such a redirect, and the log has no found of it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crawlog.schemas import pages
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import DamagedLog
from crawlog.streams.fetch import robots_answer
from crawlog.streams.fold import Event, History
from crawlog.streams.log import Topics, record_at, record_headers
from crawlog.streams.printable import utc_text
from crawlog.streams.redaction import shown_page
from crawlog.streams.robots import RobotsRules

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def redirects_beyond(settings: "Settings", history: History, only: str) -> Iterator[Event]:
    """An event for each of these redirects that comes from a page of the URL's own partition, and is stored still.

    Args:
        only: The only job of interest; empty for all.
    """
    topic, hops = Topics(settings.kafka.prefix).pages, history.last_hops
    bounds = log_bounds(settings, topic, sorted({partition for partition, _ in hops})) if hops else {}
    for partition, offset in hops:
        start, end = bounds[partition]
        try:
            record = record_at(settings, topic, partition, offset) if start <= offset < end else None
            meta = pages.meta_in(record_headers(record)) if record is not None else None
        except (ValueError, DamagedLog):
            continue  # a page that cannot be read
        if record is None or meta is None or only not in ("", meta.job) or not history.is_target(meta):
            continue
        if said := history.end_of_redirects(meta):
            at, what = record.timestamp()[1] / 1000, f"redirect to it from {meta.url}: {said}"
            yield Event(at, "pages", partition, offset, "page", what, meta.job, meta.epoch, {"meta": shown_page(meta)})


def robots_verdict(settings: "Settings", partition: int, host: str, url: str) -> str:
    """What the robots.txt that was read last says of a URL, in a line.

    Args:
        partition: The URL's in crawl.urls.
        host: Its scheme, name and port.
    """
    rows = _cached(settings, partition, robots_answer.key(host))
    counts = max(map(robots_answer.read, rows), default=None, key=lambda row: row.fetched_at)
    if counts is None:
        vain = [robots_answer.read_rest(row) for row in _cached(settings, partition, robots_answer.rest_key(host))]
        if not vain:
            return f"the robots.txt of {host} is not known on this machine"
        rest = f"after that its host rests {vain[0].wait_s:.0f} s"
        return f"the robots.txt of {host} could not be read at {utc_text(vain[0].asked_at)}; {rest}"
    token = settings.robots.token
    rules = RobotsRules.parse(counts.body)
    allowed, rule = rules.allowed(url, token)
    delay_s = rules.crawl_delay_s(token)
    said = f"{'allows' if allowed else 'forbids'} it{f' ({rule})' if rule else ''}"
    wish = f", and wants {delay_s:g} s between requests" if delay_s else ""
    return f"robots.txt of {host} {said}{wish}; HTTP {counts.status}, read {utc_text(counts.fetched_at)}"


def _cached(settings: "Settings", partition: int, key: bytes) -> list[bytes]:
    """All rows of a host, one for each way of asking; none if there is no such state, or it cannot be read now."""
    from rocksdict import AccessType, Options, Rdict

    from crawlog.streams.state import CACHE_COLUMN

    folder = settings.run.data / "state" / str(partition)
    if not folder.is_dir():
        return []
    columns = {CACHE_COLUMN: Options(raw_mode=True)}
    found: list[bytes] = []
    try:
        state = Rdict(str(folder), Options(raw_mode=True), columns, access_type=AccessType.read_only())
        try:
            for name, value in state.get_column_family(CACHE_COLUMN).items(from_key=key):
                assert isinstance(name, bytes)  # raw mode has nothing else
                assert isinstance(value, bytes)
                if not name.startswith(key):
                    break
                if robots_answer.is_of(name, key):
                    found.append(value)
        finally:
            state.close()
    except Exception:  # noqa: BLE001  # rocksdict raises bare Exceptions: a folder just made, a table its owner dropped
        return []
    return found
