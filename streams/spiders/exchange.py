"""What travels between a worker and the child process that runs a spider: pages in, items and requests out.

    worker: page ─► PageCall ─► child: Runner.page ─► CallResult ─► worker: founds, items
    supervisor: Runner.start ─► CallResult, in batches ─► founds

A `Runner` is one loaded spider: `own.py` has crawlog's own, `scrapy/` Scrapy's. It runs in the child alone.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import msgspec

from crawlog.schemas.job_orders import NO_LAYOUT, FeedLayout, FeedOutput
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord, check_identity
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.timing import Timing


class SpiderRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which spider to load, as a job's record names it: one child serves one reference and code version.

    Attributes:
        path: `FILE.py:Class`, `FOLDER:NAME` (a Scrapy project), or a module path.
        args: Arguments of the spider (`-a NAME=VALUE`).
        scrapy: Settings of Scrapy from the command line.
        job: Name of the job.
        epoch: Epoch of the job: requests of `start` have it in their identity.
        spec: The job's record, for its canonical rules and its sources of links; see `ref_of`.
        folder: Of deployed code: where it is unpacked; `path` is then the spider's name in it.
        after: Of a `start` that begins again by itself: when the one before it ended, UTC epoch seconds.
    """

    path: str
    args: tuple[tuple[str, str], ...] = ()
    scrapy: tuple[tuple[str, str], ...] = ()
    job: str = ""
    epoch: int = 0
    spec: JobSpec = JobSpec()
    folder: str = ""
    after: float = 0.0


# Fields of a job's record that a spider does not see, with a value.
_UNSEEN: dict[str, Any] = {
    "rev": 1,
    "state": "running",
    "reason": "",
    "by": "",
    "at": 0.0,
    "changed_at": 0.0,
    "outputs": (),
}


def ref_of(job: str, epoch: int, spec: JobSpec) -> SpiderRef:
    """The spider of a job. Revisions that differ only in what a spider does not see give one reference."""
    seen = msgspec.structs.replace(spec, scope=ScopeSpec(), max_pages=None, requests=None, **_UNSEEN)
    return SpiderRef(spec.spider, spec.args, spec.scrapy, job, epoch, seen)


class SpiderFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loaded spider as its job must know it, before anything is asked.

    Attributes:
        path: Absolute and complete: each worker loads the same spider by it.
        label: `NAME@VERSION`, for the records of crawl.items.
        digest: Of its code, in hex.
        start_urls: Seeds, where the spider has no `start` of its own.
        starts: Whether `Runner.start` gives the first requests.
        settings: Of the job, by dotted name (crawlog's own names).
        is_scrapy: Whether all answers go to the spider: failures and redirects too.
        takes_errors: Whether failures go to the spider: some request may have an errback.
        has_pipelines: Whether items pass pipelines before they are rows.
        statuses: Further status codes, beside 2xx, whose pages go to the spider.
        notes: Lines that are said at the start: what differs from Scrapy, and why.
        defaults: Where crawlog's defaults count and not Scrapy's, by crawlog's setting.
        feeds: Outputs that the project's settings name, for a command without `-o`.
        layout: How an output of `-o` writes rows.
        dumps_stats: Whether Scrapy's stats are shown at the end of the job.
        reads_proxies: Whether Scrapy would take proxies from the environment, which this process does not get.
        is_fed: Whether the spider is asked for more when the job has nothing left, until it or the operator ends that.
        every: Seconds after which its `start` begins again once it has ended; 0 for never.
        renders: Whether its requests are for a browser, whatever `render.mode` says.
    """

    path: str
    label: str
    digest: str = ""
    start_urls: tuple[str, ...] = ()
    starts: bool = False
    settings: dict[str, str | int | float | bool | list[str] | None] = {}
    is_scrapy: bool = False
    takes_errors: bool = False
    has_pipelines: bool = False
    statuses: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    defaults: dict[str, str] = {}
    feeds: tuple[FeedOutput, ...] = ()
    layout: FeedLayout = NO_LAYOUT
    dumps_stats: bool = False
    reads_proxies: bool = False
    is_fed: bool = False
    every: float = 0.0
    renders: bool = False


class SettingOrigin(msgspec.Struct, frozen=True):
    """A setting of Scrapy that something sets.

    Attributes:
        value: As Python writes it; hidden where it may be a secret.
        origin: Who sets it, by Scrapy's name: `project`, `spider`, `addon`, `cmdline`.
        effect: mapped, kept or refused.
        what: The setting of crawlog, or who reads it.
    """

    name: str
    value: str
    origin: str
    effect: str
    what: str


class PageCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page for the spider.

    Attributes:
        is_whole: Whether no request may be left to the worker's memory (`RequestOut.is_known`).
        gives_more: To be called after each `TIMED_OUTPUTS`: the page's time limit begins anew.
    """

    meta: PageMeta
    body: bytes = b""
    is_whole: bool = False
    gives_more: Callable[[], None] = lambda: None


# Outputs after which the time of a page begins anew: a sitemap with 50,000 URLs takes longer than other pages.
TIMED_OUTPUTS = 1000

MOST_TIMED = 250_000  # Outputs for which that is so; more do not fit into one answer


class RequestOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that a spider made.

    Attributes:
        url: Canonical by the job's rules, or verbatim for Scrapy's.
        id: 0 for a plain GET without a request record.
        hops: Redirects in a row that led here; 0 for a link.
        depth: Of the found; -1 for one more than its page's.
        timing: When it is sent at the earliest and the latest; None for at once.
        is_known: Whether this process gave it for an earlier page. It is not recorded again, so it has no request. A
            worker that does not know its `id` asks for the whole page once more.
    """

    url: str
    id: int = 0
    priority: int = 0
    request: RequestRecord | None = None
    hops: int = 0
    depth: int = -1
    timing: Timing | None = None
    is_known: bool = False

    def __post_init__(self) -> None:
        check_identity(self.id)


# What the next part of a `start` that `waits` may be: more work, because few requests of the job wait; or what is to be
# done because the job has nothing left.
FEED, IDLE = b"feed", b"idle"


class CallResult(msgspec.Struct, omit_defaults=True):
    """What a spider made of a page, or of a part of `start`.

    Attributes:
        items: JSON objects: rows, or items as scraped.
        is_raw: Whether the items are as scraped: tagged values, for a job with pipelines.
        error: One line; empty without an error. Items and requests beside it are kept (Scrapy); crawlog's own spiders
            give none.
        is_final: Whether the error would come again, so that the page is not tried again.
        goes_on: Of a part of `start`: whether more follows although it has an error.
        waits: Of a part of `start`: whether it gave all, and its spider is asked for more by a `FEED` or an `IDLE`.
        trace: Traceback of the error.
        closes: Reason of a CloseSpider; empty for none.
        stats: Stats that the page changed, as `ItemsRecord` has them.
        warnings: Lines for the log; each text is logged once.
    """

    items: list[msgspec.Raw] = []
    is_raw: bool = False
    requests: list[RequestOut] = []
    error: str = ""
    is_final: bool = False
    goes_on: bool = False
    waits: bool = False
    trace: str = ""
    closes: str = ""
    stats: dict[str, float] = {}
    warnings: list[str] = []


class Runner(Protocol):
    """One loaded spider, in the child. Its methods raise nothing: an error of the user's code is in the result."""

    @property
    def facts(self) -> SpiderFacts:
        """The spider as its job must know it."""

    async def page(self, call: PageCall) -> CallResult:
        """What the spider makes of a page, a failure or a redirect."""

    def start(self) -> AsyncGenerator[CallResult, bytes | None]:
        """The first requests, and items, in small batches; may be endless. Gets `FEED` or `IDLE` where it `waits`."""
