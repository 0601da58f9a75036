"""The life of one URL, read from its partition of crawl.urls: pure, and by the fold's own verdicts.

A second fold runs over the log of the URL's registrable domain and is watched. It does with each found and each done of
the URL what the owner did, so no rule is written twice: budgets, depths and names that joined the scope count as they
did then. Records that cannot concern the domain are skipped by their bytes, before decoding.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta
from crawlog.streams.redaction import shown_found, shown_result
from crawlog.streams.url import InvalidUrl, Places, plain, serialise

from . import rows as r
from .explained import acting, attempted, dropping_rules, explained, found_by, in_epoch
from .jobs import JobState
from .overlay import InMemory, Rows
from .revisions import Answered, effective
from .watched import DomainPrefilter, WatchedFold

FLUSH_ROWS = 50_000  # Changed rows after which the scratch state is flushed


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to the URL, and its place in the log.

    Attributes:
        at: UTC epoch seconds, by the log's clock.
        topic: Its topic, without the prefix.
        what: Its text for people; `detail` has the same for programs.
        rewound: Whether a later rewind took it back, so that it no longer counts.
    """

    at: float
    topic: str
    partition: int
    offset: int
    kind: Literal["job", "found", "done", "page", "items", "dead", "rewind"]
    what: str
    job: str = ""
    epoch: int = 0
    detail: dict[str, Any] = {}
    rewound: bool = False


class UrlState(msgspec.Struct, frozen=True):
    """The state of a URL in a job at the end of the records that were read.

    Attributes:
        status: `queued`, `waiting` for its next attempt, `again` (done, and due again), `began` (it may have been sent,
            and is never sent twice), the end of its last attempt, or the verdict on its found.
        reason: The rule or the reason for the status.
        due_at: When a waiting URL is due, UTC epoch seconds; 0 for others.
        page: (partition, offset) of its newest page.
    """

    job: str
    url: str
    status: str
    reason: str = ""
    attempt: int = 0
    due_at: float = 0.0
    page: tuple[int, int] | None = None


class Offer(msgspec.Struct, frozen=True):
    """What a job would do with the URL if a page linked to it now.

    Attributes:
        depth: The depth of that page.
        pages: If that depth is the limit of the job: the number of pages of the domain that were fetched at it.
    """

    job: str
    url: str
    verdict: str
    reason: str
    depth: int = 0
    pages: int = 0


class Spelling(msgspec.Struct, frozen=True):
    """The canonical URL in a job, and the rules that changed it."""

    job: str
    url: str
    rules: tuple[str, ...]


