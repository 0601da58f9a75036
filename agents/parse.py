"""Parse: pages in, items and founds out, in the order that loses nothing.

    crawl.pages ─► take ─► (hold until the job's revision is known) ─► spider ─┬─► crawl.items, one record a page
                                                                            ├─► crawl.urls, founds batched across pages
                                                                            └─► crawl.control, a host that joins a scope
    every output of a page acknowledged ─► its offset is done ─► committed in offset order

A page is parsed inside its event: 0.2 ms, and there is no queue to lose. Only its founds wait, for others of their
partition, at most `GATHER_S` or `GATHER_PAGES`. A page gives all or nothing: its outputs are sent once all are there.
One that fails `MAX_TRIES` times, takes too long or kills its worker goes to crawl.dead (`guard.py`). One that might
take the HTML parser too long steps aside until a child process has tried it (`trial.py`), while others go on.
"""

import asyncio
import resource
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog
from confluent_kafka import KafkaException

from ..schemas import control, dead, items, pages, urls
from ..schemas.pages import PageMeta
from ..schemas.progress import Progress
from ..schemas.urls import DEFAULT_JOB, DEFAULT_SPEC, FoundUrl, JobSpec, Source, UrlsRecord
from ..streams import crash, topics
from ..streams.app import CrawlApp
from ..streams.canonical import Canonicaliser, InvalidUrl, fingerprint
from ..streams.complexity import is_simple
from ..streams.consumer import COMMIT_S, LARGE_BYTES, within
from ..streams.domain import Places
from ..streams.errors import EngineError, GiveUp, Misconfigured
from ..streams.founds import Batch, Founds, Sent
from ..streams.inorder import InOrder
from ..streams.kafka import Record
from ..streams.links import Links, Outlink
from ..streams.loading import load_spider
from ..streams.producer import Producer
from ..streams.scope import Scope, scope_name
from ..streams.settings import RECORD_HEADROOM, Settings
from ..streams.softerrors import Sketches, SoftErrors
from ..streams.spider import (
    NOTHING,
    SOFT_404,
    SPIDER,
    Bounds,
    Parse,
    Parsed,
    TooMuch,
    is_html,
    is_redirect,
    parse_listing,
    parse_page,
)
from ..streams.suspects import Suspects
from ..streams.twins import Twins
from . import progress
from .bodies import BATCH, Bodies
from .control import Garbage, Obedience, follow
from .guard import Clock, Guard, TimeUp
from .trial import Outcomes, Trial, TrialError

log = structlog.get_logger()

GATHER_PAGES = 64
"""Pages after which founds are sent."""

GATHER_S = 0.010
"""Longest time that a found waits for others, seconds."""

FOUND_LINGER_MS = 10
ITEM_LINGER_MS = 300
"""How long a record waits for others of its partition: each partition's batch is a request of its own to the broker,
which costs it some 250 µs."""

HURRY_S = 0.005
"""Length of one flush, which keeps the loop, when partitions are given up: nothing lingers then."""

HEARD_S = 0.020
"""Between two looks for acknowledgements: only the commit waits for them, which is written once a second."""

MAX_TRIES = 3
"""Times that a page is parsed which fails: what failed for want of memory may succeed."""

CRASH_LOOP = "crash_loop: its worker died of it again and again, at last while it was parsed alone"

KILLS_LIMIT = 4
"""Deaths that look as if they came from outside, after which the page that was being parsed each time is given up.

A page is parsed within a millisecond, so a storm of kills does not meet the same one so often. Fewer than a supervisor
takes for a broken worker."""

SITEMAP_PRIORITY = 20
"""Sitemaps are fetched before what they list, whose priorities are -10 to 10."""

PROBE_PRIORITY = 20
"""A probe goes before the pages that it may judge."""

MAX_UNDONE = 4096
"""Pages taken and not done at which no more are taken."""

MAX_ASIDE = 256
"""Large pages put aside. They hold back the commit, so what is parsed meanwhile is parsed again after a kill."""

ASIDE_BYTES = 16 << 20
"""Bodies of pages put aside that stay in memory, bytes; others are read again from crawl.pages."""

MAX_UNTRIED = 1024
"""Pages that wait for a trial, at which no more are taken; they hold back the commit too."""

MAX_BEYOND = 65_536
"""Pages taken beyond the commits, at which no more are taken: 8 MB, and three minutes to parse them again after a kill.

Fetch goes by what was taken (`pages.py`), so this is what bounds how far it can run ahead of a page that waits."""

MAX_HELD_BYTES = 32 << 20
"""Bodies held for jobs that are not known yet, bytes, at which no more pages are taken."""

HELD_LOOKS = 24
"""Looks at held pages until they wait no more. A job's record is in crawl.control before its first seed is sent, and a
revision moments after it counts. Looks, not seconds: a process that was stopped, a clock that jumps prove nothing."""

LOOK_AFTER_S = 5.0
"""Between two of them."""

Headers = list[tuple[str, bytes]]


