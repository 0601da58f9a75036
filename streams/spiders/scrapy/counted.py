"""Counts what a page changed in Scrapy's stats, so that all workers' changes can be added up; CLOSESPIDER_ settings."""

import inspect
from collections.abc import Callable
from math import isfinite
from numbers import Number
from typing import TYPE_CHECKING, Any, cast

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.statscollectors import StatsCollector

from crawlog.schemas.items import GREATEST, LEAST, add_stats

from ..exchange import CallResult

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    _Base = StatsCollector
else:
    _Base = object


class CountedStats(_Base):
    """Beside a collector of Scrapy or of the project: remembers each difference until it is taken.

    Of `max_value` and `min_value` it remembers the greatest and the least value.
    """

    _differences: dict[str, float]

    def inc_value(self, key: str, count: int = 1, start: int = 0, spider: Any = None) -> None:
        """As the collector; the difference is remembered."""
        super().inc_value(key, count, start, **_spider(spider))
        self._add(key, +count)  # True counts as 1

    def set_value(self, key: str, value: Any, spider: Any = None) -> None:
        """As the collector; the difference is remembered, for numbers."""
        old, new = _number(self.get_value(key, 0)), _number(value)
        super().set_value(key, value, **_spider(spider))
        if old is not None and new is not None:
            self._add(key, new - old)

    def max_value(self, key: str, value: Any, spider: Any = None) -> None:
        """As the collector; the value is remembered, for numbers."""
        super().max_value(key, value, **_spider(spider))
        self._add(f"{GREATEST}{key}", value)

    def min_value(self, key: str, value: Any, spider: Any = None) -> None:
        """As `max_value`."""
        super().min_value(key, value, **_spider(spider))
        self._add(f"{LEAST}{key}", value)

    def _add(self, key: str, value: object) -> None:
        number = _number(value)
        if number is not None:
            add_stats(self.__dict__.setdefault("_differences", {}), {str(key): number})

    def taken(self) -> dict[str, float]:
        """The differences since the last call."""
        return cast("dict[str, float]", self.__dict__.pop("_differences", {}))


def _number(value: Any) -> float | None:
    """A value as the records of stats have it, an int or a float; None for one that they cannot have, such as inf."""
    if not isinstance(value, Number) or isinstance(value, bool | complex):
        return None
    try:
        number = float(cast("Any", value))
    except (ArithmeticError, TypeError, ValueError):
        return None
    if not isfinite(number):
        return None
    return int(value) if isinstance(value, int) else number


def _spider(spider: Any) -> dict[str, Any]:
    return {} if spider is None else {"spider": spider}  # deprecated; collectors of projects may not take it


def counted(kind: type[StatsCollector], crawler: "Crawler") -> StatsCollector:
    return cast("StatsCollector", type(kind.__name__, (CountedStats, kind), {})(crawler))


def hears_end(kind: type[StatsCollector]) -> bool:
    """Whether code of the project runs when the collector is opened or closed."""
    told = ("open_spider", "close_spider", "_persist_stats")
    return any(not getattr(kind, name).__module__.startswith("scrapy.") for name in told)


def tell(method: Callable[..., object], spider: Spider, **what: str) -> None:
    """Call `open_spider` or `close_spider` of a collector. Those of older projects take the spider."""
    wanted = inspect.signature(method).parameters.get("spider")
    if wanted is not None and wanted.default is wanted.empty:
        method(spider=spider, **what)
    else:
        method(**what)


def taken(stats: StatsCollector) -> dict[str, float]:
    """What changed since the last call."""
    return cast("CountedStats", stats).taken()


class CloseCounts:
    """Counts the pages, items and errors of one process.

    Args:
        now_s: Time at its start.
    """

    def __init__(self, settings: BaseSettings, now_s: float) -> None:
        self._items_most = settings.getint("CLOSESPIDER_ITEMCOUNT")
        self._errors_most = settings.getint("CLOSESPIDER_ERRORCOUNT")
        self._barren_most = settings.getint("CLOSESPIDER_PAGECOUNT_NO_ITEM")
        self._longest_s = settings.getfloat("CLOSESPIDER_TIMEOUT")
        self._barren_s = settings.getfloat("CLOSESPIDER_TIMEOUT_NO_ITEM")
        self._begun_s = self._item_s = now_s
        self._items = self._errors = self._barren = 0

    def reason(self, result: CallResult, now_s: float, *, is_answer: bool) -> str:
        """Count what a page gave; why the job is to be closed, in Scrapy's words, else empty.

        Args:
            is_answer: Whether the spider got a response: redirects and failures are no pages without items.
        """
        self._barren = 0 if result.items else self._barren + is_answer
        if result.items:
            self._item_s = now_s
        return self.of_start(result, now_s) or _reached(
            (self._barren, self._barren_most, "closespider_pagecount_no_item"),
            (now_s - self._item_s, self._barren_s, "closespider_timeout_no_item"),
        )

    def of_start(self, result: CallResult, now_s: float) -> str:
        """The same for a part of `start`. It need not have items: most come from pages."""
        self._items += len(result.items)
        self._errors += bool(result.error)
        return _reached(
            (self._items, self._items_most, "closespider_itemcount"),
            (self._errors, self._errors_most, "closespider_errorcount"),
            (now_s - self._begun_s, self._longest_s, "closespider_timeout"),
        )

    def left_s(self, now_s: float) -> float | None:
        """Seconds until CLOSESPIDER_TIMEOUT closes the job; None without one."""
        return max(self._begun_s + self._longest_s - now_s, 0.0) if self._longest_s else None


def _reached(*counts: tuple[float, float, str]) -> str:
    """The first limit that was reached, or empty; 0 means no limit."""
    return next((reason for count, most, reason in counts if most and count >= most), "")
