"""The summary of a run: as text, as JSON, and as an exit code."""

import json
import shlex
from typing import TYPE_CHECKING, Any

from crawlog import outcome
from crawlog.schemas.progress import JobCounts, JobRemarks
from crawlog.streams import jobs

if TYPE_CHECKING:
    from crawlog.jobs.summary import Summary


def exit_code(summary: "Summary") -> int:
    """The exit code of a run with this summary."""
    if summary.signal:
        return 128 + summary.signal
    if summary.is_gone:
        return outcome.CANCELLED
    if summary.missing:
        return outcome.DIFFERENT
    if summary.start_error:
        return outcome.DEAD_LETTERS
    counts = summary.counts
    if counts and summary.reason in _ends_in_vain(counts) and jobs.is_in_vain(counts, summary.start_items):
        return outcome.NOTHING_FETCHED
    return outcome.DEAD_LETTERS if summary.dead else outcome.FINISHED


def _ends_in_vain(counts: JobCounts) -> tuple[str, ...]:
    """Ends for which it matters that no page came. One that somebody wished for does so only if answers came."""
    return "finished", "watching", "already_finished", *(("max_pages", "closed") if counts.statuses else ())


def as_json(summary: "Summary") -> str:
    """One object on one line."""
    values: dict[str, Any] = {name: getattr(summary, name) for name in ("job", "reason", "epoch", "resumed")}
    for name in JobCounts.__struct_fields__:
        if name not in ("folded", "in_flight", "paused", "page_end", "page_back", "epoch"):
            values[name] = getattr(summary.counts or JobCounts(), name)
    values |= {name: getattr(summary, name) for name in ("pages", "parsed", "dead", "output", "rows", "partial")}
    values |= {"rowless": summary.remarks.rowless, "first_rowless": summary.remarks.first_rowless or None}
    values |= {"closed": summary.closed, "start_error": summary.start_error, "stats": summary.stats}
    values |= {
        name: getattr(summary, name)
        for name in ("failed_items", "commonest_error", "commonest_count", "commonest_place")
    }
    return json.dumps(values | {"took_s": round(summary.took_s, 3)})


def lines(summary: "Summary") -> list[str]:
    """The summary as text."""
    counts = summary.counts or JobCounts()
    coming = f"{outcome.counted(counts.again, 'URL')} will be due again" if counts.again else "its `start` begins again"
    how = {
        "finished": f"finished{_finish(summary, counts)}",
        "watching": f"has done all that was due{_finish(summary, counts)};"
        f" {coming} later: the same command goes on then, or `crawlog up` does by itself",
        "max_pages": "ended: the number of pages asked for is reached"
        + ", and no answer was a page" * (jobs.has_answered(counts) is False),
        "already_finished": _known(summary),
        "interrupted": "interrupted; the same command goes on from here" + _elsewhere(summary),
        "detached": "goes on without this command; the same command follows it again,"
        f" `crawlog jobs show {summary.job}` tells how far it is, and `crawlog jobs cancel {summary.job}` ends it",
        "cancelled": "is cancelled: nothing more of it is fetched; --fresh crawls it again from its seeds",
        "deleted": "was deleted: nothing more of it is fetched; the same command begins a new job of this name",
        "begun_again": "was begun again by another command, so no FILE is made of what it was before;"
        f" `crawlog run --job {summary.job}` goes on with what it is now",
        "blocked": f"ended: {outcome.counted(counts.held, 'URL')} held, as commands block their hosts; "
        f"after `crawlog control unblock --host {summary.blocked}` the same command goes on",
        "closed": f"was closed by its spider: {summary.closed}",
        "stopped": f"was stopped; after `crawlog jobs resume {summary.job}` the same command goes on",
    }[summary.reason]
    gone = [f"  {line}" for line in summary.missing]
    gone += [f"  `start` failed: {summary.start_error}"] if summary.start_error else []
    told = [*_counted(summary, counts), *_remarked(summary.remarks), *_made(summary), *_lost(summary), *_stats(summary)]
    return [f"{summary.job} {how}", *told, *gone]


def _remarked(remarks: JobRemarks) -> list[str]:
    """Lines about pages that gave the spider nothing, and a login that was lost."""
    told = []
    if remarks.rowless:
        told.append(f"  {outcome.counted(remarks.rowless, 'page')} gave no row, the first: {remarks.first_rowless}")
    if remarks.lost_cookie:
        told.append(f"  the answer to a form sets a cookie, which fetch.cookies=false drops: {remarks.lost_cookie}")
    return told


def _known(summary: "Summary") -> str:
    """How a job ended before this run, and what lets it go on."""
    return {
        "watching": "has nothing that is due: the same command goes on later, or `crawlog up` does by itself",
        "max_pages": "had ended already: the number of pages asked for is reached; a larger --max-pages lets it go on",
        "closed": f"was closed by its spider already: {summary.closed}; --fresh crawls it again",
    }.get(summary.known, "was finished already; --fresh crawls it again")