class Sender(Protocol):
    """What parse needs of the producer."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        on_delivery: Callable[[int, int], None] | None = None,
    ) -> None:
        """Put a record on its way."""


class Message(Record, Protocol):
    """What parse needs of a record of crawl.pages."""

    @property
    def headers(self) -> Any:
        """With the metadata."""


class Job:
    """The newest known revision of a job, ready to parse with.

    Args:
        spider: Its `NAME@VERSION`, and what it does.
        learned: What crawl.control says of its scope and its hosts, kept up to date by whoever reads that.

    Raises: Misconfigured: its scope holds a wrong expression.
    """

    def __init__(self, name: str, spec: JobSpec, places: Places, learned: "Learned", spider: tuple[str, Parse]) -> None:
        self.name = name
        self.spider, self._parse = spider
        self.spec = spec
        self.joined = learned.joined
        self.canonical = Canonicaliser(spec.canonical).canonical
        self.links = Links(Canonicaliser(spec.canonical), places)
        self._scope = Scope(spec)
        self._names = frozenset(spec.scope.names)
        self._place = places.of
        self._sent: dict[int, Sent] = {}
        duplicates = spec.traps.duplicates
        self._twins = None if duplicates == "follow" else Twins(near=duplicates == "skip_near")
        self._soft = SoftErrors(name, learned.missing) if spec.traps.soft_404 else None

    def judged(self, meta: PageMeta, body: bytes) -> PageMeta:
        """The page, marked as a soft 404 where it is one."""
        if self._soft is None or not self._soft.is_one(meta, self._place(meta.url).host, body):
            return meta
        log.info("soft_404", url=meta.url)
        return msgspec.structs.replace(meta, error=SOFT_404)

    def may_parse(self, meta: PageMeta) -> bool:
        """Whether a page may come to the HTML parser: HTML does, and whatever a spider of one's own is shown."""
        if meta.kind != "page" or is_redirect(meta) or self.is_probe(meta):
            return False
        return self.spider != SPIDER or is_html(meta)

    def is_probe(self, meta: PageMeta) -> bool:
        """Whether nobody wants the page itself."""
        return self._soft is not None and self._soft.is_probe(meta.url, self._place(meta.url).host)

    def probe(self, meta: PageMeta, body: bytes) -> Outlink | None:
        """A URL that cannot exist, by which the page's host is to be asked."""
        url = self._soft.probe(meta, self._place(meta.url).host, body) if self._soft is not None else ""
        return Outlink(url, fingerprint(url), self._place(url)) if url else None

    def parsed(self, meta: PageMeta, body: bytes) -> Parsed:
        """What the spider makes of a page. Raises: BaseException: whatever it raised at the last of its tries."""
        if self.is_probe(meta):
            return NOTHING
        for tries in range(1, MAX_TRIES + 1):
            try:
                parse = self._parse if meta.kind == "page" else parse_listing
                return parse(meta, body, self.links, self.spec)
            except (TimeUp, TooMuch):
                raise
            except BaseException as error:
                if tries == MAX_TRIES:
                    raise
                log.debug("page_tried_again", url=meta.url, error=_said(error))
        raise AssertionError("the last try returns or raises")

    def followed(self, meta: PageMeta, body: bytes, outlinks: list[Outlink]) -> list[Outlink]:
        """The outlinks, none where the job skips those of pages that the host sent before."""
        if self._twins is None or not outlinks or meta.kind != "page":
            return outlinks
        if not self._twins.is_one(self._place(meta.url).host, meta.url, body):
            return outlinks
        log.info("links_skipped", url=meta.url, rule="duplicate", links=len(outlinks))
        return []

    def sent(self, epoch: int) -> Sent:
        """What was sent lately in an epoch; older epochs are forgotten."""
        sent = self._sent.get(epoch)
        if sent is None:
            sent = Sent()
            self._sent = {epoch: sent}
        return sent

    def refusal(self, link: Outlink, depth: int) -> str | None:
        """The rule that refuses a link."""
        return self._scope.refusal(link.url, link.place, depth, 0, self.joined)

    def is_wanted(self, link: Outlink, meta: PageMeta) -> bool:
        """Whether a sitemap named by this one, or by robots.txt, is taken: indexes count as redirects do."""
        return self._scope.refusal(link.url, link.place, meta.depth, meta.hops + 1, self.joined) is None

    def scope_of(self, url: str) -> str | None:
        """The scope name of a page, unless the job's record has it or every URL is in scope."""
        kind = self.spec.scope.kind
        name = None if kind == "any" else scope_name(kind, self._place(url))
        return None if name in self._names else name

    def target(self, meta: PageMeta) -> tuple[Outlink, str] | None:
        """A redirect's target and the scope name that joins with it, empty when none does; None when it is refused."""
        try:
            url = self.canonical(meta.location, meta.url)
        except InvalidUrl:
            return None
        link = Outlink(url, fingerprint(url), self._place(url))
        rule = self._scope.refusal(url, link.place, meta.depth, meta.hops + 1, self.joined)
        if rule != "scope" or not meta.seed:
            return (link, "") if rule is None else None
        name = scope_name(self.spec.scope.kind, link.place)
        rule = self._scope.refusal(url, link.place, meta.depth, meta.hops + 1, (name,))
        return (link, name) if rule is None else None


class Learned(NamedTuple):
    """What crawl.control says of a job beside its record.

    Attributes:
        joined: Names that joined its scope.
        missing: What hosts answered to probes.
    """

    joined: set[str]
    missing: Sketches


