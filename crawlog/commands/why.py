"""`crawlog why URL`: the history of one URL, read from the log, in the order of time.

It reads the URL's partition of crawl.urls, the pages that its dones name, its partition of crawl.items, and crawl.dead.
It writes nothing and waits for no worker, so workers may run meanwhile.
"""

import re
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from crawlog.outcome import counted, needed
from crawlog.schemas import items, pages, progress
from crawlog.schemas.control import JobCopy
from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import DEFAULT_JOB, UrlsRecord
from crawlog.streams.cluster import Admin, log_bounds, offset_at
from crawlog.streams.coded_pages import coding_in, page_size
from crawlog.streams.control import known_job, read_control
from crawlog.streams.dead_letters import Letter, Letters, letter_fate
from crawlog.streams.errors import DamagedLog, Misconfigured
from crawlog.streams.fold import Event, History, Offer, Spelling, UrlState, in_order
from crawlog.streams.jobs import FREE, Orders
from crawlog.streams.log import (
    Topics,
    partition_count,
    read_around,
    read_records,
    record_at,
    record_headers,
    stage_group,
)
from crawlog.streams.printable import shown_time
from crawlog.streams.recovery import REPORTS_READ
from crawlog.streams.redaction import named_request, shown_page
from crawlog.streams.settings import MAX_BODY_BYTES
from crawlog.streams.timing import epoch_s
from crawlog.streams.url import InvalidUrl, Places, fingerprint, partition_of, serialise

from .job_logs import unknown_job
from .why_evidence import redirects_beyond, robots_verdict

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.schemas.progress import Progress
    from crawlog.streams.settings import Settings

TELL_S = 2.0  # Interval of the messages about the progress of reading, seconds

CHECK_EVERY = 2_000  # Records between two looks at the clock

MAX_HOPS = 10  # Redirects that are followed at most, from a URL and back

Report = Callable[[str], None]


class Story(msgspec.Struct):
    """The history of one URL."""

    url: str
    domain: str
    partition: int
    at: float
    spellings: list[Spelling]
    states: list[UrlState]
    events: list[Event]
    redirects_from: list[str]
    redirects_to: list[str]
    children: int
    holds: list[str]
    begins: int
    offers: list[Offer]
    robots: str


def moment(text: str, now: float) -> float:
    """UTC epoch seconds of a time that a user wrote: ISO 8601 (UTC without a zone), or seconds since 1970.

    Raises: Misconfigured: the text is neither, or is later than now, or before 1970.
    """
    try:
        at = epoch_s(text)
    except ValueError as error:
        raise Misconfigured(f"--at: {error}") from None
    if at > now:
        raise Misconfigured(f"--at {text} is no time between 1970 and now, {clock(now)}")
    return at


def spelled(spellings: list[Spelling], met: Collection[str]) -> list[Spelling]:
    """The canonical URL in the jobs that met it: a log may have hundreds of others. Without one, each form once."""
    if met:
        return [one for one in spellings if one.job in met]
    forms = {(one.url, one.rules): one for one in spellings}
    return [msgspec.structs.replace(one, job="") for one in forms.values()] if len(forms) == 1 else spellings