class History:
    """Follows one URL through its partition's log; `take` every record that `prefilter` lets through, in order.

    Args:
        url: Any spelling of the URL.
        only: The job whose events are told; empty for all jobs.
        supposed: Job records to begin with, if the log no longer has them.

    Raises: InvalidUrl: `url` is not a URL.
    """

    def __init__(self, url: str, places: Places, only: str = "", supposed: Iterable[u.UrlsRecord] = ()) -> None:
        self.given = url
        self.serialised = plain(serialise(url))
        self.place = places.of(self.serialised)
        self.prefilter = DomainPrefilter(self.place.domain)
        self.events: list[Event] = []
        self.pages: list[tuple[int, int]] = []
        self._only = only
        self._places = places
        self._told_until = 0
        self._supposed = [u.encode(record) for record in supposed]
        self._begin(())

    def _begin(self, skipped: tuple[r.Skip, ...]) -> None:
        self._base = InMemory()
        self._rows = Rows(self._base)
        self._fold = WatchedFold(self.given, self.place.partition, self._places, self._rows, skipped)
        self._last: dict[str, UrlState] = {}
        for record in self._supposed:
            self._fold.take(record, 0, 0.0)
        self._fold.told.changed.clear()
        self._revisions = {name: (job.epoch, job.spec.rev) for name, job in self._fold.jobs.items()}

    @property
    def children(self) -> int:
        """URLs of this domain that were found on it, each as often as it was sent."""
        return self._fold.children

    @property
    def last_hops(self) -> list[tuple[int, int]]:
        """The newest pages, (partition, offset), that redirect after as many redirects in a row as a job follows."""
        return list(self._fold.last_hops)

    # ------------------------------------------------------------------ reading

    def take(self, value: bytes | None, offset: int, timestamp_s: float) -> bool:
        """Fold a record and note what it did to the URL.

        Returns: Whether to go on. False if the record rewinds the log: read it again from its start.
        """
        fold = self._fold
        effects = fold.take(value, offset, timestamp_s)
        if effects.rewind is not None:
            self._rewind(effects.rewind)
            return False
        self._note_rewind(offset, timestamp_s)
        self._note_jobs(offset, timestamp_s)
        self._note_refusals(effects.answered, offset, timestamp_s)
        for job, found, verdict, reason in fold.verdicts:
            self._note_found(job, found, verdict, reason, offset, timestamp_s)
        for job, result, epoch, effect in fold.results:
            self._note_done(job, result, epoch, effect, offset, timestamp_s)
        for found in fold.met:
            self._note_parked(found, value, offset, timestamp_s)
        fold.verdicts.clear()
        fold.results.clear()
        fold.met.clear()
        if len(self._rows.dirty) > FLUSH_ROWS:
            fold.flush()
            self._base.write(self._rows.taken())
        return True

    def _rewind(self, skip: r.Skip) -> None:
        """Begin again without the rewound range; events told so far stay, and those in the range are marked."""
        self._told_until = max(self._told_until, skip.end)
        self.events = [
            msgspec.structs.replace(event, rewound=True) if skip.start <= event.offset < skip.end else event
            for event in self.events
        ]
        self._begin(effective(self._fold.skipped, skip))

    def _add(self, event: Event) -> None:
        if event.offset >= self._told_until and self._only in ("", event.job or self._only):
            self.events.append(event)

    def _note_rewind(self, offset: int, at: float) -> None:
        skip = next((skip for skip in self._fold.skipped if skip.end == offset), None)
        if skip is not None:
            what = f"the crawl was rewound to offset {skip.start}, epoch {skip.epoch}: what lies between never was"
            self._add(Event(at, "urls", self.place.partition, offset, "rewind", what, epoch=skip.epoch))
        for number in self._fold.told.forgot:
            job = self._fold.numbers[number]
            self._last.pop(job.name, None)
            does = "is deleted" if job.deleted else f"begins again in epoch {job.epoch}"
            what = f"job {job.name} {does}: what was known of it is forgotten"
            self._add(self._event("rewind", what, offset, at, job))
        self._fold.told.forgot.clear()

    def _event(self, kind: Any, what: str, offset: int, at: float, job: JobState, **detail: Any) -> Event:
        return Event(at, "urls", self.place.partition, offset, kind, what, job.name, job.epoch, detail)

    def _note_jobs(self, offset: int, at: float) -> None:
        for number in self._fold.told.changed:
            job = self._fold.numbers[number]
            mark = job.epoch, job.spec.rev
            if job.awaited or not job.spec.rev or self._revisions.get(job.name) == mark:
                continue
            self._revisions[job.name] = mark
            what = f"job {job.name}, revision {job.spec.rev}{in_epoch(job.epoch)}: {_said_of(job.spec)}"
            self._add(self._event("job", what, offset, at, job, rev=job.spec.rev, state=job.spec.state))
        self._fold.told.changed.clear()

    def _note_refusals(self, answered: list[Answered], offset: int, at: float) -> None:
        """Orders that changed nothing."""
        for answer in answered:
            job = self._fold.jobs.get(answer.job)
            if answer.refusal and job is not None:
                what = f"an order for job {job.name} changed nothing: {answer.refusal}"
                self._add(self._event("job", what, offset, at, job, refusal=answer.refusal))

    def _note_found(self, job: JobState, found: u.FoundUrl, verdict: str, reason: str, offset: int, at: float) -> None:
        url = self._fold.wanted(job)
        said = explained(verdict, reason, job.spec, found, self.place)
        spelled = "" if found.url == url else f", spelled {found.url}"
        what = f"found {found_by(found)}, depth {found.depth}{spelled} → {said}"
        detail = {"verdict": verdict, "rule": reason, "found": shown_found(found)}
        self._add(self._event("found", what, offset, at, job, **detail))
        if verdict == "queued" or job.name not in self._last:
            self._last[job.name] = UrlState(job.name, url, verdict, reason)

    def _note_done(self, job: JobState, result: u.Result, epoch: int, effect: str, offset: int, at: float) -> None:
        what = f"{attempted(result)}{_EFFECTS[effect]}{in_epoch(epoch)}"
        detail = {"effect": effect, "result": shown_result(result)}
        self._add(self._event("done", what, offset, at, job, **detail))
        if result.page is not None and result.page not in self.pages and self._only in ("", job.name):
            self.pages.append(result.page)
        if effect in ("final", "retry"):
            self._last[job.name] = UrlState(
                job.name,
                result.url,
                result.status,
                result.rule or result.reason,
                result.attempt,
                page=result.page,
            )

    def _note_parked(self, found: u.FoundUrl, value: bytes | None, offset: int, at: float) -> None:
        """A found of a job that is not known yet."""
        name = u.decode(value).job or ""
        what = f"found {found_by(found)}, depth {found.depth} → kept until the record of job {name} comes"
        detail = {"verdict": "parked", "rule": "", "found": shown_found(found)}
        self._add(Event(at, "urls", self.place.partition, offset, "found", what, name, 0, detail))
        self._last.setdefault(name, UrlState(name, self._fold.wanted(None), "parked"))

    # ------------------------------------------------------------------ the end of the log

    def states(self) -> list[UrlState]:
        """The state of the URL in each job that met it."""
        states = []
        for name, last in self._last.items():
            job = self._fold.jobs.get(name)
            row = self._fold.standing(job) if job is not None else None
            state = last
            if row is not None:
                kind, queued = row
                status = "began" if queued.began else "waiting" if kind == b"w" else "queued"
                due_at = queued.due_ms / 1000
                state = msgspec.structs.replace(last, status=status, attempt=queued.attempt, due_at=due_at)
                if queued.again is not None and queued.is_again and not queued.attempt:
                    every = f"every {queued.again.every_s:.0f} s"
                    state = msgspec.structs.replace(state, status="again", reason=every)
            if not self._only or name == self._only:
                states.append(state)
        return states

    def holds(self) -> list[str]:
        """Why the URL is queued and not fetched, if its job is the reason."""
        queued = [state for state in self.states() if state.status in ("queued", "waiting", "began")]
        jobs = (self._fold.jobs.get(state.job) for state in queued)
        return [
            f"job {job.name} is {job.spec.state}"
            if job.spec.state != "running"
            else f"job {job.name} awaits its record"
            for job in jobs
            if job is not None and not job.running
        ]

    def end_of_redirects(self, page: PageMeta) -> str:
        """That the redirect of a page is dropped, if it is one too many in a row: parse drops it without a record."""
        job = self._fold.jobs.get(page.job)
        if not page.location or job is None or page.hops < job.spec.max_redirects:
            return ""
        found = u.FoundUrl(page.location, page.depth, 0, "redirect", page.url, page.hops + 1)
        return explained("dropped", "redirects", job.spec, found, self.place)

    def is_target(self, page: PageMeta) -> bool:
        """Whether a page redirects to the URL."""
        job = self._fold.jobs.get(page.job)
        try:
            return job is not None and job.canonical(serialise(page.location, page.url)) == self._fold.wanted(job)
        except InvalidUrl:
            return False

    def spellings(self) -> list[Spelling]:
        """The canonical URL in each job; by the default rules if there is no job."""
        jobs = [job for job in self._fold.jobs.values() if self._only in ("", job.name) and not job.deleted]
        if not jobs:
            return [Spelling("", self._fold.wanted(None), acting(u.CanonicalRules(), self.serialised))]
        return [Spelling(job.name, self._fold.wanted(job), acting(job.spec.canonical, self.serialised)) for job in jobs]

    def offers(self, offset: int, now: float) -> list[Offer]:
        """What each job would do with the URL if a page of its own domain linked to it now; ends the reading.

        Args:
            offset: The log's end.
        """
        fold = self._fold
        told = []
        for name, job in list(fold.jobs.items()):
            if job.deleted or (self._only and name != self._only):
                continue
            limit, pages = job.spec.max_depth, fold.pages_at_limit(job)
            if limit and pages:  # the likely reason that the job does not know it
                told += self._offered(job, limit, pages, offset, now)
            told += self._offered(job, 0, 0, offset, now)
        return told

    def _offered(self, job: JobState, depth: int, pages: int, offset: int, now: float) -> list[Offer]:
        """The verdict on a link to the URL on a page at this depth."""
        fold, told = self._fold, []
        found = u.FoundUrl(fold.wanted(job), depth + 1, 0, "link")
        fold.take(u.encode(u.UrlsRecord(job.name, job.epoch, urls=[found])), offset, now)
        for _, _, verdict, reason in fold.verdicts:
            said = explained(verdict, reason, job.spec, found, self.place)
            state = "" if job.running else f" (the job is {job.spec.state})"
            told.append(Offer(job.name, found.url, verdict, said + state, depth, pages))
        fold.verdicts.clear()
        fold.met.clear()
        return told


def _said_of(spec: u.JobSpec) -> str:
    """The state of a job and the rules by which it drops URLs."""
    if spec.state == "deleted":
        return "deleted"
    state = "" if spec.state == "running" else f"{spec.state}{f' ({spec.reason})' if spec.reason else ''}, "
    return state + dropping_rules(spec)


_EFFECTS = {
    "final": "",
    "retry": "",
    "began": " → it is not sent again if this worker dies",
    "again": " → it had been found nearer meanwhile: queued again",
    "ignored": " → changed nothing: no such row, or not its next attempt",
    "outdated": " → changed nothing: the job has left that epoch",
}


def in_order(events: Iterable[Event]) -> Iterator[Event]:
    """Events by time; those of one instant in the order found, page, done, items."""
    way = {"job": 0, "rewind": 1, "found": 2, "page": 3, "done": 4, "items": 5, "dead": 6}
    return iter(sorted(events, key=lambda event: (event.at, way[event.kind], event.offset)))
