"""Scrapy's signals: those that are sent here, and who waits for one that never comes."""

from collections.abc import Iterator
from typing import Any

from scrapy import signals
from scrapy.signalmanager import SignalManager, dispatcher  # type: ignore[attr-defined]  # pydispatch

# Signals that are sent: those of items where pipelines are in the pipelines' process, `spider_closed` there too.
SENT = frozenset(
    {
        "engine_started",
        "spider_opened",
        "spider_closed",
        "spider_error",
        "item_scraped",
        "item_dropped",
        "item_error",
        "response_received",
        "request_scheduled",
    }
)

# Those that are sent beside the spider only: the pipelines' process, which sends `spider_closed`, has other copies.
OF_PAGES = ("spider_error", "response_received", "request_scheduled")

# What to do instead of waiting for some others.
WAYS = {
    "spider_idle": "a crawl has no moment without requests that one process sees; yield what is left from start()",
    "engine_stopped": "use spider_closed, which is sent once a job",
    "request_dropped": "what is known is filtered in the log; `crawlog why URL` says what became of a request",
    "scheduler_empty": "the queue is in the log",
}

NAMES = {signal: name for name, signal in vars(signals).items() if type(signal) is object}


class NotedSignals(SignalManager):
    """Scrapy's signals, which know who is connected to what: by `crawler.signals` or by `pydispatch.dispatcher`."""

    def send_catch_log(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As in Scrapy; a signal that nobody waits for costs nothing."""
        return super().send_catch_log(signal, **kwargs) if self._receivers(signal) else []

    def only_receiver(self, signal: Any) -> Any:
        """The one receiver of a signal; None if there are several or none."""
        receivers = self._receivers(signal)
        return receivers[0] if len(receivers) == 1 else None

    def has_of_project(self, signal: Any) -> bool:
        return any(map(_is_of_project, self._receivers(signal)))

    def in_vain(self) -> Iterator[str]:
        """A line for each receiver of the project whose signal is never sent here."""
        for signal, name in NAMES.items():
            if name in SENT:
                continue
            way = WAYS.get(name, "crawlog fetches in other processes than those that run the spider")
            for receiver in filter(_is_of_project, self._receivers(signal)):
                who = getattr(receiver, "__qualname__", receiver)
                yield f"{who} waits for the signal {name}, which is never sent here: {way}"

    def apart(self) -> Iterator[str]:
        """A line for each object of the project that is told of pages in one process, and of the end in another."""
        for name in OF_PAGES:
            told = self._owners(getattr(signals, name))
            for owner in self._owners(signals.spider_closed):
                if any(owner is one for one in told):
                    yield (
                        f"{type(owner).__qualname__} hears {name} beside the spider, and spider_closed in the "
                        "pipelines' process, which has a copy of its own: that one knows nothing of the former"
                    )

    def _owners(self, signal: Any) -> list[Any]:
        """The objects of the project with a method that is connected to a signal."""
        owners = (getattr(one, "__self__", None) for one in self._receivers(signal) if _is_of_project(one))
        return [one for one in owners if one is not None]

    def _receivers(self, signal: Any) -> list[Any]:
        """As `dispatcher.getAllReceivers`, without its cost: it is asked for each request and each item."""
        found: list[Any] = []
        for sender in (self.sender, dispatcher.Any):
            if of_sender := dispatcher.connections.get(id(sender)):
                found += of_sender.get(signal, ())
                found += of_sender.get(dispatcher.Any, ())
        return list(dispatcher.liveReceivers(found)) if found else found


def _is_of_project(receiver: Any) -> bool:
    return not (getattr(receiver, "__module__", "") or "").startswith("scrapy.")