class Inquiry:
    """Reads the histories of URLs from the log.

    Args:
        at: Later records are ignored, UTC epoch seconds; None for all records.
        only: The only job of interest; empty for all.
    """

    def __init__(self, settings: "Settings", at: float | None, only: str, report: Report) -> None:
        self._settings = settings
        self._names = Topics(settings.kafka.prefix)
        self._places = Places(partition_count(settings))
        self._at = at
        self._only = only
        self._report = report
        self._parsed: dict[tuple[str, int], int] | None = None

    def ask(self, url: str) -> Story:
        """The story of a URL, with the redirects to it and from it."""
        history = self._read(url)
        pages = list(self._pages(history))
        events = [*history.events, *pages, *self._items(history, pages)]
        events += self._dead(history, events)
        back = self._chain(history, _came_from)
        onward = self._chain(history, self._led_to)
        now = self._at or time.time()
        _, end = self._range(self._names.urls, history.place.partition)
        states = history.states()
        unknown = not states
        met = {state.job for state in states} | {event.job for event in events if event.kind not in ("job", "rewind")}
        events += redirects_beyond(self._settings, history, self._only) if unknown else ()
        return Story(
            url,
            history.place.domain,
            history.place.partition,
            now,
            spelled(history.spellings(), met),
            states,
            list(in_order(events)),
            back,
            onward,
            history.children,
            [*history.holds(), *self._orders(history), *self._needs(history)],
            self._range(self._names.urls, history.place.partition)[0],
            history.offers(end, now) if unknown else [],
            self._robots(history) if unknown or any(state.status == "queued" for state in states) else "",
        )

    # ------------------------------------------------------------------ crawl.urls

    def _read(self, url: str) -> History:
        history = History(url, self._places, self._only, self._supposed(self._places.of(serialise(url)).partition))
        while not self._is_read(history):  # a rewind reverts folded records: reads once more, without them
            pass
        return history

    def _supposed(self, partition: int) -> list[UrlsRecord]:
        """Jobs as crawl.control has them, if the begin of the partition was trimmed, and their records with it."""
        if not log_bounds(self._settings, self._names.urls, [partition])[partition][0]:
            return []
        copies = read_control(self._settings, self._names).of(JobCopy)
        return [UrlsRecord(job=copy.job, epoch=copy.epoch, spec=copy.spec) for copy in copies]

    def _is_read(self, history: History) -> bool:
        may_concern, take = history.prefilter.may_concern, history.take
        with closing(self._records(self._names.urls, history.place.partition)) as records:
            for record in records:
                value = record.value()
                if may_concern(value) and not take(value, record.offset() or 0, _timestamp(record)):
                    return False
        return True

    def _records(self, topic: str, partition: int, since: float = 0.0) -> "Generator[Message]":
        """A partition's records up to the time asked for; reports the progress of a long read."""
        start, end = self._range(topic, partition, since)
        told = time.monotonic()
        with closing(read_records(self._settings, topic, partition, start, end)) as records:
            for count, record in enumerate(records):
                yield record
                if count % CHECK_EVERY == 0 and time.monotonic() - told > TELL_S:
                    told = time.monotonic()
                    self._report(f"{topic}[{partition}]: read {record.offset() or 0:,} of {end:,} records")

    def _range(self, topic: str, partition: int, since: float = 0.0) -> tuple[int, int]:
        start, end = log_bounds(self._settings, topic, [partition])[partition]
        if since:
            start = max(start, self._first_after(topic, partition, since, end))
        if self._at is not None:
            end = self._first_after(topic, partition, self._at, end)
        return start, end

    def _first_after(self, topic: str, partition: int, at: float, end: int) -> int:
        """Offset of the first record later than a time; the end if there is none."""
        return min(offset_at(self._settings, topic, partition, int(at * 1000) + 1, end), end)

    # ------------------------------------------------------------------ the other topics

    def _pages(self, history: History) -> Iterator[Event]:
        """An event for each page of the URL; a trimmed page is named as such."""
        topic = self._names.pages
        for partition, offset in history.pages:
            start, end = log_bounds(self._settings, topic, [partition])[partition]
            record = record_at(self._settings, topic, partition, offset) if start <= offset < end else None
            if record is not None and (self._at is None or _timestamp(record) <= self._at):
                yield self._page(record, partition, offset, history)
            elif record is None:
                done = next(e for e in history.events if e.detail.get("result", {}).get("page") == (partition, offset))
                what = f"its page is no longer there: crawl.pages[{partition}] begins at {start}"
                yield Event(done.at, "pages", partition, offset, "page", what, done.job, done.epoch, {"trimmed": True})

    def _is_parsed(self, partition: int, offset: int) -> bool:
        """Whether parse has committed this page by now."""
        if self._parsed is None:
            self._parsed = Admin(self._settings).committed(stage_group(self._settings, "parse"), self._names.pages)
        return offset < self._parsed.get((self._names.pages, partition), 0)

    def _page(self, record: "Message", partition: int, offset: int, history: History) -> Event:
        stored, headers = record.value() or b"", record_headers(record)
        try:
            meta = pages.meta_in(headers)
        except ValueError as error:
            return Event(_timestamp(record), "pages", partition, offset, "page", f"a page that cannot be read: {error}")
        meta, size_bytes = page_size(meta, stored, headers, MAX_BODY_BYTES)
        request, told = named_request(meta.id, meta.request), _told(meta, size_bytes)
        what = f"{request}: {told}" if request else told
        if end := history.end_of_redirects(meta):
            what += f": {end}"
        if coding := coding_in(headers):
            what += f", {len(stored):,} in {coding}"
        if meta.rendered:
            what += f", rendered ({meta.rendered})"
        if meta.render_error:
            what += f", the browser: {meta.render_error}"
        if meta.worker:
            what += f", by worker {meta.worker}" + (f" and exit {meta.exit}" if meta.exit else "")
        if self._at is None and not self._is_parsed(partition, offset):
            what += "; not parsed yet, or not committed"
        detail = {"bytes": size_bytes, "meta": shown_page(meta)}
        return Event(_timestamp(record), "pages", partition, offset, "page", what, meta.job, meta.epoch, detail)

    def _items(self, history: History, of_pages: list[Event]) -> Iterator[Event]:
        """The URL's records in crawl.items since its first page, by their keys: one for each request to the URL."""
        done = [event.at for event in history.events if event.kind == "done"]
        if not done:
            return
        metas = [event.detail["meta"] for event in of_pages if "meta" in event.detail]
        named = [(meta["job"], meta["url"], meta.get("id", 0)) for meta in metas]
        keys = [items.key(job, url, 0 if identity == fingerprint(url) else identity) for job, url, identity in named]
        for key in dict.fromkeys([*(items.key(state.job, state.url) for state in history.states()), *keys]):
            partition = partition_of(key.decode(), self._count())
            for record in self._records(self._names.items, partition, min(done) - 1.0):
                if record.key() == key:
                    yield self._item(record, partition)

    def _count(self) -> int:
        return partition_count(self._settings)

    def _item(self, record: "Message", partition: int) -> Event:
        offset, at = record.offset() or 0, _timestamp(record)
        try:
            item = items.decode(record.value())
        except ValueError as error:
            return Event(at, "items", partition, offset, "items", f"an item record that cannot be read: {error}")
        rows = [bytes(row) for row in item.items]
        first = f": {rows[0].decode('utf-8', 'replace')}" if rows else ""
        count = counted(len(rows), "raw item" if item.raw else "row")
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        more += f", {item.change}" if item.change else ""
        made = f"no callback ran: {item.unread}" if item.unread else f"{count}{first}{more}"
        what = f"parsed by {item.spider or '?'} from page {item.page[0]}:{item.page[1]} → {made}"
        detail = {"spider": item.spider, "page": list(item.page), "items": [msgspec.json.decode(row) for row in rows]}
        detail |= {"no_callback": item.unread} if item.unread else {}
        detail |= {"change": item.change} if item.change else {}
        return Event(at, "items", partition, offset, "items", what, item.job, item.epoch, detail)

    def _dead(self, history: History, events: list[Event]) -> Iterator[Event]:
        """Dead letters of these events' records, or that name the URL, with how they were handled."""
        places = {(f"{self._settings.kafka.prefix}{event.topic}", event.partition, event.offset) for event in events}
        spelled = {spelling.url for spelling in history.spellings()} | {history.given, history.serialised}
        named = _whole_words(spelled)
        letters, ours = Letters(), []
        for record in self._records(self._names.dead, 0):
            headers = record_headers(record)
            letters.take(record.offset() or 0, _timestamp(record), headers, record.value())
            letter = letters.all.get(record.offset() or 0)
            if letter is None or not letter.place[0]:
                continue
            of = pages.header_in(headers) if letter.place[0] == self._names.pages else record.value()
            if letter.place in places or named.search(_bytes(of)):
                ours.append(letter)
        return (_buried(letter) for letter in ours if not self._only or letter.job in ("", self._only))

    def _robots(self, history: History) -> str:
        place = history.place
        return robots_verdict(self._settings, place.partition, place.host, history.serialised)

    # ------------------------------------------------------------------ redirects

    def _chain(self, history: History, step: Callable[[History], str]) -> list[str]:
        """The URLs of a chain of redirects, in order; `step` gives the next one."""
        chain: list[str] = []
        url = step(history)
        while url and url not in chain and url not in (history.given, history.serialised) and len(chain) < MAX_HOPS:
            chain.append(url)
            url = step(self._read(url))
        return chain

    def _led_to(self, history: History) -> str:
        """The redirect target of its newest page; empty if there is none, or the page is gone."""
        if not any(state.status == "redirected" for state in history.states()):
            return ""
        metas = [event.detail["meta"] for event in self._pages(history) if "meta" in event.detail]
        location = next((meta["location"] for meta in reversed(metas) if meta.get("location")), "")
        try:
            return serialise(location, history.serialised) if location else ""
        except InvalidUrl:
            return ""

    def _orders(self, history: History) -> list[str]:
        """Commands in force that affect the queued URL."""
        queued = [state.job for state in history.states() if state.status in ("queued", "waiting")]
        if self._at is not None or not queued:
            return []
        commands = read_control(self._settings, self._names).commands
        wanted = {f"job {job}": commands.of_job(job) for job in queued}
        wanted |= {"stage fetch": commands.of_stage("fetch"), history.place.host: commands.of_host(history.place.host)}
        return [f"a command for {what}: {_ordered(orders, what)}" for what, orders in wanted.items() if orders != FREE]

    def _needs(self, history: History) -> Iterator[str]:
        """Settings that queued URLs need but the partition's owner lacks, by its last report."""
        queued = [state.job for state in history.states() if state.status in ("queued", "waiting")]
        if self._at is not None or not queued:
            return
        start, end = log_bounds(self._settings, self._names.progress, [0])[0]
        newest: Progress | None = None
        for record in read_around(
            self._settings, self._names.progress, 0, max(start, end - REPORTS_READ), end, _pass_over
        ):
            report = progress.decode(record.value())
            if report is not None and (report.stage, report.partition) == ("fetch", history.place.partition):
                newest = report
        if newest is None:
            return
        yield from _barred(newest, history.place.host)
        for job in queued:
            if needs := needed((newest.jobs.get(job) or JobCounts()).needs):
                at = f"as its owner {newest.worker} said at {clock(newest.at)}"
                yield f"URLs of job {job} in this partition; {needs}, {at}"


