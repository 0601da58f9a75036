"""Pages for users' spiders: wait in a line for their job, go to the job's process, and come back as results.

    add ─► line of the job ─► several in flight ─► result ─┬─► outputs of the page
                  ▲                                        └─► an error: again, at last a dead letter
                  └── the process ended: all in flight again, one at a time, so that the guilty page is found

A page in a line holds back the commit. Few processes run at once: the one that was used least recently makes room for
another job, and one that is always busy does so after a while. `ParseStage` decides what becomes of a result.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
import structlog

from crawlog.agents.sandbox import DONE, Died, Fault, SpiderFrame, fault_of, misconfigured, result_of
from crawlog.schemas.dead import told_error
from crawlog.schemas.pages import PageMeta
from crawlog.streams.parse import Job, Message, Page, are_known, parsed_of, wants_spider
from crawlog.streams.spiders import (
    NOTHING,
    CallResult,
    PageCall,
    Parsed,
    SpiderFacts,
    SpiderRef,
    is_redirect,
    ref_of,
    unread,
)

log = structlog.get_logger()

MAX_TRIES = 3  # Attempts of a page: one that failed for lack of memory may succeed at the next

# Pages at once on their way to a process: it never waits for the next one. At least one, of any size.
MAX_FLYING, MAX_FLYING_BYTES = 32, 1 << 20

MAX_COUNT, MAX_BYTES = 1024, 32 << 20  # No more pages are taken while so many wait for spiders

SLICE_S = 5.0  # Time after which a busy process makes room for the spider of another job

# Pause before a spider that could not be used is tried again: so many times as long as the try took, within these
# seconds. Its code may have been deployed again meanwhile, or the disk of the cache has room again.
FAULT_S, FAULT_TIMES, MOST_FAULT_S = 2.0, 5, 60.0

MAX_UNREAD = 20  # Pages without a callback that are logged, of each reason; `jobs show` counts all

MAX_WARNINGS = 1000  # Warnings of a spider remembered, so that each is logged once


class Child(Protocol):
    """The part of `BackgroundChild` that is used here."""

    loaded: SpiderFacts | None
    fault: Fault | None
    died_of: str
    heard_facts: Callable[[], None]

    def load(self) -> None:
        """Start the process."""

    def submit_page(self, call: PageCall, then: Callable[[SpiderFrame | Died], None]) -> None:
        """Send a page."""

    def close(self) -> None:
        """Let the process end, without waiting for it."""

    def wait_ended(self) -> None:
        """Wait until it has ended. Blocks."""


class SpiderPage:
    """A page for a spider.

    Attributes:
        body: May be from another record than its own.
        errors, deaths: Attempts that ended so.
        is_whole: Whether the process gives it with all requests: this worker has forgotten some of them.
    """

    __slots__ = ("body", "deaths", "errors", "is_whole", "job", "message", "meta", "page")

    def __init__(self, job: Job, message: Message, meta: PageMeta, page: Page, body: bytes) -> None:
        self.job = job
        self.message = message
        self.meta = meta
        self.page = page
        self.body = body
        self.errors = self.deaths = 0
        self.is_whole = False

    @property
    def size_bytes(self) -> int:
        """Of the body in memory; one that cannot be unpacked is there as it came."""
        return len(self.body) or len(self.message.value or b"")


class PagesStage(Protocol):
    """What becomes of the pages."""

    def spider_gave(self, page: SpiderPage, parsed: Parsed, error: str = "", trace: str = "") -> None:
        """Send the outputs of a page, and the page as a dead letter if there is an error."""

    def bury_page(self, page: SpiderPage, error: str, trace: str = "", *, is_logged: bool = False) -> None:
        """Send the page as a dead letter, and nothing else; log it, unless its error is logged for all pages."""


class _Line:
    """The pages of one job, and its process.

    Attributes:
        facts: Of the loaded spider; None before that.
        fault: Why its spider cannot be used.
        told_fault: The fault that was logged last; its pages are not logged one by one.
        fault_until_s: When the next page tries again.
        flying: Pages sent to the process, in order.
        returned: Pages that came back because it ended.
        is_suspect: Whether one of them ended it.
        alone: Pages still to be sent one at a time.
        deaths: Times that the process ended while it loaded the spider, in a row.
        leaves: Whether the process ends once nothing is in flight: another job needs its place.
        began_s: When the process got its place.
        unread: Pages that no callback got, by the reason.
        load_began_s: When it last began to load the spider: it does so again after a death.
    """

    def __init__(self, job: Job, ref: SpiderRef) -> None:
        self.job = job
        self.ref = ref
        self.child: Child | None = None
        self.facts: SpiderFacts | None = None
        self.fault: Fault | None = None
        self.fault_until_s = 0.0
        self.told_fault = ""
        self.waiting: deque[SpiderPage] = deque()
        self.flying: deque[SpiderPage] = deque()
        self.returned: list[SpiderPage] = []
        self.flying_bytes = 0
        self.is_suspect = False
        self.alone = self.deaths = 0
        self.leaves = False
        self.began_s = self.load_began_s = self.used_s = 0.0
        self.warned: set[str] = set()
        self.unread: Counter[str] = Counter()

    @property
    def has_room(self) -> bool:
        """Whether a page may be sent now."""
        if not self.flying:
            return not self.leaves
        room = len(self.flying) < MAX_FLYING and self.flying_bytes < MAX_FLYING_BYTES
        return room and not self.alone and not self.leaves

    def tell_unread(self, meta: PageMeta, why: str) -> None:
        """Log a page that no callback gets; fetch has logged one without an answer."""
        if why and meta.http is not None and (why in self.unread or len(self.unread) < MAX_WARNINGS):
            self.unread[why] += 1
            if self.unread[why] <= MAX_UNREAD:
                more = "; further ones are counted only" if self.unread[why] == MAX_UNREAD else ""
                log.warning("no_callback", job=meta.job, url=meta.url, reason=why + more)


class SpiderPages:
    """The lines of all jobs with spiders.

    Args:
        most: Processes at once.
        may_go: Whether pages may be sent now.

    Attributes:
        count, size_bytes: Pages that wait for a spider, in flight or not, and their bodies.
        gave: Called after a page got its outputs.
    """

    def __init__(
        self,
        new_child: Callable[[SpiderRef], Child],
        stage: PagesStage,
        most: int = 4,
        may_go: Callable[[], bool] = lambda: True,
    ) -> None:
        self._new_child = new_child
        self._stage = stage
        self._most = most
        self._lines: dict[str, _Line] = {}
        self._epoch = 0
        self.count = self.size_bytes = 0
        self.may_go = may_go
        self.gave: Callable[[], None] = lambda: None

    @property
    def is_full(self) -> bool:
        """Whether no more pages shall be taken for now."""
        return self.count >= MAX_COUNT or self.size_bytes >= MAX_BYTES

    def add(self, page: SpiderPage) -> None:
        """Let a page wait for its job's spider, or bury it if that cannot be used."""
        line = self._line(page.job)
        if line.fault is not None:
            if time.monotonic() < line.fault_until_s:
                self._bury(page, line.fault)
                return
            line.fault = None
        self.count += 1
        self.size_bytes += page.size_bytes
        line.waiting.append(page)
        self._go(line)

    def tend(self) -> None:
        """Send what may go now: a pause has ended, or a place is free. Call this now and then."""
        for line in sorted(self._lines.values(), key=lambda one: one.used_s):
            self._go(line)

    def clear(self) -> None:
        """Forget all pages; the answers of those in flight are ignored."""
        for line in self._lines.values():
            line.waiting.clear()
            line.returned.clear()
        self._epoch += 1
        self.count = self.size_bytes = 0

    def close(self) -> list[Child]:
        """Let all processes end, and forget all pages; returns those that end."""
        self.clear()
        ending = [line.child for line in self._lines.values() if line.child is not None]
        for line in self._lines.values():
            self._close(line)
        return ending

    def _line(self, job: Job) -> _Line:
        """The line of a job. Another revision may name another spider, let the job begin anew, or parse pages again."""
        line = self._lines.get(job.name)
        if line is None:
            line = self._lines[job.name] = _Line(job, _ref(job))
        elif line.job is not job:
            ref, is_anew = _ref(job), job.begun != line.job.begun
            is_anew |= job.spec.parse_again != line.job.spec.parse_again  # its file may have changed
            line.job, line.fault = job, None
            if is_anew or ref != line.ref:  # a spider's counts and attributes are of one run, as Scrapy's
                line.ref, line.facts = ref, None
                self._close(line)
        return line

    # The process.

    def _close(self, line: _Line) -> None:
        """End the process; its pages in flight go back into the line."""
        child, line.child = line.child, None
        line.leaves = False
        if child is not None:
            child.close()

    def _go(self, line: _Line) -> None:
        """Send pages while there is room."""
        if not line.waiting or line.fault is not None or not self.may_go() or not self._runs(line):
            return
        child, facts = line.child, line.facts
        assert child is not None
        if facts is None:
            return
        line.used_s = time.monotonic()
        while line.waiting and line.has_room and line.child is child:
            page = line.waiting.popleft()
            meta = page.meta if wants_spider(page.meta, facts) else page.job.ended(page.meta)
            if not wants_spider(meta, facts):
                self._left(page)
                why = "" if is_redirect(meta) else unread(meta)
                line.tell_unread(meta, why)
                self._stage.spider_gave(page, NOTHING._replace(label=facts.label, unread=why))
                self.gave()
                continue
            line.flying.append(page)
            line.flying_bytes += len(page.body)
            call = PageCall(meta, page.body, page.is_whole)
            if child.died_of:
                line.load_began_s = line.used_s
            try:
                child.submit_page(call, partial(self._answered, line, page, self._epoch))
            except OSError as error:
                line.waiting.appendleft(line.flying.pop())
                line.flying_bytes -= len(page.body)
                self._not_started(line, error)

    def _runs(self, line: _Line) -> bool:
        """Whether the line has a process; it is started if a place is free."""
        if line.child is not None:
            return True
        running = [one for one in self._lines.values() if one.child is not None]
        if len(running) >= self._most and not self._make_room(running):
            return False
        line.child = child = self._new_child(line.ref)
        child.heard_facts = partial(self._heard_facts, line, child)
        line.began_s = line.load_began_s = line.used_s = time.monotonic()
        line.facts = child.loaded
        try:
            child.load()
        except OSError as error:
            self._not_started(line, error)
        return line.child is child

    def _not_started(self, line: _Line, error: OSError) -> None:
        """Wait for memory, or for a free descriptor; `tend` tries again."""
        log.warning("spider_not_started", job=line.job.name, error=str(error))
        self._close(line)

    def _make_room(self, running: list[_Line]) -> bool:
        """End an idle process; else let a busy one end soon."""
        idle = [one for one in running if not one.flying and not one.waiting]
        if idle:
            self._close(min(idle, key=lambda one: one.used_s))
            return True
        oldest = min(running, key=lambda one: one.began_s)
        if time.monotonic() - oldest.began_s >= SLICE_S and oldest.facts is not None:
            oldest.leaves = True
            if not oldest.flying:
                self._close(oldest)
                return True
        return False

    def _heard_facts(self, line: _Line, child: Child) -> None:
        if line.child is not child:
            return
        if child.fault is not None:
            self._refuse(line, child.fault)
        elif not child.died_of:
            if line.facts is None and child.loaded is not None:
                log.info("spider_loaded", job=line.job.name, spider=child.loaded.label)
            line.facts, line.deaths, line.told_fault = child.loaded, 0, ""
            self._go(line)
        else:
            line.deaths += 1
            if line.deaths >= MAX_TRIES:
                self._refuse(line, Fault(f"spider_died: while it was loaded: {child.died_of}"))
            else:
                self._close(line)
                self._go(line)

    def _refuse(self, line: _Line, fault: Fault) -> None:
        """Bury all pages: the spider cannot be used. A page of another revision, or after a pause, tries again."""
        fault = msgspec.structs.replace(fault, error=" ".join(fault.error.split()))  # a dead letter's has one line
        now = time.monotonic()
        pause_s = min(max(FAULT_S, FAULT_TIMES * (now - line.load_began_s)), MOST_FAULT_S)
        line.fault, line.fault_until_s = fault, now + pause_s
        line.deaths = 0
        if fault.error != line.told_fault:  # each pause ends with another try, and often with the same error
            line.told_fault = fault.error
            told = told_error(fault.error, fault.trace)
            log.error("job_broken", job=line.job.name, rev=line.job.spec.rev, then="its pages are dead letters", **told)
        self._close(line)
        waiting, line.waiting = line.waiting, deque()
        for page in waiting:
            self._left(page)
            self._bury(page, fault)

    # Answers.

    def _answered(self, line: _Line, page: SpiderPage, epoch: int, answer: SpiderFrame | Died) -> None:
        line.flying.remove(page)  # the first one
        line.flying_bytes -= len(page.body)
        if epoch == self._epoch:
            if isinstance(answer, Died):
                self._died(line, page, answer)
            elif answer.kind == DONE:
                self._take(line, page, result_of(answer))
            else:  # loaded again after a death, and its file has changed
                line.waiting.appendleft(page)
                self._refuse(line, fault_of(answer))
        if line.flying:
            if not isinstance(answer, Died):
                self._go(line)
            return
        line.waiting.extendleft(reversed(line.returned))
        if line.is_suspect:
            line.alone = max(line.alone, len(line.returned))
        line.is_suspect = False
        line.returned.clear()
        if line.leaves:
            self._close(line)
            self.tend()
        else:
            self._go(line)

    def _died(self, line: _Line, page: SpiderPage, died: Died) -> None:
        """Try the page again, alone; the guilty one only so often. The first time it may be one shortly before it."""
        if died.ran and line.child is not None:
            line.is_suspect = True
            page.deaths += 1
            log.warning("spider_died", job=line.job.name, url=page.meta.url, reason=died.reason, times=page.deaths)
            if page.deaths >= MAX_TRIES:
                line.alone = max(line.alone - 1, 0)
                self._left(page)
                self._stage.bury_page(page, died.reason)
                return
        line.returned.append(page)

    def _take(self, line: _Line, page: SpiderPage, result: CallResult) -> None:
        for warning in result.warnings:
            if warning not in line.warned and len(line.warned) < MAX_WARNINGS:
                line.warned.add(warning)
                log.warning("spider_warns", job=line.job.name, warning=warning)
        if not page.is_whole and not are_known(result.requests, page.job.sent(page.meta.epoch)):
            page.is_whole = True
            line.waiting.appendleft(page)
            return
        page.errors += bool(result.error)
        if result.error and not result.is_final and page.errors < MAX_TRIES:
            line.waiting.appendleft(page)
            return
        line.alone = max(line.alone - 1, 0)
        self._left(page)
        assert line.facts is not None
        if not result.error or line.facts.is_scrapy:
            self._stage.spider_gave(page, parsed_of(result, line.facts, page.meta), result.error, result.trace)
        else:
            self._stage.bury_page(page, result.error, result.trace)
        self.gave()

    def _left(self, page: SpiderPage) -> None:
        self.count -= 1
        self.size_bytes -= page.size_bytes

    def _bury(self, page: SpiderPage, fault: Fault) -> None:
        self._stage.bury_page(page, str(misconfigured(fault)), fault.trace, is_logged=True)


def _ref(job: Job) -> SpiderRef:
    return ref_of(job.name, job.begun.epoch, job.spec)