class Page:
    """A page that was taken; `finish` is called once, when all its outputs are in the log."""

    __slots__ = ("_finish", "_waits")

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._waits = 1

    def wait(self) -> None:
        """One output more."""
        self._waits += 1

    def one_done(self, *_delivered: int) -> None:
        """One output is in the log; the call after the last one is handed over counts too."""
        self._waits -= 1
        if self._waits == 0:
            self._finish()


class Kept(NamedTuple):
    """A record of crawl.pages, with nothing else alive but its parts; `value` is None where the body was let go."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any


class Aside(NamedTuple):
    """A large page that lets others go first."""

    message: Kept
    meta: PageMeta
    page: Page

    @property
    def of_log(self) -> PageMeta:
        """Its metadata as that of a page whose body lies where its own does."""
        return msgspec.structs.replace(self.meta, same_as=(self.message.partition, self.message.offset))


class Bodiless(NamedTuple):
    """A page that was not modified: its body lies in an older record, and is awaited."""

    message: Message
    meta: PageMeta
    page: Page


class Untried(NamedTuple):
    """A page that waits for its trial.

    Attributes:
        message: Without its body, as that may be another record's.
        body: None where it was let go, as there were too many.
    """

    message: Kept
    meta: PageMeta
    page: Page
    body: bytes | None

    @property
    def of_log(self) -> PageMeta:
        """Its metadata as that of a page whose body lies where this one's does."""
        at = self.meta.same_as or (self.message.partition, self.message.offset)
        return msgspec.structs.replace(self.meta, same_as=at)


