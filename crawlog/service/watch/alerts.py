"""Alerts: rules that find what is wrong, and the alerts that are raised and cleared by what they find. Pure.

AlertLook, Recent (the last minutes) ─► each rule ─► AlertFinding ─► true for its time ─► raised ─► not found ─► cleared

A rule that compares looks knows nothing right after a start. So an alert that was kept from before is not cleared
until the rules have seen as much as they need.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from crawlog.outcome import counted, needed, without_page
from crawlog.schemas.progress import JobCounts
from crawlog.streams.fleet import JobView, LostWorker, StageView, WorkerView
from crawlog.streams.jobs import ended, is_in_vain, traits

from .recent import REFUSING, WINDOW_S, JobFigures, Recent, refusals

CLEAR_S = 15.0  # An alert is cleared when it was not found for so long: it does not come and go with each look

WARM_S = WINDOW_S + 60.0  # Time after a start in which no alert of before is cleared, seconds

LEAST_ANSWERS = 10  # Answers of the window that a share is taken of

LEAST_REFUSALS = 3  # Refusals from which on a job without a page is refused, while more of its URLs wait

LEAST_PAGES = 20  # Pages without a row from which on a spider that made rows before makes none

STALLED_S = 600.0  # A job stands still when nothing of it ended for so long, seconds

GROWS_FROM = 1_000  # Records of lag below which its growth is no alert

MOST_RESTARTS = 3  # Restarts of a worker in a quarter of an hour

PAUSED_S = 600.0  # A worker that stays paused for so long may have been forgotten, seconds

ENDED_S = 86_400.0  # How long a job that has ended badly is shown, seconds

LEAST_FREE, LEAST_FREE_BYTES = 0.05, 1 << 30  # Share of a disk, and bytes, below one of which it is nearly full

MOST = 500  # Alerts at a time; the severest stay

Severity = Literal["critical", "warning"]


class Alert(msgspec.Struct, frozen=True):
    """Something that needs a look.

    Attributes:
        id: Rule and subject.
        kind: What the subject is.
        text: What is wrong, one line.
        hint: The command that shows or mends it.
        since: When it was found first, UTC epoch seconds.
    """

    id: str
    rule: str
    severity: Severity
    kind: Literal["job", "worker", "stage", "machine"]
    subject: str
    text: str
    hint: str = ""
    since: float = 0.0


class AlertFinding(NamedTuple):
    """What a rule has found.

    Attributes:
        for_s: How long it is found before it is an alert, seconds.
    """

    rule: str
    kind: Literal["job", "worker", "stage", "machine"]
    subject: str
    text: str
    hint: str = ""
    severity: Severity = "warning"
    for_s: float = 0.0


class AlertLook(NamedTuple):
    """What the rules look at.

    Attributes:
        lost: Processes of workers that ended in the last hour.
        letters: Open dead letters by job; those of no job under an empty name.
        disk: Free and all bytes of the disk with the service's data; None if unknown.
    """

    now: float
    jobs: Sequence[JobView]
    workers: Sequence[WorkerView]
    stages: Sequence[StageView]
    letters: Mapping[str, int]
    disk: tuple[int, int] | None = None
    lost: Sequence[LostWorker] = ()


class AlertChange(NamedTuple):
    """An alert that was raised, or cleared."""

    alert: Alert
    is_raised: bool
    at: float


class Alerts:
    """The alerts that are raised.

    Args:
        kept: Those that an earlier process had raised, by id.
        now: UTC epoch seconds.
    """

    def __init__(self, kept: Mapping[str, Alert], now: float) -> None:
        self.raised = dict(kept)
        self._kept, self._warm_at = set(kept), now + WARM_S
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = dict.fromkeys(kept, now)

    def in_order(self) -> list[Alert]:
        """The alerts that are raised: critical ones first, then the newest first."""
        return sorted(self.raised.values(), key=lambda one: (one.severity != "critical", -one.since, one.id))

    def take(self, findings: Iterable[AlertFinding], now: float) -> list[AlertChange]:
        """Takes what the rules find now; returns what has changed. Texts of alerts follow what is found."""
        found = {f"{one.rule}:{one.subject}": one for one in findings}
        worst = sorted(found, key=lambda name: (found[name].severity != "critical", name not in self.raised))[:MOST]
        changes, raised = [], dict(self.raised)
        self._first = {name: self._first.get(name, now) for name in worst}
        for name in worst:
            one, since = found[name], self._first[name]
            known = raised.get(name)
            self._last[name] = now
            alert = Alert(
                name, one.rule, one.severity, one.kind, one.subject, one.text, one.hint, known.since if known else since
            )
            if known is not None:
                raised[name] = alert
            elif now - since >= one.for_s:
                raised[name] = alert
                changes.append(AlertChange(alert, is_raised=True, at=now))
        for name in [name for name in raised if self._is_over(name, now)]:
            changes.append(AlertChange(raised.pop(name), is_raised=False, at=now))
            self._kept.discard(name)
        self.raised = raised  # another thread may read the one before
        self._last = {name: at for name, at in self._last.items() if name in self.raised or name in self._first}
        return changes

    def _is_over(self, name: str, now: float) -> bool:
        return now - self._last[name] >= CLEAR_S and (name not in self._kept or now >= self._warm_at)


def findings(look: AlertLook, recent: Recent) -> Iterator[AlertFinding]:
    """What all rules find."""
    is_busy = False
    for job in look.jobs:
        is_busy |= job.state in ("running", "pending")
        if not traits(job.state).ended:
            yield from _of_going(job, look, recent)
        elif look.now - job.ended_at < ENDED_S:
            yield from ended_badly(job)
        yield from _of_outputs(job)
    for name, count in look.letters.items():
        if count:
            command = f"crawlog dead list --job {name}" if name else "crawlog dead list"
            yield AlertFinding("dead_letters", "job", name, f"{counted(count, 'open dead letter')}", command)
    yield from _of_workers(look, recent, is_busy=is_busy)
    yield from _of_lost(look.lost)
    yield from _of_stages(look, recent, is_busy=is_busy)
    if look.disk is not None:
        yield from _of_disk(*look.disk)


# ---------------------------------------------------------------------- jobs


def _of_going(job: JobView, look: AlertLook, recent: Recent) -> Iterator[AlertFinding]:
    counts, added = job.counts, recent.added(job.name)
    if job.state in ("running", "pending"):
        yield from _refused(job, added)
        yield from _rowless(job, added)
        yield from _stalled(job, look, recent)
    if counts.needs:
        yield AlertFinding("waits", "job", job.name, needed(counts.needs), f"crawlog jobs show {job.name}", for_s=30.0)


def _refused(job: JobView, added: JobFigures) -> Iterator[AlertFinding]:
    """More than half of the newest answers refuse us, or, of few, each one so far."""
    turned, answers = added.refused, added.answers
    hint = f"crawlog jobs show {job.name}"
    if answers >= LEAST_ANSWERS and turned * 2 > answers:
        codes = " or ".join(code for code in REFUSING if job.counts.statuses.get(code))
        text = f"its site refuses it: {turned:,} of its last {answers:,} answers have status {codes}"
        yield AlertFinding("refused", "job", job.name, text, hint)
    elif added.failed + answers >= LEAST_ANSWERS and added.failed * 2 > added.failed + answers:
        text = f"{added.failed:,} of its last {added.failed + answers:,} URLs failed without an answer"
        yield AlertFinding("fails", "job", job.name, text, hint)
    elif is_in_vain(job.counts) and _is_turned_away(job.counts):
        yield AlertFinding("refused", "job", job.name, f"no answer was a page: {_answers(job)}", hint)


def _is_turned_away(counts: JobCounts) -> bool:
    """Whether some answers refuse us, or robots.txt does; one of many URLs that wait says nothing yet."""
    count = refusals(counts) + counts.refused
    return count >= LEAST_REFUSALS or (count > 0 and not counts.queued + counts.in_flight)


def _answers(job: JobView) -> str:
    counts = job.counts
    told = [line.removeprefix("no page: ") for line in without_page(counts)]
    told += [f"{counts.refused:,} refused by robots.txt or a rule"] if counts.refused else []
    return "; ".join(told) or f"{counts.failed:,} failed"


def _rowless(job: JobView, added: JobFigures) -> Iterator[AlertFinding]:
    """The spider makes no row of its pages: none at all, or none any more."""
    remarks = job.remarks
    hint = f"crawlog why {remarks.first_rowless}" if remarks.first_rowless else f"crawlog jobs show {job.name}"
    if remarks.rowless >= LEAST_PAGES and not remarks.rows and not job.rows:
        yield AlertFinding("no_rows", "job", job.name, f"none of {remarks.rowless:,} pages gave a row", hint)
    elif added.rowless >= LEAST_PAGES and not added.rows:
        yield AlertFinding("no_rows", "job", job.name, f"none of its last {added.rowless:,} pages gave a row", hint)


def _stalled(job: JobView, look: AlertLook, recent: Recent) -> Iterator[AlertFinding]:
    counts = job.counts
    waits = counts.queued - counts.paused - sum(counts.needs.values())
    still_s = look.now - recent.moved_at(job.name, look.now)
    if waits > 0 and still_s >= STALLED_S:
        text = f"{counted(waits, 'URL')} wait, and none has ended for {still_s / 60:.0f} min"
        yield AlertFinding("stalled", "job", job.name, text, f"crawlog jobs show {job.name}")


def ended_badly(job: JobView) -> Iterator[AlertFinding]:
    """A job that has ended in vain, by the judgement of `run`'s summary."""
    counts, hint = job.counts, f"crawlog jobs show {job.name}"
    if job.state == "failed":
        yield AlertFinding("failed", "job", job.name, job.reason or "it failed", hint)
    elif job.state == "finished" and ended(counts) + counts.refused and is_in_vain(counts):
        rule = "refused" if refusals(counts) + counts.refused else "fails"
        yield AlertFinding(rule, "job", job.name, f"it ended, and no answer was a page: {_answers(job)}", hint)
    elif job.state == "finished" and job.remarks.rowless and not job.remarks.rows and not job.rows:
        text = f"it ended, and none of {counted(job.remarks.rowless, 'page')} gave a row"
        yield AlertFinding("no_rows", "job", job.name, text, f"crawlog why {job.remarks.first_rowless}")