def _stats(summary: "Summary") -> list[str]:
    """Scrapy's stats, if the spider is Scrapy's."""
    named = [f"    {name}: {value:,g}" for name, value in summary.stats.items()]
    return ["  Scrapy's stats of the job:", *named] if named else []


def _elsewhere(summary: "Summary") -> str:
    """A note that other commands' workers go on with the job, and how to stop them; empty if there are none."""
    if not summary.has_others:
        return ""
    return (
        "; workers of other commands on this cluster go on with it, which"
        f" `crawlog control stop --job {summary.job}` ends"
    )


def _finish(summary: "Summary", counts: JobCounts) -> str:
    """The failures of a finished job; without any, whether each allowed URL was answered, if that is certain."""
    if summary.missing:
        return ", but the log is damaged, and some of it could not be made again"
    if jobs.is_in_vain(counts, summary.start_items) and not summary.start_error:
        return ", and nothing could be fetched" if not counts.fetched else ", and no answer was a page"
    lacks = [f"{outcome.counted(counts.failed, 'URL')} could not be fetched"] if counts.failed else []
    lacks += ["its `start` failed"] if summary.start_error else []
    lacks += [f"{_unhandled(summary)} could not be handled"] if summary.dead else []
    if lacks:
        return f", but {', '.join(lacks)}"
    return (
        ": every URL that was found and allowed has been answered" if summary.is_clean else ": nothing is left to fetch"
    )


def _counted(summary: "Summary", counts: JobCounts) -> list[str]:
    """The counts of the job, and of this run."""
    rate = f", {summary.pages / summary.took_s:.1f} a second" if summary.pages and summary.took_s else ""
    told = []
    if counts.folded or summary.pages:
        told.append(f"  {counts.fetched} fetched, {counts.redirected} redirected, {counts.failed} failed")
        held = f", {counts.held} held" if counts.held else ""
        told.append(f"  {counts.refused} refused, {counts.queued} queued{held}")
        if counts.dropped:
            lost = outcome.counted(sum(counts.dropped.values()), "link")
            told.append(f"  {lost} dropped: {outcome.by_rule(counts.dropped)}")
        told += [f"  {line}" for line in outcome.without_page(counts)]
        told.append(f"  this run: {outcome.counted(summary.pages, 'page')} in {summary.took_s:.1f} s{rate}")
    ended = counts.failed + counts.refused + counts.redirected + sum(counts.dropped.values())
    if ended and jobs.is_in_vain(counts, summary.start_items) and not counts.queued + counts.held:
        asked = f"`crawlog why {shlex.quote(summary.seed)}`" if summary.seed else "`crawlog why` of one of its URLs"
        told.append(f"  nothing could be fetched: {asked} tells the reason")
    is_ended = summary.reason not in ("interrupted", "detached", "begun_again")  # else reports of fetch may lag behind
    if is_ended and summary.parsed > summary.pages:
        told.append(f"  parsed again, or stored before: {outcome.counted(summary.parsed - summary.pages, 'page')}")
    return told


def _made(summary: "Summary") -> list[str]:
    """The file with the rows, and their number."""
    told = []
    if summary.output and summary.rows is not None:
        lacks = f"; {_unhandled(summary)} could not be handled" if summary.dead else ""
        where = f" in {summary.output}" if summary.output != "-" else ""
        told.append(f"  {outcome.counted(summary.rows, outcome.written_to(summary.output))}{where}{lacks}")
    elif summary.signal and summary.output not in (None, "-") and not summary.is_unfinished:
        told.append(f"  interrupted before {summary.output} was made; the same command makes it")
    if summary.partial:
        told.append(f"  rows so far: {summary.partial}")
    elif summary.output and summary.reason == "cancelled":
        told.append(f"  rows so far: `crawlog export --job {summary.job} -o FILE` writes them")
    return told


def _lost(summary: "Summary") -> list[str]:
    """The number of records and items that could not be handled, and their commonest error with its place."""
    if not summary.dead:
        return []
    mostly = f", {summary.commonest_count:,} of them: {summary.commonest_error}" if summary.commonest_count else ""
    return [
        f"  {_unhandled(summary)} could not be handled{mostly}",
        *([f"    raised in {summary.commonest_place}"] if summary.commonest_place else []),
        f"  see `crawlog dead list --job {summary.job}`",
    ]


def _unhandled(summary: "Summary") -> str:
    """Numbers of the records that no stage could handle, and of the items that pipelines failed."""
    numbers = {"record": summary.dead - summary.failed_items, "item": summary.failed_items}
    return " and ".join(outcome.counted(number, noun) for noun, number in numbers.items() if number)
