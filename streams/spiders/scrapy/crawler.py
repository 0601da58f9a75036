"""A Crawler of Scrapy without an engine: crawlog fetches, queues and filters requests itself.

settings of the project, `custom_settings`, `-s` ─► StandInCrawler ─► spider, signals, stats, extensions, middlewares
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from scrapy import signals
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, NotSupported
from scrapy.extension import ExtensionManager
from scrapy.http import Request
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager, dispatcher  # type: ignore[attr-defined]  # pydispatch
from scrapy.spiders import Spider
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import build_from_crawler, load_object

from . import facts
from .counted import counted, hears_end
from .download_engine import NO_ENGINE, DownloadEngine
from .downloading import Downloading

# Signals that are sent: those of items where pipelines are in the pipelines' process, `spider_closed` there too.
SENT = frozenset(
    {
        "engine_started",
        "spider_opened",
        "spider_idle",
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


T = TypeVar("T")

# The extensions of Scrapy's that run here: the others need the engine, or do what crawlog does.
COUNTING = ("scrapy.extensions.corestats.CoreStats", "scrapy.extensions.logcount.LogCount")

CLOSE_SPIDER = "scrapy.extensions.closespider.CloseSpider"  # Its work is done here, see `CloseCounts`


class IdleEngine:
    """What there is of Scrapy's engine, in `spider_idle` and where scrapy-redis schedules requests.

    Attributes:
        scheduled: Requests that were sent.
        closes: Why the job is to be closed; empty if it is not.
    """

    def __init__(self) -> None:
        self.scheduled: list[Request] = []
        self.closes = ""

    def crawl(self, request: Request, spider: Spider | None = None) -> None:  # noqa: ARG002  # as before Scrapy 2.6
        """Send a request."""
        self.scheduled.append(request)

    def close_spider(self, spider: Spider, reason: str = "cancelled") -> None:  # noqa: ARG002  # Scrapy's own signature
        """Close the job, as CloseSpider does."""
        self.closes = reason_of(CloseSpider(reason))

    def __getattr__(self, name: str) -> Any:
        """Raises: NotSupported: always."""
        raise NotSupported(f"crawler.engine.{name} {NO_ENGINE}")


class StandInCrawler(Crawler):
    """The crawler that spiders, middlewares and pipelines get.

    Attributes:
        spidermw: The spider middlewares, in the order of Scrapy.
        downloading: The downloader middlewares that run here.
        pipelines: The item pipelines, in their own process.
        idle_engine: `engine` in an idle round; None elsewhere.
        download_engine: `engine` elsewhere.
    """

    signals: NotedSignals
    spidermw: SpiderMiddlewareManager
    downloading: Downloading
    pipelines: tuple[Any, ...] = ()
    idle_engine: IdleEngine | None = None
    _left_out: tuple[str, ...] = ()

    def __init__(self, kind: type[Spider], settings: Settings) -> None:
        super().__init__(kind, settings)
        self.signals = NotedSignals(self)
        self.download_engine = DownloadEngine(self)

    @property
    def engine(self) -> Any:  # type: ignore[override]  # Scrapy sets it; here it is a part of Scrapy's
        """That of an idle round; elsewhere one that downloads."""
        return self.idle_engine or self.download_engine

    def stop(self) -> Any:
        """Raises: NotSupported: always; Scrapy's would find nothing that runs, and say nothing."""
        raise NotSupported(f"crawler.stop() {NO_ENGINE}")

    async def stop_async(self) -> None:
        """Raises: NotSupported: always."""
        self.stop()

    def prepare(self, args: dict[str, str]) -> Spider:
        """Make the spider and all components, in the order of Scrapy.

        Raises: Misconfigured: the spider's `from_crawler` or an add-on sets what cannot work here.
        """
        self.spider = spider = self._create_spider(**args)
        self.addons.load_settings(self.settings)
        facts.check(self.settings, spider)
        self._apply_deprecated_spider_attr("download_delay", "DOWNLOAD_DELAY")
        self._apply_deprecated_spider_attr("max_concurrent_requests", "CONCURRENT_REQUESTS_PER_DOMAIN")
        self.stats = counted(load_object(self.settings["STATS_CLASS"]), self)
        self.logformatter = build_from_crawler(load_object(self.settings["LOG_FORMATTER"]), self)
        kind = load_object(self.settings["REQUEST_FINGERPRINTER_CLASS"])
        self.request_fingerprinter = build_from_crawler(kind, self)
        extensions = _extensions(self.settings)
        of_project = {name: order for name, order in extensions.items() if not path_of(name).startswith("scrapy.")}
        counting = {name: order for name, order in extensions.items() if path_of(name) in COUNTING}
        enabled = [
            path_of(name) for name in self.settings["EXTENSIONS"] if name in extensions and name not in of_project
        ]
        self._left_out = tuple(path for path in enabled if path not in (*COUNTING, CLOSE_SPIDER))
        self.settings.set("EXTENSIONS_BASE", counting, priority="cmdline")
        self.settings.set("EXTENSIONS", of_project, priority="cmdline")
        self.extensions = build_from_crawler(ExtensionManager, self)
        self.settings.freeze()
        if self.settings["JOBDIR"] or not hasattr(spider, "state"):
            spider.state = {}  # type: ignore[attr-defined]  # Scrapy's extension SpiderState sets it
        self.spidermw = build_from_crawler(SpiderMiddlewareManager, self)
        self.downloading = build_from_crawler(Downloading, self)
        return spider

    async def open(self) -> str:
        """Send the signals of a start; handlers get what they connect to before the first request.

        Returns: Why one of them closes the spider; else empty.
        """
        await self.signals.send_catch_log_async(signal=signals.engine_started)
        told = await self.signals.send_catch_log_async(
            signal=signals.spider_opened, spider=self.spider, dont_log=CloseSpider
        )
        return next((reason_of(said) for _, said in told if isinstance(said, CloseSpider)), "")

    def hears_end(self) -> bool:
        """Whether the spider, or a component of the project, is told of the end of the job."""
        is_heard = callable(getattr(self.spider, "closed", None)) or self.signals.has_of_project(signals.spider_closed)
        return is_heard or self.has_own_stats

    @property
    def is_fed(self) -> bool:
        """Whether something of the project waits for `spider_idle`."""
        return self.signals.has_of_project(signals.spider_idle)

    @property
    def has_own_stats(self) -> bool:
        """Whether the stats collector is the project's, and is told of the start and the end."""
        return hears_end(load_object(self.settings["STATS_CLASS"]))

    def in_vain(self) -> Iterator[str]:
        """A line for each part of the project that waits for what never comes, or comes to another process."""
        yield from self.signals.in_vain()
        yield from self.signals.apart()
        if self.is_fed:
            yield (
                "the job goes on until it is stopped (`crawlog jobs stop`), or until its spider ends that: spider_idle "
                "is sent in the process of `start`, which does not see what callbacks change"
            )
        for path in self._left_out:
            yield f"EXTENSIONS: {path} needs the engine and does not run here"
        if self.has_own_stats:
            path = path_of(self.settings["STATS_CLASS"])
            yield f"STATS_CLASS: {path} is opened and closed in the pipelines' process, and has its counts alone"
        for one in self.spidermw.middlewares:
            if hasattr(one, "process_start_requests") and not hasattr(one, "process_start"):
                name = type(one).__qualname__
                yield f"{name}.process_start_requests is called by no Scrapy since 2.13: write process_start"

    def get_spider_middleware(self, cls: type[T]) -> T | None:
        """As in Scrapy."""
        return self._get_component(cls, self.spidermw.middlewares)

    def get_downloader_middleware(self, cls: type[T]) -> T | None:
        """As in Scrapy; None for those that crawlog does itself."""
        return self._get_component(cls, self.downloading.middlewares)

    def get_item_pipeline(self, cls: type[T]) -> T | None:
        """As in Scrapy, in the process of the pipelines; None elsewhere."""
        return self._get_component(cls, self.pipelines)


