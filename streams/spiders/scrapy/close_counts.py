"""Closes a job by Scrapy's CLOSESPIDER_ settings. Each parse process, and that of `start`, counts what it sees;
a job that goes on after its end has new ones. CLOSESPIDER_PAGECOUNT is a limit of the job (`run.max_pages`), which
counts over all of them.
"""

from scrapy.settings import BaseSettings

from ..exchange import CallResult


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
        """The same for a part of `start`: that it gives no items says nothing, since pages give them elsewhere."""
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
    """The first reason whose count has reached its limit; empty for none. A limit of 0 is none."""
    return next((reason for count, most, reason in counts if most and count >= most), "")
