"""The parse stage: routes each page, without broker, event loop or timers.

    take ─┬─► dead letter
          ├─► waits for its job ─┐
          └──────────────────────┴─► unpacked (`page_steps.py`) ─┬─► waits (`turns.py`) ─┐
                                                                 └───────────────────────┴─► spider ─► outputs

A page is parsed within one call. `streams/parse/job.py` has the decisions.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.sandbox import error_line
from crawlog.schemas import control, pages
from crawlog.schemas.dead import told_error
from crawlog.schemas.pages import PageMeta
from crawlog.streams import crash_points
from crawlog.streams.errors import OffsetFell
from crawlog.streams.html import is_costly
from crawlog.streams.log import Topics
from crawlog.streams.parse import Held, Job, Jobs, Message, Page, PageLine, Taken, TakenPage, again_of, outputs_of
from crawlog.streams.spiders import Parsed, user_trace
from crawlog.streams.url import Places

from .guard import Guard
from .outputs import Outputs, Sender
from .page_steps import CostlyDomains, no_room, parsed, plain_body, unpacked
from .remarks import Remarks, counted
from .spider_pages import SpiderPage, SpiderPages

if TYPE_CHECKING:
    from .lending import Lender

log = structlog.get_logger()

GATHER_PAGES = 64  # Pages parsed before the gathered founds are sent

CRASH_LOOP = "crash_loop: its worker died of it again and again, at last while it was parsed alone"

MAX_UNDONE = 4096  # No more pages are taken while this many are not done

# Large pages put aside, and pages that wait for a trial, at most. They hold back the commit, so pages parsed meanwhile
# are parsed again after a kill.
MAX_ASIDE, MAX_UNTRIED = 256, 1024

# No more pages are taken while this many are beyond the commits: 8 MB, and three minutes of parsing after a kill. To
# fetch's back-pressure a page is parsed once it is taken, so this bounds how far fetch runs ahead of a waiting page.
MAX_BEYOND = 65_536

MAX_HELD_BYTES = 32 << 20  # No more pages are taken while pages of unknown jobs hold this many bytes


class ParseStage:
    """All of parse except the event stream and the timers.

    Args:
        founds: Producer of records that the crawl waits for: founds, joins, dead letters; see `Producer.send`.
        items: Producer of item records; only the page's own acknowledgement waits for these.
        done: Called with a partition and an offset: all pages before it are done.
        now: UTC epoch seconds.
        guard: The limits of a page.

    Attributes:
        spiders: Pages that wait for users' spiders; None parses no pages of jobs with spiders.
        lender: Pages that helper processes parse; None lends none.
        taken: By partition, the offset behind the last page taken.
        again: Stored pages that are parsed again and not done.
        written: See `Outputs.written`.
        aside: Large pages that let smaller ones go first.
        untried: Pages that wait for their trial; each new one calls `lacks_trial`.
        bodiless: Pages that were not modified, by (partition, offset); each new one calls `lacks_bodies`.
        gathered: Pages parsed since the last flush.
        lacks_flush: Called when a change waits for a flush.
        parsed: Pages taken, by job; the latest job is at the end.
        remarks: What is told of these jobs' pages.
        passes_over: Whether a page (partition, offset, job) is skipped: a replay of another job reads it again.
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
        self.spiders: SpiderPages | None = None
        self.lender: Lender | None = None
        self.passes_over: Callable[[int, int, str], bool] = lambda *_: False
        self._places = places
        self._topic = names.pages
        flush = lambda: self.lacks_flush()  # noqa: E731, PLW0108  # it is set later
        self._outputs = Outputs(names, founds, items, now, places.partitions, flush)
        self.written = self._outputs.written
        self._jobs = Jobs(places, guard.check)
        self._held = Held()
        self._taken = Taken(done, partial(crash_points.point, "parse.page.done"))
        self.taken = self._taken.ends
        self.again = Taken(lambda *_: None, partial(crash_points.point, "parse.page.done"))
        self.aside = PageLine()
        self.untried = PageLine()
        self.lacks_trial: Callable[[], None] = lambda: None
        self.bodiless: dict[tuple[int, int], TakenPage] = {}
        self.lacks_bodies: Callable[[], None] = lambda: None
        self.lacks_flush: Callable[[], None] = lambda: None
        self.gathered = 0
        self.pages = 0
        self.parsed: dict[str, int] = {}
        self.remarks = Remarks()
        self.bytes = 0
        self._costly = CostlyDomains()

    @property
    def is_full(self) -> bool:
        """Whether no more pages shall be taken for now."""
        is_crowded = self._taken.undone + self.again.undone >= MAX_UNDONE or len(self.untried) >= MAX_UNTRIED
        is_crowded |= self.spiders is not None and self.spiders.is_full
        return is_crowded or self.is_far or self._held.size_bytes >= MAX_HELD_BYTES

    @property
    def is_far(self) -> bool:
        """Whether the pages that hold back the commit must go first: too many pages are beyond the commits."""
        return self._taken.beyond >= MAX_BEYOND

    @property
    def undone(self) -> int:
        """Parsed pages whose outputs are not all in the log."""
        waiting = self._held.count + len(self.aside) + len(self.untried) + len(self.bodiless)
        return (
            self._taken.undone + self.again.undone - waiting - (self.spiders.count if self.spiders is not None else 0)
        )

    def learn(self, record: control.Control) -> None:
        """Apply a record of crawl.control: a job's revision, a name that joined a scope, a host's answer to a probe."""
        revised = self._jobs.learn(record)
        if revised is not None:
            if revised.error is not None:
                log.error("job_broken", job=revised.job, rev=revised.rev, exc_info=revised.error)
            for message, meta, page in self._held.let_go(revised.job):
                self._parse(message, meta, page)
            self.flush()

    def look_after_held(self) -> bool:
        """End the wait of pages held too long: parse them by the newest known revision of their job, or bury them.

        Returns: Whether pages waited.
        """
        waited = self._held.count > 0
        for name in self._held.look():
            job = self._jobs.get(name)
            log.warning("held_too_long", job=name, known=job is not None)
            for message, meta, page in self._held.let_go(name):
                if job is None:
                    self._outputs.bury(message, name, f"UnknownJob: crawl.control has no job {name!r:.120}", page)
                else:
                    self._open(job, message, meta, page)
            self.flush()
        return waited

    def take(self, message: Message, *, aside: bool = False, lends: bool = False) -> None:
        """Take a page: parse it, bury it, or let it wait.

        Args:
            aside: Whether it waits until smaller pages are parsed.
            lends: Whether a helper may parse it.
        Raises: OffsetFell: its offset is not above those of pages that are not done.
        """
        at = message.partition, message.offset
        try:
            page = self._taken.take(*at)
        except ValueError as error:  # no CRC covers the first offset of a batch
            raise OffsetFell(self._topic, *at, str(error)) from None
        crash_points.point("parse.taken")
        self.bytes += len(message.value or b"")
        try:
            meta = pages.meta_in(message.headers)
            if self.passes_over(*at, meta.job):
                page.one_done()
                return
            self.pages += counted(self.parsed, meta)
        except ValueError as error:
            self.pages += 1
            self._outputs.bury(message, "", error_line(error), page, user_trace(error))
            return
        is_aside = aside and meta.kept and len(self.aside) < MAX_ASIDE
        self._parse(message, meta, page, aside=is_aside, lends=lends and not is_aside)

    def take_again(self, message: Message, meta: PageMeta) -> None:
        """Take a stored page, to parse it again."""
        self.pages += counted(self.parsed, meta)
        self._parse(message, meta, self.again.take(message.partition, message.offset))

    def is_suspect(self, message: Message) -> bool:
        """Whether a page must be parsed alone, with nothing else in flight: workers died while parsing it."""
        return self.guard.notes.verdict(_key(message)) == "alone"

    def _parse(self, message: Message, meta: PageMeta, page: Page, *, aside: bool = False, lends: bool = False) -> None:
        job = self._jobs.get(meta.job)
        if self._jobs.is_deleted(meta):
            page.one_done()
        elif job is None or self._jobs.is_behind(meta):
            fault = self._jobs.fault(meta)
            if fault is None:
                self._held.add(message, meta, page)
            else:
                self._outputs.bury(message, meta.job, fault, page)
        elif lends and self.lender is not None and self.lender.lend(job, TakenPage(message, meta, page)):
            self.gathered += 1
        else:
            self._open(job, message, meta, page, aside=aside)

    def _open(self, job: Job, message: Message, meta: PageMeta, page: Page, *, aside: bool = False) -> None:
        """Unpack the body of a page; then parse it, or put it aside."""
        key = _key(message)
        if self.guard.notes.verdict(key) == "give_up":
            self._outputs.bury(message, meta.job, CRASH_LOOP, page)
            return
        try:
            message, meta = unpacked(self.guard, key, message, meta)
        except BaseException as error:  # noqa: BLE001  # no exception of a page may end the worker
            self._failed(message, meta, page, error)
            self.guard.notes.release(key)
            return
        if aside and (body := plain_body(message)):
            self.aside.add(message, meta, page, body)
        else:
            self._handle(job, message, meta, page)

    def _handle(  # a page, its job and its metadata
        self, job: Job, message: Message, meta: PageMeta, page: Page, body: bytes = b"", *, tried: bool = False
    ) -> None:
        """Parse a page, or let it wait for its body or its trial.

        Args:
            body: From another record; empty for the page's own.
            tried: Whether its trial is over.
        """
        notes, key = self.guard.notes, _key(message)
        body = body or plain_body(message)
        if meta.same_as is not None and not body:
            waits = TakenPage(message, meta, page)
            if self.bodiless.setdefault((message.partition, message.offset), waits) is not waits:
                page.one_done()  # a stored page that waits as a new one, too: that one is not committed yet
            self.lacks_bodies()
            return
        if job.spec.spider and meta.kind == "page":
            assert self.spiders is not None, "a job with a spider came before the first assignment"
            self.spiders.add(SpiderPage(job, message, meta, page, body))
            return
        if (
            not tried
            and self.guard.trial is not None
            and self._costly.may_cost(self.domain, meta.url, body)
            and job.may_parse(meta)
        ):
            self.untried.add(message, meta, page, body)
            self.lacks_trial()
            return
        self.guard.make_room(len(body))
        notes.touch(key)
        try:
            meta, made = self.guard.clock.call(parsed, job, meta, body)
            self._give(job, message, meta, page, made)
        except BaseException as error:  # noqa: BLE001  # no exception of a page may end the worker
            self._failed(message, meta, page, error)
        notes.release(key)
        if not tried and is_costly(body, self.guard.clock.used_s):
            self._costly.note(self.domain(meta.url), meta.url)
        self._gather()

    def _give(  # a page, its job, its metadata, and what was made of it
        self, job: Job, message: Message, judged: PageMeta, page: Page, parsed: Parsed
    ) -> None:
        """Send the outputs of a page."""
        if parsed.closes and self._jobs.is_past(judged):
            parsed = parsed._replace(closes="")
        outputs = outputs_of(job, (message.partition, message.offset), judged, parsed)
        if judged.job in self.parsed:
            self.remarks.take(job, judged, parsed)
        if parsed.reached:
            links = len(parsed.outlinks) + len(parsed.foreign)
            log.warning("limit_reached", job=judged.job, url=judged.url, limit=parsed.reached, links=links)
        self._outputs.give(job, outputs, page)

    def _failed(self, message: Message, meta: PageMeta, page: Page, error: BaseException) -> None:
        """Bury a page because of an error of this process."""
        log.error("page_failed", job=meta.job, url=meta.url, at=_key(message), error=error_line(error))
        self._outputs.bury(message, meta.job, error_line(error), page, user_trace(error))

    def _gather(self) -> None:
        self.gathered += 1
        if self.gathered >= GATHER_PAGES:
            self.flush()

    def came_back(self, job: Job, lent: TakenPage, parsed: Parsed | None) -> None:
        """Send the outputs of a page that was lent when its job was `job`; parse it if there is no result."""
        message, meta, page = lent
        newest = _job_after_wait(self._jobs, meta, page)
        if newest is None:
            return
        if parsed is None or newest is not job:
            self._open(newest, message, meta, page)
            return
        try:
            self._give(job, message, meta, page, parsed)
        except BaseException as error:  # noqa: BLE001  # no exception of a page may end the worker
            self._failed(message, meta, page, error)
        self._gather()

    def spider_gave(self, waited: SpiderPage, parsed: Parsed, error: str = "", trace: str = "") -> None:
        """Send the outputs of a page, and the page as a dead letter if there is an error."""
        message, meta, page = waited.message, waited.meta, waited.page
        if _job_after_wait(self._jobs, meta, page) is None:
            return
        notes, key = self.guard.notes, _key(message)
        notes.touch(key)
        try:
            if error:
                page.wait()  # for its dead letter too
            self._give(waited.job, message, meta, page, parsed)
        except BaseException as failure:  # noqa: BLE001  # no exception of a page may end the worker
            if error:
                page.one_done()
            self._failed(message, meta, page, failure)
        else:
            if error:
                self.bury_page(waited, error, trace)
        notes.release(key)
        self._gather()

    def bury_page(self, waited: SpiderPage, error: str, trace: str = "", *, is_logged: bool = False) -> None:
        """Send a page as a dead letter; log it, unless its error is logged for all pages of its job."""
        if _job_after_wait(self._jobs, waited.meta, waited.page) is None:
            return
        if not is_logged:
            told, at = told_error(error, trace), _key(waited.message)
            log.error("page_failed", job=waited.meta.job, url=waited.meta.url, at=at, **told)
        self._outputs.bury(waited.message, waited.meta.job, error, waited.page, trace)

    # Waiting pages, when their turn has come.

    def parse_aside(self, body: bytes) -> None:
        """Parse the first page that was put aside.

        Args:
            body: Its body, read again if memory no longer had it. If it is empty, crawl.pages has lost it, and the URL
                is fetched once more.
        """
        waited = self.aside.pop()
        body = body if waited.body is None else waited.body
        job = _job_after_wait(self._jobs, waited.meta, waited.page)
        if job is None:
            return
        if waited.body is None and not body:
            self._fetch_again(job, waited.meta, waited.page)
        else:
            self._handle(job, waited.whole(body), waited.meta, waited.page)

    def tried(self, body: bytes, refusal: str) -> None:
        """Parse the page that waited longest for its trial, or bury it.

        Args:
            body: As `parse_aside` has it.
            refusal: Why it must not be parsed; empty if it may be.
        """
        waited = self.untried.pop()
        meta, page = waited.meta, waited.page
        job = _job_after_wait(self._jobs, meta, page)
        if job is None:
            return
        if not body:
            self._fetch_again(job, meta, page)
            return
        message = waited.whole(body)
        if not refusal:
            self._handle(job, message, meta, page, body, tried=True)
            return
        log.error("page_refused", job=meta.job, url=meta.url, at=_key(message), error=refusal)
        self._outputs.bury(message, meta.job, refusal, page)

    def body_came(self, at: tuple[int, int], old: PageMeta | None, body: bytes) -> None:
        """Parse a page that was not modified with the body of the older page.

        Args:
            old: The older page. If it is None, crawl.pages has lost it, and the URL is fetched once more. That request
                has no condition, because an epoch makes only one conditional request for each URL.
            body: Its body; empty if this worker has no room for it.
        """
        held = self.bodiless.pop(at, None)
        if held is None:  # given up meanwhile
            return
        message, meta, page = held
        job = _job_after_wait(self._jobs, meta, page)
        if job is None:
            return
        if old is None:
            self._fetch_again(job, meta, page)
        elif not body:
            self._failed(message, meta, page, no_room(old, self.guard.bounds.size_bytes))
        else:
            self._handle(job, message, pages.with_body(meta, old), page, body)

    def _fetch_again(self, job: Job, meta: PageMeta, page: Page) -> None:
        log.info("body_gone", job=meta.job, url=meta.url, was=meta.same_as, then="fetched once more")
        self._outputs.give(job, again_of(job, meta), page)
        self.gathered += 1

    def domain(self, url: str) -> str:
        """The registrable domain of a page."""
        return self._places.of(url).domain

    def flush(self) -> None:
        """Send the founds that gathered."""
        self.gathered = 0
        if self.lender is not None:
            self.lender.flush()
        self._outputs.flush()

    def give_up(self) -> None:
        """Forget all pages: the partitions are revoked, and their next owner reads again those that are not done."""
        self._taken.give_up()
        self.again.give_up()
        self._held.clear()
        self.bodiless.clear()
        self.aside.clear()
        self.untried.clear()
        if self.spiders is not None:
            self.spiders.clear()
        if self.lender is not None:
            self.lender.forget()


def _key(message: Message) -> str:
    return f"{message.partition}:{message.offset}"


def _job_after_wait(jobs: Jobs, meta: PageMeta, page: Page) -> Job | None:
    """The job of a page that has waited; the page is done if its job was deleted meanwhile."""
    job = jobs.of(meta)
    if job is None:
        page.one_done()
    return job
