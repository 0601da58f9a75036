"""The parse stage: a page from the moment it is taken to the last of its outputs; no broker, no loop, no clockwork.

Here is only the way of a page: to the dead letters, to those that wait (`streams/parse/waiting.py`), to its spider, to
its outputs. It is parsed within one call. `streams/parse/job.py` decides about it.
"""

import traceback
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from crawlog.schemas import control, pages
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import MAX_PARSED
from crawlog.streams import crash_points
from crawlog.streams.html import is_costly, is_simple
from crawlog.streams.log import Topics
from crawlog.streams.parse import Held, Job, Jobs, Message, Page, PageLine, PageOutputs, Taken, again_of, outputs_of
from crawlog.streams.spiders import Parsed, TooMuch
from crawlog.streams.url import Places

from .guard import Guard, TimeUp
from .outputs import Outputs, Sender

log = structlog.get_logger()

GATHER_PAGES = 64
"""Pages after which founds are sent."""

CRASH_LOOP = "crash_loop: its worker died of it again and again, at last while it was parsed alone"

MAX_TRIES = 3
"""Times that a page is parsed which fails: what failed for want of memory may succeed."""

MAX_UNDONE = 4096
"""Pages taken and not done at which no more are taken."""

MAX_ASIDE = 256
"""Large pages put aside. They hold back the commit, so what is parsed meanwhile is parsed again after a kill."""

MAX_UNTRIED = 1024
"""Pages that wait for a trial, at which no more are taken; they hold back the commit too."""

COSTLY_PAGES = 2
"""Costly pages of a domain after which others are tried: a look for cycles may meet any page once."""

MAX_COSTLY = 10_000
"""Domains that are remembered for a page that cost much; then they are forgotten."""

MAX_BEYOND = 65_536
"""Pages taken beyond the commits, at which no more are taken: 8 MB, and three minutes to parse them again after a kill.

Fetch's back-pressure counts pages as parsed once they are taken: this bounds how far fetch runs ahead of a page that
waits."""

MAX_HELD_BYTES = 32 << 20
"""Bodies held for jobs that are not known yet, bytes, at which no more pages are taken."""


class Bodiless(NamedTuple):
    """A page that was not modified: its body lies in an older record, and is awaited."""

    message: Message
    meta: PageMeta
    page: Page