def _pass_over(_: DamagedLog) -> None:
    """Skips a damaged report: newer ones replace it."""


def _buried(letter: Letter) -> Event:
    topic, partition, offset = letter.place
    where = f"{topic}[{partition}]:{offset}"
    tries = f", try {letter.tries}" if letter.tries > 1 else ""
    handled = f" ({letter_fate(letter)} since)" if letter.handled else ""
    what = f"dead letter of {letter.stage} for {where}{tries}: {letter.error}{handled}"
    detail = {"stage": letter.stage, "record": where, "error": letter.error, "handled": letter.handled}
    return Event(letter.at, "dead", 0, letter.offset, "dead", what, letter.job, 0, detail)


def _ordered(orders: Orders, what: str) -> str:
    stopped = "stopped" if what.startswith("job ") else "blocked"
    wants = [stopped if orders.stopped else "paused"] if orders.paused else []
    return ", ".join([*wants, *([f"slowed to {orders.slow_s:g} s"] if orders.slow_s else [])])


def _came_from(history: History) -> str:
    """The page whose redirect first led to the URL; empty if none did."""
    founds = (event.detail["found"] for event in history.events if event.kind == "found")
    return next((found["parent"] for found in founds if found.get("source") == "redirect"), "")


def _whole_words(urls: Collection[str]) -> re.Pattern[bytes]:
    """Finds one of these URLs in a record; not where it is the beginning of another one, or a part of its query."""
    either = b"|".join(re.escape(url.encode()) for url in urls if url) or b"(?!)"
    return re.compile(rb"""(?<![^\s"'<>])(?:%b)(?![^\s"'<>\\])""" % either)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _barred(report: "Progress", host: str) -> Iterator[str]:
    """That no exit serves a host, as its owner reported last."""
    for name, _, wait_s in report.barred:
        if name == host:
            at = f"as {report.worker} reported at {clock(report.at)}"
            yield f"all exits rest for {host}: the first one wakes in {wait_s:.0f} s, {at}"