class ParseStage:
    """Everything about parse but the event stream and the clockwork.

    Args:
        founds: Sends what somebody waits for: founds, joins, dead letters; see `Producer.send`.
        items: Sends item records, for which only the page's acknowledgement waits.
        done: Tells that everything before an offset of a partition is done.
        now: UTC epoch seconds.
        guard: What a page may take.
    """

    def __init__(
        self,
        names: topics.Topics,
        places: Places,
        founds: Sender,
        items: Sender,
        done: Callable[[int, int], None],
        now: Callable[[], float],
        guard: Guard = Guard(),  # noqa: B008  # frozen
    ) -> None:
        self.guard = guard
        self._names = names
        self._places = places
        self._send = founds.send
        self._send_item = items.send
        self._done = done
        self._now = now
        self._founds = Founds(self._send_founds)
        self._jobs: dict[str, Job] = {}
        self._spiders: dict[str, tuple[str, Parse]] = {"": (SPIDER, parse_page)}
        self._broken: dict[str, tuple[int, str]] = {}
        self._learned: dict[str, Learned] = {}
        self._held: dict[str, list[tuple[Message, PageMeta, Page]]] = {}
        self._held_looks: dict[str, int] = {}
        self._held_count = self._held_bytes = 0
        self._orders: dict[int, InOrder] = {}
        self._undone = 0
        self._beyond = 0
        self.taken: dict[int, int] = {}
        self.aside: deque[Aside] = deque()
        self._aside_bytes = 0
        self.untried: deque[Untried] = deque()
        self.untried_bytes = 0
        self.lacks_trial: Callable[[], None] = lambda: None
        self.bodiless: dict[tuple[int, int], Bodiless] = {}
        self.lacks_bodies: Callable[[], None] = lambda: None
        self.gathered = 0
        self.pages = 0
        self.bytes = 0
        self._learn_job(DEFAULT_JOB, DEFAULT_SPEC)

    @property
    def is_full(self) -> bool:
        """Whether no more pages should be taken for now."""
        is_crowded = self._undone >= MAX_UNDONE or len(self.untried) >= MAX_UNTRIED
        return is_crowded or self.is_far or self._held_bytes >= MAX_HELD_BYTES

    @property
    def is_far(self) -> bool:
        """Whether so many pages were taken beyond those that hold back the commit that these go first."""
        return self._beyond >= MAX_BEYOND

    @property
    def undone(self) -> int:
        """Pages taken and not done, without those held, put aside or not tried yet."""
        return self._undone - self._held_count - len(self.aside) - len(self.untried)

    def learn(self, record: control.Control) -> None:
        """A record of crawl.control: a job's revision, or a name that joined a scope."""
        if isinstance(record, control.JobCopy):
            self._learn_job(record.job, record.spec)
            for message, meta, page in self._let_go(record.job):
                self._parse(message, meta, page)
            self.flush()
        elif isinstance(record, control.Join):
            self._learned_of(record.job).joined.add(record.name)
        elif isinstance(record, control.Missing):
            host = self._places.of(record.url).host
            self._learned_of(record.job).missing.setdefault(host, set()).add(record.sketch)

    def _learned_of(self, job: str) -> Learned:
        return self._learned.setdefault(job, Learned(set(), {}))

    def look_after_held(self) -> None:
        """What waited too long holds up its partition no more: it goes by the newest known revision, or is dead."""
        for name in self._held:
            self._held_looks[name] = self._held_looks.get(name, 0) + 1
        for name in [name for name, looks in self._held_looks.items() if looks >= HELD_LOOKS]:
            job = self._jobs.get(name)
            log.warning("held_too_long", job=name, known=job is not None)
            for message, meta, page in self._let_go(name):
                if job is None:
                    self._bury(message, name, f"UnknownJob: crawl.control has no job {name!r:.120}", page)
                else:
                    self._handle(job, message, meta, page)
            self.flush()

    def _let_go(self, name: str) -> list[tuple[Message, PageMeta, Page]]:
        held = self._held.pop(name, [])
        self._held_looks.pop(name, None)
        self._held_count -= len(held)
        self._held_bytes -= sum(len(message.value or b"") for message, _, _ in held)
        return held

    def _learn_job(self, name: str, spec: JobSpec) -> None:
        known = self._jobs.get(name)
        if known is not None and known.spec.rev >= spec.rev:
            return
        try:
            spider = self._spider(spec.spider)
            self._jobs[name] = Job(name, spec, self._places, self._learned_of(name), spider)
        except Misconfigured as error:
            self._broken[name] = (spec.rev, str(error))
            log.exception("job_broken", job=name, rev=spec.rev)

    def _spider(self, path: str) -> tuple[str, Parse]:
        """A spider's `NAME@VERSION` and what it does; loaded once in a worker's life.

        Raises: Misconfigured: there is none, or it is broken.
        """
        if path not in self._spiders:
            loaded = load_spider(path)
            self._spiders[path] = loaded.label, loaded.parser(self.guard.bounds)
        return self._spiders[path]

    def take(self, message: Message, *, aside: bool = False) -> None:
        """Parse a page, hold it, or put it aside if it may be; else its outputs are on their way, or gather."""
        order = self._orders.get(message.partition)
        if order is None:
            order = self._orders[message.partition] = InOrder()
        order.take(message.offset)
        self.taken[message.partition] = message.offset + 1
        crash.point("parse.taken")
        self._undone += 1
        self._beyond += 1
        self.pages += 1
        self.bytes += len(message.value or b"")
        page = Page(partial(self._finish, order, message.partition, message.offset))
        try:
            meta = pages.decode(_header(message))
        except ValueError as error:
            self._bury(message, "", _said(error), page, _trace(error))
            return
        self._parse(message, meta, page, aside=aside and meta.kept and len(self.aside) < MAX_ASIDE)

    def is_suspect(self, message: Message) -> bool:
        """Whether a page is to be parsed while nothing else is on its way: workers died of it."""
        return self.guard.notes.verdict(_key(message)) == "alone"

    def _parse(self, message: Message, meta: PageMeta, page: Page, *, aside: bool = False) -> None:
        job = self._jobs.get(meta.job)
        if job is None or job.spec.rev < meta.rev:
            self._hold(message, meta, page)
        elif aside:
            self._put_aside(message, meta, page)
        else:
            self._handle(job, message, meta, page)

    def _put_aside(self, message: Message, meta: PageMeta, page: Page) -> None:
        body = message.value or b""
        is_room = self._aside_bytes + len(body) <= ASIDE_BYTES
        kept = Kept(message.partition, message.offset, message.key, body if is_room else None, message.headers)
        self._aside_bytes += len(body) if is_room else 0
        self.aside.append(Aside(kept, meta, page))

    def parse_aside(self, body: bytes) -> None:
        """Parse the page that was put aside first.

        Args:
            body: Where it was let go; empty where crawl.pages has it no more. Then its URL is fetched once more.
        """
        message, meta, page = self.aside.popleft()
        self._aside_bytes -= len(message.value or b"")
        if message.value is None and not body:
            self._fetch_again(meta, page)
        else:
            self._handle(self._jobs[meta.job], message._replace(value=message.value or body), meta, page)

    def _handle(  # a page, and what is known of it
        self, job: Job, message: Message, meta: PageMeta, page: Page, body: bytes = b"", *, tried: bool = False
    ) -> None:
        """Parse a page, with the body of another record where one is given; or have it tried first."""
        notes, key = self.guard.notes, _key(message)
        body = body or message.value or b""
        if notes.verdict(key) == "give_up":
            self._bury(message, meta.job, CRASH_LOOP, page)
            return
        if meta.same_as is not None and not body:
            self.bodiless[message.partition, message.offset] = Bodiless(message, meta, page)
            self.lacks_bodies()
            return
        if not tried and self.guard.trial is not None and not is_simple(body) and job.may_parse(meta):
            self._await_trial(message, meta, page, body)
            return
        notes.touch(key)
        try:
            meta = self.guard.clock.call(job.judged, meta, body)
            parsed = self.guard.clock.call(job.parsed, meta, body)
            self._give(job, message, meta, body, parsed, page)
        except BaseException as error:  # noqa: BLE001  # whatever a spider may raise must not end the worker
            log.error("page_failed", url=meta.url, at=key, error=_said(error))  # noqa: TRY400  # its traceback is buried with it
            self._bury(message, meta.job, _said(error), page, _trace(error))
        notes.release(key)
        self.gathered += 1
        if self.gathered >= GATHER_PAGES:
            self.flush()

    def _await_trial(self, message: Message, meta: PageMeta, page: Page, body: bytes) -> None:
        kept = Kept(message.partition, message.offset, message.key, None, message.headers)
        is_room = not self.untried or self.untried_bytes + len(body) <= ASIDE_BYTES
        self.untried_bytes += len(body) if is_room else 0
        self.untried.append(Untried(kept, meta, page, body if is_room else None))
        self.lacks_trial()

    def tried(self, body: bytes, refusal: str) -> None:
        """Parse the page that waited longest for its trial, or bury it.

        Args:
            body: Its own, or the one read again; empty where crawl.pages has it no more: its URL is fetched once more.
            refusal: Why it is not to be parsed; empty where it may be.
        """
        untried = self.untried.popleft()
        self.untried_bytes -= len(untried.body or b"")
        message, meta, page = untried.message, untried.meta, untried.page
        if not body:
            self._fetch_again(meta, page)
            return
        if meta.same_as is None:
            message = message._replace(value=body)
        if not refusal:
            self._handle(self._jobs[meta.job], message, meta, page, body, tried=True)
            return
        log.error("page_refused", url=meta.url, at=_key(message), error=refusal)
        self._bury(message, meta.job, refusal, page)

    def domain(self, url: str) -> str:
        """The registrable domain of a page."""
        return self._places.of(url).domain

    def body_came(self, at: tuple[int, int], old: PageMeta | None, body: bytes) -> None:
        """Parse a page that was not modified with the body of the older one; None where crawl.pages has that no more.

        Then its URL is fetched once more, without a condition: an epoch sets one once for each URL.
        """
        held = self.bodiless.pop(at, None)
        if held is None:  # given up meanwhile
            return
        message, meta, page = held
        if old is not None:
            self._handle(self._jobs[meta.job], message, pages.with_body(meta, old), page, body)
            return
        self._fetch_again(meta, page)

    def _fetch_again(self, meta: PageMeta, page: Page) -> None:
        log.info("body_gone", url=meta.url, was=meta.same_as, then="fetched once more")
        job = self._jobs[meta.job]
        link = Outlink(meta.url, fingerprint(meta.url), self._places.of(meta.url))
        found = _found_again(meta)
        self._await_founds({self._founds.put(meta.job, meta.epoch, job.sent(meta.epoch), link, found)}, page)
        self.gathered += 1
        page.one_done()

    def _hold(self, message: Message, meta: PageMeta, page: Page) -> None:
        rev, error = self._broken.get(meta.job, (-1, ""))
        if rev >= meta.rev:
            self._bury(message, meta.job, error, page)
            return
        self._held.setdefault(meta.job, []).append((message, meta, page))
        self._held_count += 1
        self._held_bytes += len(message.value or b"")

    def _give(  # a page, and what came of it
        self, job: Job, message: Message, meta: PageMeta, body: bytes, parsed: Parsed, page: Page
    ) -> None:
        """Put on their way all that a page gave."""
        record = items.ItemsRecord(
            job=meta.job,
            url=meta.url,
            page=(message.partition, message.offset),
            items=parsed.items,
            epoch=meta.epoch,
            spider=job.spider,
        )
        if meta.kind != "robots":  # nobody asked for it as a page, and its URL may be one
            crash.point("parse.item.sending")
            self._send_item(
                self._names.items, items.encode(record), key=items.key(meta.job, meta.url), on_delivery=page.one_done
            )
            page.wait()
        self._join(job, meta, page)
        if is_redirect(meta) and not job.is_probe(meta):
            self._follow(job, meta, page)
        self._look_for_soft_errors(job, meta, body, page)
        sent = job.sent(meta.epoch)
        depth, priorities = meta.depth + 1, parsed.priorities
        if parsed.reached:
            log.warning("limit_reached", url=meta.url, limit=parsed.reached, links=len(parsed.outlinks))
        outlinks = job.followed(meta, body, parsed.outlinks)
        batches = self._founds.offer(meta.job, meta.epoch, sent, meta.url, depth, outlinks, job.refusal, priorities)
        self._await_founds(batches, page)
        self._list_sitemaps(job, meta, parsed.sitemaps, page)
        page.one_done()

    def _look_for_soft_errors(self, job: Job, meta: PageMeta, body: bytes, page: Page) -> None:
        """Say what a probe was answered, or have a host asked by one."""
        if job.is_probe(meta):
            sketch = SoftErrors.sketch(meta, body)
            log.info("probed", url=meta.url, http=meta.http, soft_404=sketch is not None)
            if sketch is not None:
                missing = control.Missing(job.name, meta.url, sketch)
                key = control.key(missing)
                self._send(self._names.control, control.encode(missing), key=key, on_delivery=page.one_done)
                page.wait()
            return
        link = job.probe(meta, body)
        if link is not None:
            sent, priorities = job.sent(meta.epoch), {link.url: PROBE_PRIORITY}
            batches = self._founds.offer(
                job.name, meta.epoch, sent, meta.url, meta.depth, [link], job.refusal, priorities
            )
            self._await_founds(batches, page)

    def _list_sitemaps(self, job: Job, meta: PageMeta, sitemaps: Sequence[Outlink], page: Page) -> None:
        """Sitemaps are as deep as what names them; an index in an index is a hop further."""
        for link in sitemaps:
            if job.is_wanted(link, meta):
                hops = meta.hops + (meta.kind == "sitemap")
                found = FoundUrl(link.url, meta.depth, SITEMAP_PRIORITY, "sitemap", meta.url, hops)
                self._await_founds({self._founds.put(meta.job, meta.epoch, job.sent(meta.epoch), link, found)}, page)

    def _join(self, job: Job, meta: PageMeta, page: Page) -> None:
        """What was fetched for a job is in its scope: a seed that came later than the job's record widened it."""
        name = job.scope_of(meta.url)
        if name is None or name in job.joined:
            return
        if meta.seed:
            self._send_join(job, name, page)
        else:  # its seed's page said so in crawl.control; this worker has not read it yet
            job.joined.add(name)

    def _send_join(self, job: Job, name: str, page: Page) -> None:
        job.joined.add(name)
        join = control.Join(job=job.name, name=name)
        self._send(self._names.control, control.encode(join), key=control.key(join), on_delivery=page.one_done)
        page.wait()

    def _follow(self, job: Job, meta: PageMeta, page: Page) -> None:
        """The target of a redirect is a link; where a seed led here, its host joins the scope."""
        followed = job.target(meta)
        if followed is None:
            return
        link, name = followed
        if name:
            self._send_join(job, name, page)
        source: Source = "sitemap" if meta.kind == "sitemap" else "redirect"
        found = FoundUrl(link.url, meta.depth, 0, source, meta.url, meta.hops + 1, joins=meta.seed)
        self._await_founds({self._founds.put(meta.job, meta.epoch, job.sent(meta.epoch), link, found)}, page)

    def _await_founds(self, batches: set[Batch], page: Page) -> None:
        for batch in batches:
            if batch.wait(page.one_done):
                page.wait()

    def flush(self) -> None:
        """Send the founds that gathered."""
        self.gathered = 0
        self._founds.flush()

    def _send_founds(self, batch: Batch) -> None:
        crash.point("parse.founds.sending")
        record = UrlsRecord(job=batch.job, epoch=batch.epoch, at=self._now(), urls=batch.urls)
        self._send(
            self._names.urls,
            urls.encode(record),
            key=batch.domain.encode() if batch.domain else None,
            partition=batch.partition,
            on_delivery=lambda *_: _founds_acknowledged(batch),
        )

    def _finish(self, order: InOrder, partition: int, offset: int) -> None:
        if self._orders.get(partition) is not order:
            return  # the partition was given up since: whoever has it now reads the page again
        crash.point("parse.page.done")
        self._undone -= 1
        before = len(order)
        following = order.finish(offset)
        self._beyond -= before - len(order)
        if following is not None:
            self._done(partition, following)

    def _bury(self, message: Message, job: str, error: str, page: Page, trace: str = "") -> None:
        """The page goes to crawl.dead as it was, with its own headers; then it is done."""
        letter = dead.DeadLetter(
            topic=self._names.pages,
            partition=message.partition,
            offset=message.offset,
            stage="parse",
            error=error,
            job=job,
            traceback=trace,
        )
        crash.point("parse.dead.sending")
        headers = letter.headers() + [(name, value) for name, value in message.headers or ()]
        try:
            self._send(self._names.dead, message.value, key=message.key, headers=headers, on_delivery=page.one_done)
        except GiveUp:  # as large as a record may be: its place in crawl.pages is named, its body stays there
            self._send(self._names.dead, None, key=message.key, headers=headers, on_delivery=page.one_done)

    def give_up(self) -> None:
        """The partitions are no longer ours: what is not done will be read again by whoever gets them."""
        self._orders.clear()
        self._held.clear()
        self._held_looks.clear()
        self.bodiless.clear()
        self.taken.clear()
        self.aside.clear()
        self.untried.clear()
        self._undone = self._beyond = self._held_count = self._held_bytes = self._aside_bytes = self.untried_bytes = 0