class ParseStage:
    """Everything about parse but the event stream and the clockwork.

    Args:
        founds: Sends what somebody waits for: founds, joins, dead letters; see `Producer.send`.
        items: Sends item records, for which only the page's acknowledgement waits.
        done: Tells that everything before an offset of a partition is done.
        now: UTC epoch seconds.
        guard: What a page may take.

    Attributes:
        taken: By partition, the offset behind the last page taken.
        written: See `Outputs.written`.
        aside: Large pages that let others go first.
        untried: Pages that wait for their trial; `lacks_trial` is called when one more does.
        bodiless: Pages that were not modified, by their place; `lacks_bodies` is called when there is one more.
        gathered: Pages parsed since the last flush.
        parsed: Pages taken, by job, the one taken last at the end.
        passes_over: Whether a page, by partition, offset and job, was done before a replay of another job alone.
    """

    def __init__(
        self,
        names: Topics,
        places: Places,
        founds: Sender,
        items: Sender,
        done: Callable[[int, int], None],
        now: Callable[[], float],
        guard: Guard = Guard(),  # noqa: B008  # frozen
    ) -> None:
        self.guard = guard
        self.passes_over: Callable[[int, int, str], bool] = lambda *_: False
        self._places = places
        self._outputs = Outputs(names, founds, items, now, places.partitions)
        self.written = self._outputs.written
        self._jobs = Jobs(places, guard.load)
        self._held = Held()
        self._taken = Taken(done, partial(crash_points.point, "parse.page.done"))
        self.taken = self._taken.ends
        self.aside = PageLine()
        self.untried = PageLine()
        self.lacks_trial: Callable[[], None] = lambda: None
        self.bodiless: dict[tuple[int, int], Bodiless] = {}
        self.lacks_bodies: Callable[[], None] = lambda: None
        self.gathered = 0
        self.pages = 0
        self.parsed: dict[str, int] = {}
        self.bytes = 0
        self._costly: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more pages should be taken for now."""
        is_crowded = self._taken.undone >= MAX_UNDONE or len(self.untried) >= MAX_UNTRIED
        return is_crowded or self.is_far or self._held.size_bytes >= MAX_HELD_BYTES

    @property
    def is_far(self) -> bool:
        """Whether so many pages were taken beyond those that hold back the commit that these go first."""
        return self._taken.beyond >= MAX_BEYOND

    @property
    def undone(self) -> int:
        """Pages taken and not done, without those that gave nothing yet: held, aside, not tried, or without a body."""
        return self._taken.undone - self._held.count - len(self.aside) - len(self.untried) - len(self.bodiless)

    @property
    def holds(self) -> bool:
        """Whether pages wait for their job, or for a revision of it."""
        return self._held.count > 0

    def learn(self, record: control.Control) -> None:
        """A record of crawl.control: a job's revision, a name that joined a scope, what a host answers to probes."""
        revised = self._jobs.learn(record)
        if revised is not None:
            if revised.error is not None:
                log.error("job_broken", job=revised.job, rev=revised.rev, exc_info=revised.error)
            for message, meta, page in self._held.let_go(revised.job):
                self._parse(message, meta, page)
            self.flush()

    def look_after_held(self) -> None:
        """Let go pages that waited too long: parsed by the newest known revision of their job, or buried."""
        for name in self._held.look():
            job = self._jobs.get(name)
            log.warning("held_too_long", job=name, known=job is not None)
            for message, meta, page in self._held.let_go(name):
                if job is None:
                    self._outputs.bury(message, name, f"UnknownJob: crawl.control has no job {name!r:.120}", page)
                else:
                    self._handle(job, message, meta, page)
            self.flush()

    def take(self, message: Message, *, aside: bool = False) -> None:
        """Parse a page, hold it, or put it aside if it may be; else its outputs are on their way, or gather."""
        page = self._taken.take(message.partition, message.offset)
        crash_points.point("parse.taken")
        self.bytes += len(message.value or b"")
        try:
            meta = pages.decode(_header(message))
            if self.passes_over(message.partition, message.offset, meta.job):
                page.one_done()
                return
            if meta.kind != "robots":  # what names sitemaps is none that was fetched as a page
                self.pages += 1
                self._count(meta.job)
        except ValueError as error:
            self.pages += 1
            self._outputs.bury(message, "", _said(error), page, _trace(error))
            return
        self._parse(message, meta, page, aside=aside and meta.kept and len(self.aside) < MAX_ASIDE)

    def _count(self, job: str) -> None:
        if job in self.parsed or len(self.parsed) < MAX_PARSED:
            self.parsed[job] = self.parsed.pop(job, 0) + 1

    def is_suspect(self, message: Message) -> bool:
        """Whether a page is to be parsed while nothing else is on its way: workers died of it."""
        return self.guard.notes.verdict(_key(message)) == "alone"

    def _parse(self, message: Message, meta: PageMeta, page: Page, *, aside: bool = False) -> None:
        job = self._jobs.get(meta.job)
        if job is None or job.spec.rev < meta.rev:
            fault = self._jobs.fault(meta)
            if fault is None:
                self._held.add(message, meta, page)
            else:
                self._outputs.bury(message, meta.job, fault, page)
        elif aside:
            self.aside.add(message, meta, page, message.value or b"")
        else:
            self._handle(job, message, meta, page)

    def _handle(  # a page, and what is known of it
        self, job: Job, message: Message, meta: PageMeta, page: Page, body: bytes = b"", *, tried: bool = False
    ) -> None:
        """Parse a page, with the body of another record where one is given; or have it tried first."""
        notes, key = self.guard.notes, _key(message)
        body = body or message.value or b""
        if notes.verdict(key) == "give_up":
            self._outputs.bury(message, meta.job, CRASH_LOOP, page)
            return
        if meta.same_as is not None and not body:
            self.bodiless[message.partition, message.offset] = Bodiless(message, meta, page)
            self.lacks_bodies()
            return
        if not tried and self.guard.trial is not None and self._may_cost(meta, body) and job.may_parse(meta):
            self.untried.add(message, meta, page, body)
            self.lacks_trial()
            return
        self.guard.make_room(len(body))
        notes.touch(key)
        try:
            judged, parsed = self.guard.clock.call(_parsed, job, meta, body)
            outputs = outputs_of(job, (message.partition, message.offset), judged, body, parsed)
            if parsed.reached or outputs.is_duplicate or outputs.is_soft_404 is not None:
                _tell(judged, parsed, outputs)
            self._outputs.give(job, outputs, page)
        except BaseException as error:  # noqa: BLE001  # whatever a spider may raise must not end the worker
            log.error("page_failed", url=meta.url, at=key, error=_said(error))  # noqa: TRY400  # its traceback is buried with it
            self._outputs.bury(message, meta.job, _said(error), page, _trace(error))
        notes.release(key)
        if not tried and is_costly(body, self.guard.clock.used_s):
            self._note_cost(meta)
        self.gathered += 1
        if self.gathered >= GATHER_PAGES:
            self.flush()

    def _may_cost(self, meta: PageMeta, body: bytes) -> bool:
        """Whether a page is to be tried before it is parsed: for its tags, or as pages of its domain cost much."""
        if not is_simple(body):
            return True
        return bool(self._costly) and self._costly.get(self.domain(meta.url), 0) >= COSTLY_PAGES

    def _note_cost(self, meta: PageMeta) -> None:
        """A page cost much that no count of tags told of, such as a single tag of 30,000 attributes."""
        domain = self.domain(meta.url)
        if len(self._costly) >= MAX_COSTLY:
            self._costly.clear()
        self._costly[domain] = count = self._costly.get(domain, 0) + 1
        if count == COSTLY_PAGES:
            log.warning("pages_costly", url=meta.url, then=f"pages of {domain} are tried first from now on")

    # Those that waited, when their turn has come.

    def parse_aside(self, body: bytes) -> None:
        """Parse the page that was put aside first.

        Args:
            body: Where it was let go; empty where crawl.pages has it no more. Then its URL is fetched once more.
        """
        waited = self.aside.pop()
        body = body if waited.body is None else waited.body
        if waited.body is None and not body:
            self._fetch_again(waited.meta, waited.page)
        else:
            self._handle(self._jobs[waited.meta.job], waited.whole(body), waited.meta, waited.page)

    def tried(self, body: bytes, refusal: str) -> None:
        """Parse the page that waited longest for its trial, or bury it.

        Args:
            body: Its own, or the one read again; empty where crawl.pages has it no more: its URL is fetched once more.
            refusal: Why it is not to be parsed; empty where it may be.
        """
        waited = self.untried.pop()
        meta, page = waited.meta, waited.page
        if not body:
            self._fetch_again(meta, page)
            return
        message = waited.whole(body)
        if not refusal:
            self._handle(self._jobs[meta.job], message, meta, page, body, tried=True)
            return
        log.error("page_refused", url=meta.url, at=_key(message), error=refusal)
        self._outputs.bury(message, meta.job, refusal, page)

    def body_came(self, at: tuple[int, int], old: PageMeta | None, body: bytes) -> None:
        """Parse a page that was not modified with the body of the older one; None where crawl.pages has that no more.

        Then its URL is fetched once more, without a condition: an epoch sets one once for each URL.
        """
        held = self.bodiless.pop(at, None)
        if held is None:  # given up meanwhile
            return
        message, meta, page = held
        if old is None:
            self._fetch_again(meta, page)
        else:
            self._handle(self._jobs[meta.job], message, pages.with_body(meta, old), page, body)

    def _fetch_again(self, meta: PageMeta, page: Page) -> None:
        job = self._jobs[meta.job]
        log.info("body_gone", url=meta.url, was=meta.same_as, then="fetched once more")
        self._outputs.give(job, again_of(job, meta), page)
        self.gathered += 1

    def domain(self, url: str) -> str:
        """The registrable domain of a page."""
        return self._places.of(url).domain

    def flush(self) -> None:
        """Send the founds that gathered."""
        self.gathered = 0
        self._outputs.flush()

    def give_up(self) -> None:
        """The partitions are no longer ours: their next owner reads again what is not done."""
        self._taken.give_up()
        self._held.clear()
        self.bodiless.clear()
        self.aside.clear()
        self.untried.clear()


