"""The robots.txt of a host as the state on this machine has it."""

from typing import TYPE_CHECKING

from crawlog.streams.fetch import Counts, robots_answer
from crawlog.streams.http import RobotsRules
from crawlog.streams.printable import shown_time

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def robots_verdict(settings: "Settings", partition: int, host: str, url: str) -> str:
    """What the robots.txt that was read last says of a URL, in a line.

    Args:
        partition: The URL's in crawl.urls.
        host: Its scheme, name and port.
    """
    counts = max(_cached(settings, partition, robots_answer.key(host)), default=None, key=lambda row: row.fetched_at)
    if counts is None:
        return f"the robots.txt of {host} is not known on this machine"
    token = settings.robots.token
    rules = RobotsRules.parse(counts.body)
    allowed, rule = rules.allowed(url, token)
    delay_s = rules.crawl_delay_s(token)
    said = f"{'allows' if allowed else 'forbids'} it{f' ({rule})' if rule else ''}"
    wish = f", and wants {delay_s:g} s between requests" if delay_s else ""
    read = f"{shown_time(counts.fetched_at):%Y-%m-%d %H:%M:%S}"
    return f"robots.txt of {host} {said}{wish}; HTTP {counts.status}, read {read}"


def _cached(settings: "Settings", partition: int, key: bytes) -> list[Counts]:
    """All answers of a host, one for each way of asking; none if there is no such state, or it cannot be read now."""
    from rocksdict import AccessType, Options, Rdict

    from crawlog.streams.state import CACHE_COLUMN

    folder = settings.run.data / "state" / str(partition)
    if not folder.is_dir():
        return []
    columns = {CACHE_COLUMN: Options(raw_mode=True)}
    found: list[Counts] = []
    try:
        state = Rdict(str(folder), Options(raw_mode=True), columns, access_type=AccessType.read_only())
        try:
            for name, value in state.get_column_family(CACHE_COLUMN).items(from_key=key):
                assert isinstance(name, bytes)  # raw mode has nothing else
                assert isinstance(value, bytes)
                if not name.startswith(key):
                    break
                if name[len(key) :][:1] in (b"", b" "):  # else another port
                    found.append(robots_answer.read(value))
        finally:
            state.close()
    except Exception:  # noqa: BLE001  # rocksdict raises bare Exceptions: a folder just made, a table its owner dropped
        return []
    return found