def _found_again(meta: PageMeta) -> FoundUrl:
    """What queues a URL once more whose page counts no longer."""
    source: Source = "sitemap" if meta.kind == "sitemap" else "link"
    if meta.seed and source == "link":
        source = "redirect" if meta.hops else "seed"
    joins = source == "redirect"
    return FoundUrl(meta.url, meta.depth, 0, source, "", meta.hops, joins=joins, again="not_modified")


def _founds_acknowledged(batch: Batch) -> None:
    crash.point("parse.founds.acknowledged")
    batch.acknowledged()


def _key(message: Message) -> str:
    return f"{message.partition}:{message.offset}"


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


def _header(message: Message) -> bytes | None:
    return next((value for name, value in message.headers or () if name == pages.HEADER), None)


class Worker:
    """Runs a `ParseStage` on Faust's events."""

    def __init__(self, app: CrawlApp) -> None:
        self._app = app
        self._stage: ParseStage | None = None
        self._producer: Producer | None = None
        self._items: Producer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_rebalancing = False
        self._orders = Obedience("parse")
        self._bodies: Bodies | None = None
        self._reading = asyncio.Lock()
        self._asides_s = 0.0

    async def owned(self, _partitions: set[int]) -> None:
        """The first assignment builds the stage; each one lets pages in again."""
        self._is_rebalancing = False
        self._orders.owned()
        if self._stage is not None:
            return
        settings = self._app.crawl
        count = await asyncio.to_thread(topics.partitions, settings)
        self._producer = Producer(settings, self._app.worker_name, linger_ms=FOUND_LINGER_MS)
        self._items = Producer(settings, f"{self._app.worker_name}-items", linger_ms=ITEM_LINGER_MS)
        names = topics.Topics(settings.kafka.prefix)
        positions = self._app.positions
        guard = guard_of(settings, self._app.worker_name)
        self._app.watchdog.on_blocked = guard.notes.blame
        self._stage = ParseStage(names, Places(count), self._producer, self._items, positions.done, time.time, guard)
        positions.taken = self._stage.taken
        for producer in (self._producer, self._items):
            self._app.add_future(producer.run(asyncio.Event(), HEARD_S))
        self._app.add_future(self._look_after_held(self._stage))
        self._app.add_future(self._read_bodies(self._stage, Bodies(settings, names.pages)))
        assert guard.trial is not None
        self._app.add_future(self._try_pages(self._stage, guard.trial))
        follow(self._app, self._orders, self._stage.learn, self._found_garbage)

    async def _look_after_held(self, stage: ParseStage) -> None:
        while not self._app.should_stop:
            await asyncio.sleep(LOOK_AFTER_S)
            stage.look_after_held()

    async def _read_bodies(self, stage: ParseStage, bodies: Bodies) -> None:
        """Fetch from the log the bodies of pages that were not modified, in batches, until stopped."""
        lacking = asyncio.Event()
        stage.lacks_bodies = lacking.set
        while not self._app.should_stop:
            await lacking.wait()
            lacking.clear()
            await asyncio.sleep(GATHER_S)  # for others: a batch is a request a partition
            while stage.bodiless and not self._app.should_stop:
                wanted = {at: held.meta for at, held in islice(stage.bodiless.items(), BATCH)}
                try:
                    found = await asyncio.to_thread(bodies.read, wanted)
                except (EngineError, KafkaException) as error:
                    await self._bodies_unread(error)
                    continue
                for at, (old, body) in found.items():
                    stage.body_came(at, old, body)
                    await asyncio.sleep(0)
                stage.flush()

    async def _try_pages(self, stage: ParseStage, trial: Trial) -> None:
        """Have the pages tried that might take the parser too long, one after the other, until stopped."""
        lacking = asyncio.Event()
        stage.lacks_trial = lacking.set
        try:
            while not self._app.should_stop:
                await lacking.wait()
                lacking.clear()
                while stage.untried and not self._app.should_stop:
                    if self._is_rebalancing:
                        await asyncio.sleep(GATHER_S)
                    elif await self._orders.admitted(self._app.watchdog.beat):
                        await self._try_page(stage, trial)
        finally:
            trial.close()

    async def _try_page(self, stage: ParseStage, trial: Trial) -> None:
        """Have the first one tried; dropped when a rebalance takes it away meanwhile."""
        first, refusal = stage.untried[0], ""
        try:
            body = await self._body_of(first.message, first.of_log) if first.body is None else first.body
        except (EngineError, KafkaException) as error:
            await self._bodies_unread(error)
            return
        try:
            domain, waiting = stage.domain(first.meta.url), len(stage.untried) - 1
            refusal = await trial.refusal(body, first.meta.content_type, domain, waiting)
        except TrialError as error:
            log.warning(
                "page_untried", url=first.meta.url, error=str(error), then="parsed under the worker's own timer"
            )
        if self._is_rebalancing or not stage.untried or stage.untried[0] is not first:
            return
        stage.tried(body, refusal)
        self._flush_soon(stage)
        await self._breathe(stage)
        self._app.watchdog.beat()

    async def _body_of(self, message: Kept, of_log: PageMeta) -> bytes:
        """A body that was let go; empty where crawl.pages has it no more. Raises: EngineError, KafkaException."""
        self._bodies = self._bodies or Bodies(self._app.crawl, self._app.input_name)
        at = message.partition, message.offset
        async with self._reading:
            found = await asyncio.to_thread(self._bodies.read, {at: of_log})
        return found[at][1]

    def _found_garbage(self, garbage: Garbage) -> None:
        """Bury what is no record on a side topic, where every worker sees it: the owner of partition 0 does."""
        if self._producer is None or 0 not in self._app.positions.owned:
            return
        letter = dead.DeadLetter(garbage.topic, 0, garbage.offset, "control", garbage.error)
        dead_topic = topics.Topics(self._app.crawl.kafka.prefix).dead
        self._producer.send(dead_topic, garbage.value, key=garbage.key, headers=letter.headers())

    async def events(self, stream: Any) -> None:
        """The agent: one record, one page."""
        async for message in stream.records():
            stage = self._stage
            assert stage is not None, "the first record comes after the first assignment"
            if not await self._orders.admitted(self._app.watchdog.beat):
                continue
            is_alone = stage.is_suspect(message)
            if is_alone:
                await self._drain(stage)
                if not self._app.reader.is_ours(message):
                    continue
            began_s = time.thread_time() if self._asides_s > 0 else 0.0  # a call into the kernel
            stage.take(message, aside=not is_alone and self._lets_others_go(stage, message))
            if self._asides_s > 0:
                self._asides_s -= time.thread_time() - began_s
            await self._breathe(stage)
            await self._parse_asides(stage)
            self._flush_soon(stage)
            while stage.is_full and not self._is_rebalancing:
                self._app.watchdog.beat()
                await asyncio.sleep(GATHER_S)
                await self._parse_asides(stage)
                self._flush_soon(stage)

    def _flush_soon(self, stage: ParseStage) -> None:
        if self._timer is None and stage.gathered:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    async def _breathe(self, stage: ParseStage) -> None:
        """Several slow pages in a row must not look like a loop that stands still."""
        if stage.guard.clock.is_slow:
            self._app.watchdog.beat()
            await asyncio.sleep(0)

    def _is_behind(self, stage: ParseStage) -> bool:
        """Whether more pages wait in the log."""
        held = self._app.positions
        return self._app.reader.is_behind({p: stage.taken.get(p) or held.next(p) or 0 for p in held.owned})

    def _lets_others_go(self, stage: ParseStage, message: Message) -> bool:
        """Whether a page is so large that those behind it go first, as each may be a host's only source of URLs."""
        return len(message.value or b"") >= LARGE_BYTES and (bool(stage.aside) or self._is_behind(stage))

    async def _parse_asides(self, stage: ParseStage) -> None:
        """Give pages that were put aside their turn as long as one is due, and none of them waits for a trial."""
        while stage.aside and (self._asides_s <= 0 or stage.is_far or not self._is_behind(stage)):
            if stage.untried_bytes >= LARGE_BYTES:
                if self._is_behind(stage) or self._is_rebalancing:
                    return
                await asyncio.sleep(GATHER_S)
                continue
            if not await self._orders.admitted(self._app.watchdog.beat) or not await self._parse_aside(stage):
                return

    async def _parse_aside(self, stage: ParseStage) -> bool:
        """Give one page that was put aside its turn, then others as much time; False when a rebalance took it away."""
        first = stage.aside[0]
        body = b""
        if first.message.value is None:
            try:
                body = await self._body_of(first.message, first.of_log)
            except (EngineError, KafkaException) as error:
                await self._bodies_unread(error)
                return not self._is_rebalancing
            if not stage.aside or stage.aside[0] is not first:
                return False
        began_s = time.thread_time()
        stage.parse_aside(body)
        self._asides_s = time.thread_time() - began_s
        await self._breathe(stage)
        return not self._is_rebalancing

    async def _bodies_unread(self, error: Exception) -> None:
        log.warning("bodies_unread", error=str(error), again_in_s=LOOK_AFTER_S)
        self._app.watchdog.beat()
        await asyncio.sleep(LOOK_AFTER_S)

    async def _drain(self, stage: ParseStage) -> None:
        """Wait until the log has all that pages gave, and the group knows: then a death costs none of them."""
        stage.flush()
        while stage.undone and not self._is_rebalancing:
            self._app.watchdog.beat()
            await asyncio.sleep(GATHER_S)
        await within(COMMIT_S, self._app.positions.flush(), "commit")

    def _flush(self) -> None:
        self._timer = None
        if self._stage is not None:
            self._stage.flush()

    def rebalance_started(self) -> None:
        """Let nobody wait for room."""
        self._is_rebalancing = True
        self._orders.rebalance_started()

    async def revoking(self, _partitions: set[int]) -> None:
        """Send what gathered, wait for the log to have it, then forget what is left."""
        stage, founds, items = self._stage, self._producer, self._items
        if stage is None or founds is None or items is None:
            return
        try:
            stage.flush()
            while stage.undone:
                for producer in (founds, items):
                    producer.flush(HURRY_S)
                await asyncio.sleep(0.002)
        finally:  # also when the time is up: what is not done is then read again
            stage.give_up()

    def reports(self) -> list[Progress]:
        """Where each partition stands."""
        stage = self._stage
        paused = self._orders.paused
        return [] if stage is None else progress.positions(self._app, stage.pages, stage.bytes, paused=paused)


def guard_of(settings: Settings, worker: str) -> Guard:
    """A worker's guard, on the watch; to be called in the main thread, where its pages are parsed."""
    _limit_memory(settings.parse.max_memory_mb << 20)
    notes = Suspects(settings.run.data / "suspects" / worker, KILLS_LIMIT, shared=True)
    clock = Clock(settings.parse.timeout_s, notes.blame)
    notes.catch(signal.SIGVTALRM)
    clock.start()
    bounds = Bounds(settings.spider.max_items, settings.kafka.max_record_bytes - RECORD_HEADROOM)
    trial = Trial(settings.parse, Outcomes(settings.run.data / "trials" / f"{worker}.jsonl"))
    return Guard(bounds, clock, notes, trial)


def _limit_memory(size_bytes: int) -> None:
    """Let this process have so much of its own; beyond it an allocation fails, in Python with a MemoryError."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))


def attach(app: CrawlApp) -> None:
    """Make an app the parse stage."""
    worker = Worker(app)
    app.on_owned.append(worker.owned)
    app.on_rebalance_started.append(worker.rebalance_started)
    app.on_revoking.append(worker.revoking)
    app.reports = worker.reports
    app.agent(app.input, name="parse")(worker.events)