def _told(meta: pages.PageMeta, size_bytes: int) -> str:
    if meta.location:
        return f"redirect to {meta.location}"
    if meta.same_as is not None:
        return f"page not modified: its body is that of page {meta.same_as[0]}:{meta.same_as[1]}"
    if meta.error:
        return f"page without a body: {meta.error}"
    what = f"page of {size_bytes:,} bytes"
    return (
        f"{what}, {meta.content_type}" + ("" if meta.kept else ", body not kept (fetch.content_types)")
        if meta.content_type
        else what
    )


def _timestamp(record: "Message") -> float:
    return record.timestamp()[1] / 1000


def clock(at: float) -> str:
    """A time for people, in UTC."""
    return shown_time(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def why(settings: "Settings", url: str, at: float | None, job: str, report: Report) -> Story:
    """The story of a URL. The log must be reachable.

    Args:
        at: Later records are ignored, UTC epoch seconds; None for all records.
        job: The only job of interest; empty for all.
        report: Takes messages about the progress of reading.

    Raises: UnknownName: there is no such job, and there was none.
    """
    story = Inquiry(settings, at, job, report).ask(url)
    is_told = job in ("", DEFAULT_JOB) or any(event.job == job for event in story.events)
    if not is_told and known_job(settings, Topics(settings.kafka.prefix), job) is None:
        raise unknown_job(job)
    return story
