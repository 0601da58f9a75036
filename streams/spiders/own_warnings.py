"""Warnings about a spider whose callbacks count on one process: objects shared by requests, changed attributes."""

from collections import deque
from functools import cached_property
from typing import Any


class SharedState:
    """What the requests of one page share, and which attributes of the spider change. Each warning is given once."""

    def __init__(self, spider: object) -> None:
        self._spider = spider
        self._name = type(spider).__name__
        self._of_class = _growing(spider)
        self._met: dict[int, tuple[Any, int]] = {}
        self._request = 0
        self._warnings: list[str] = []
        self._warned: set[str] = set()
        self.opened()

    def opened(self) -> None:
        """The spider is as its callbacks find it: only later changes are theirs."""
        self._known = self._seen()

    def next_request(self) -> None:
        self._request += 1

    def meet(self, value: object, place: str) -> None:
        """Note a mutable object of a request; it is held until the page ends, so that its identity is its own."""
        met = self._met.setdefault(id(value), (value, self._request))
        if met[1] != self._request:
            self._warn(
                f"{self._name}: the {type(value).__name__} {place:.200} is in several requests: each callback gets a"
                " copy of its own, so that no callback sees what another one writes into it"
            )

    def page_ended(self) -> list[str]:
        """The new warnings."""
        self._met.clear()
        seen = self._seen()
        for name, now in seen.items():
            before = self._known.get(name, (None, -1))
            if (before[0] is not now[0] or before[1] != now[1]) and not _is_cache(self._spider, name):
                self._warn(
                    f"{self._name}: a callback changes self.{name}: each worker has a spider of its own, and a kill"
                    " takes it along; carry values in cb_kwargs, or write items and join them behind the crawl"
                )
        self._known = seen
        told, self._warnings = self._warnings, []
        return told

    def _seen(self) -> dict[str, tuple[Any, int]]:
        """Each attribute, and the length of one that may grow; -1 for others."""
        named = self._of_class | vars(self._spider)
        return {name: (value, len(value) if isinstance(value, _GROWING) else -1) for name, value in named.items()}

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 100:
            self._warned.add(text)
            self._warnings.append(text)


def _growing(spider: object) -> dict[str, object]:
    """Attributes of its class that may grow."""
    of_class = (vars(one).items() for one in reversed(type(spider).__mro__))
    return {
        k: value for some in of_class for k, value in some if isinstance(value, _GROWING) and not k.startswith("__")
    }


# Kinds whose length is asked for; that of a user's own class may be a query.
_GROWING = (list, dict, set, deque, bytearray)


def _is_cache(spider: object, name: str) -> bool:
    return isinstance(getattr(type(spider), name, None), cached_property)