def _key(message: Message) -> str:
    return f"{message.partition}:{message.offset}"


def _header(message: Message) -> bytes | None:
    return next((value for name, value in message.headers or () if name == pages.HEADER), None)


def _parsed(job: Job, meta: PageMeta, body: bytes) -> tuple[PageMeta, Parsed]:
    """The page, marked where it is a soft 404, and what the spider makes of it.

    Raises: BaseException: whatever it raised at the last of its tries.
    """
    judged = job.judged(meta, body)
    if judged is not meta:
        log.info("soft_404", url=meta.url)
    for tries in range(1, MAX_TRIES + 1):
        try:
            return judged, job.parsed(judged, body)
        except (TimeUp, TooMuch):
            raise
        except BaseException as error:
            if tries == MAX_TRIES:
                raise
            log.debug("page_tried_again", url=meta.url, error=_said(error))
    raise AssertionError("the last try returns or raises")


def _tell(meta: PageMeta, parsed: Parsed, outputs: PageOutputs) -> None:
    """Log what is unusual about a page's outputs."""
    if parsed.reached:
        log.warning("limit_reached", url=meta.url, limit=parsed.reached, links=len(parsed.outlinks))
    if outputs.is_duplicate:
        log.info("links_skipped", url=meta.url, rule="duplicate", links=len(parsed.outlinks))
    if outputs.is_soft_404 is not None:
        log.info("probed", url=meta.url, http=meta.http, soft_404=outputs.is_soft_404)


def _said(error: BaseException) -> str:
    """An error on one line, as far as it can say anything."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  # it is a spider's: anything may happen
        text = type(error).__name__
    return text.partition("\n")[0][:1000]


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  # its words, or its source, cannot be had
        return "".join(traceback.format_tb(error.__traceback__))
