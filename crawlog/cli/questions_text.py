"""The story of a URL, and what a spider made of a page, as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from crawlog.commands.why import Story, clock
from crawlog.outcome import counted
from crawlog.streams.fold import Event, UrlState

if TYPE_CHECKING:
    from crawlog.streams.spiders import CallResult, RequestOut


def story_lines(story: Story) -> Iterator[str]:
    """The story as text."""
    yield from _heading(story)
    yield from _facts(story)
    if story.states and story.robots:
        yield f"  {story.robots}"
    yield ""
    if not story.states:
        yield f"Nothing was ever found by this URL, as of {clock(story.at)} UTC."
        yield from _offered(story)
    yield from _timeline(story)


def _heading(story: Story) -> Iterator[str]:
    yield story.url
    for spelling in story.spellings:
        rules = f" (by {', '.join(spelling.rules)})" if spelling.rules else ""
        same = " as it is" if spelling.url == story.url else f" {spelling.url}"
        yield f"  {'in job ' + spelling.job if spelling.job else 'canonical'}:{same}{rules}"
    yield f"  domain {story.domain}, crawl.urls[{story.partition}]"


def _facts(story: Story) -> Iterator[str]:
    for state in story.states:
        yield f"  now {_url_state(state, story.at)} in job {state.job}"
        if "private_address: private" in state.reason:
            yield "  -s network.allow_private=true has private addresses asked; --fresh begins a finished job again"
    for hold in story.holds:
        yield f"  held: {hold}"
    if story.redirects_from:
        yield f"  redirected here: {' ← '.join(story.redirects_from)}"
    if story.redirects_to:
        yield f"  redirects to: {' → '.join(story.redirects_to)}"
    if story.children:
        yield f"  gave {story.children} founds of its own domain"
    if story.begins:
        what = "what was before is not known, and jobs are taken as they are now"
        yield f"  crawl.urls[{story.partition}] begins at offset {story.begins}: {what}"


def _timeline(story: Story) -> Iterator[str]:
    of_jobs = ("job", "rewind")
    names = {event.job for event in story.events if event.kind not in of_jobs}
    told = [event for event in story.events if event.kind not in of_jobs or event.job in {"", *names}]
    width = max((len(_where(event)) for event in told), default=0)
    for event in told:
        job = f"  [{event.job}]" if len(names) > 1 and event.job and event.kind not in of_jobs else ""
        taken_back = " (rewound)" if event.rewound else ""
        yield f"{clock(event.at)}  {_where(event):{width}}  {event.what}{job}{taken_back}"


def _where(event: Event) -> str:
    return f"{event.topic}[{event.partition}]:{event.offset}"


def _url_state(state: UrlState, now: float) -> str:
    reason = f" ({state.reason})" if state.reason else ""
    if state.status in ("waiting", "again"):
        left = f"due in {state.due_at - now:.0f} s" if state.due_at > now else "due"
        if state.status == "again":
            return f"done, {left} again{reason}"
        return f"waiting for attempt {state.attempt + 1}, {left}{reason}"
    return f"{state.status}{reason}"


def _offered(story: Story) -> Iterator[str]:
    if not story.offers:
        yield "No job is known that could be offered it."
    for offer in story.offers:
        if offer.pages:
            where = f"the {counted(offer.pages, 'page')} of its domain that were fetched at depth {offer.depth}"
            yield f"On one of {where} a link to it is {offer.reason}"
        else:
            yield f"Found on a page of its domain now, job {offer.job} would take it as: {offer.reason}"
    yield story.robots


def tried_lines(result: "CallResult") -> Iterator[str]:
    """Items, then requests."""
    for item in result.items:
        yield from msgspec.json.format(bytes(item), indent=2).decode().splitlines()
    for request in result.requests:
        yield _request(request)


def faults(result: "CallResult") -> Iterator[str]:
    """Counts, warnings and the error."""
    yield f"{len(result.items)} items, {len(result.requests)} requests"
    yield from result.warnings
    if result.error:
        yield from result.trace.splitlines()
        yield f"the callback fails: {result.error}"


def _request(out: "RequestOut") -> str:
    record = out.request
    if record is None:
        return f"GET {out.url}" + (f"  priority {out.priority}" if out.priority else "")
    parts = [f"{record.method} {out.url}", f"-> {record.callback or 'parse'}"]
    if record.kwargs:
        parts.append(msgspec.json.encode(record.kwargs).decode())
    if record.meta:
        parts.append(f"meta {msgspec.json.encode(record.meta).decode()}")
    if out.priority:
        parts.append(f"priority {out.priority}")
    if record.unfiltered:
        parts.append("unfiltered")
    return "  ".join(parts)
