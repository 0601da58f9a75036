"""Counts what a page changed in Scrapy's stats, so that the changes of all workers can be added up."""

import inspect
from collections.abc import Callable
from math import isfinite
from numbers import Number
from typing import TYPE_CHECKING, Any, cast

from scrapy import Spider
from scrapy.statscollectors import StatsCollector

from crawlog.schemas.items import GREATEST, LEAST, add_stats

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
    """A collector of this class that remembers differences."""
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