def _of_outputs(job: JobView) -> Iterator[AlertFinding]:
    for one in job.outputs:
        if one.state == "failed":
            text = f"its output {one.name} cannot be written: {one.error}"
            yield AlertFinding("output", "job", job.name, text, f"crawlog jobs show {job.name}", for_s=20.0)


# ---------------------------------------------------------------------- the fleet


def _of_workers(look: AlertLook, recent: Recent, *, is_busy: bool) -> Iterator[AlertFinding]:
    for one in look.workers:
        if one.trouble:
            yield AlertFinding("trouble", "worker", one.id, one.trouble, "crawlog status", for_s=20.0)
        if one.is_held and is_busy:
            text = "it was paused, so jobs with work in its partitions wait"
            yield AlertFinding("paused", "worker", one.id, text, f"crawlog workers resume {one.id}", for_s=PAUSED_S)
        if (count := recent.restarts(one.id)) > MOST_RESTARTS:
            text = f"it started again {count} times in a quarter of an hour"
            yield AlertFinding("restarts", "worker", one.id, text, f"read its log on {one.host or 'its machine'}")


def _of_lost(lost: Iterable[LostWorker]) -> Iterator[AlertFinding]:
    for one in lost:
        if one.is_bad:
            text = f"its process {one.pid} on {one.host or 'its machine'} is lost, and no other one came: {one.reason}"
            yield AlertFinding("lost", "worker", one.id, text, "crawlog workers lost", for_s=10.0)


def _of_stages(look: AlertLook, recent: Recent, *, is_busy: bool) -> Iterator[AlertFinding]:
    for one in look.stages:
        if not one.workers and is_busy and one.stage != "sink":
            text = f"no {one.stage} worker reports, so jobs stand still"
            hint = f"crawlog up, or crawlog worker {one.stage}"
            yield AlertFinding("no_worker", "stage", one.stage, text, hint, "critical", for_s=60.0)
        elif (before := recent.lag_before(one.stage)) is not None and one.lag > max(before, GROWS_FROM):
            text = f"it is {counted(one.lag, 'record')} behind, and falls further behind"
            yield AlertFinding(
                "lag", "stage", one.stage, text, f"start more workers: crawlog worker {one.stage}", for_s=900
            )


def _of_disk(free: int, size: int) -> Iterator[AlertFinding]:
    if free < max(size * LEAST_FREE, LEAST_FREE_BYTES):
        text = f"the disk with the service's data is nearly full: {free / 1e9:.1f} of {size / 1e9:.0f} GB are free"
        yield AlertFinding("disk", "machine", "", text, "make room, or keep less: docs/operations.md", "critical")