def reason_of(closing: CloseSpider) -> str:
    """The reason of a CloseSpider, which may be any object; never empty, and text that a record can hold."""
    reason = str(closing.reason or "") or "cancelled"
    return reason.encode(errors="replace").decode()


def _extensions(settings: Settings) -> dict[Any, Any]:
    """All enabled extensions, with their order."""
    own = settings.get_component_priority_dict_with_base("EXTENSIONS")
    return {name: own[name] for name in build_component_list(own)}


def path_of(component: Any) -> str:
    """The import path of a component, which settings name by path or by class."""
    return component if isinstance(component, str) else f"{component.__module__}.{component.__qualname__}"


NAME = "twisted.internet.reactor"


class ReactorOnDemand(Loader):
    """Finds the module that Twisted's reactor is, by installing it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # Python's own signature
        """The reactor's spec; None leaves other modules to the next finders."""
        return ModuleSpec(NAME, self) if name == NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002  # Python's own signature
        """The reactor, installed on the loop of this process."""
        from twisted.internet import asyncioreactor

        loop = asyncio.get_event_loop()
        asyncioreactor.install(loop)  # type: ignore[no-untyped-call]  # Twisted's
        if loop.is_running():
            start_if_installed()
        return sys.modules[NAME]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is an object already."""


def install_on_demand() -> None:
    """From now on, the first import of a reactor installs the one of this loop."""
    if not any(isinstance(one, ReactorOnDemand) for one in sys.meta_path):
        sys.meta_path.insert(0, ReactorOnDemand())


def start_if_installed() -> None:
    """Let a reactor that was imported begin: threads and timers of it work from now on. The loop runs already."""
    reactor: Any = sys.modules.get(NAME)
    if reactor is not None and not reactor.running:
        reactor.startRunning(installSignalHandlers=False)
