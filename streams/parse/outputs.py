"""All outputs of one page as one value, decided and encoded before the agent sends the first of them.

    Job, page, Parsed ─► outputs_of ─► PageOutputs: item, control records, founds, counts ─► the agent, in this order

After an error here, nothing was sent. The decision does not change the joined names or the links known as sent: only
the agent does, when it sends.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from crawlog.schemas import control, items
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import JobRemarks
from crawlog.schemas.urls import FoundUrl, PageChange
from crawlog.streams.html import Outlink
from crawlog.streams.spiders import Parsed, is_answer, is_followed, is_redirect
from crawlog.streams.url import fingerprint

from .changed import Changed, change_of
from .founds import Batch, Sent
from .job import Job, Redirect
from .requested import requested

MAX_UNREAD = 300  # Longest reason why no callback got a page, characters: servers choose some of its words

Encoded = tuple[bytes, bytes]  # Key and value of a record

Found = tuple[Outlink, FoundUrl]  # A link, which has the partition, and its found record

_NO_COUNTS: Mapping[str, int] = {}


class PageOutputs(NamedTuple):
    """The outputs of one page, in the order in which they are sent.

    Attributes:
        epoch: Of the page.
        sent: Links of its job that are in the log or in flight.
        item: The record of crawl.items.
        is_news: Whether crawl.changes gets it too.
        change: What the state learns of the page, once the item is in the log; None for nothing.
        takes_place: Whether the item's place is that of `change`.
        controls: Records of crawl.control.
        joins: Names that join the job's scope by `controls`.
        founds: Links to be put into batches.
        awaited: Batches in flight that hold other links of the page.
        dropped: Counts of refused links, by rule.
        partition: Of crawl.urls, for these counts if no batch of the job is open; any partition will do.
    """

    epoch: int
    sent: Sent
    item: Encoded | None = None
    controls: Sequence[Encoded] = ()
    joins: Sequence[str] = ()
    founds: Sequence[Found] = ()
    awaited: Collection[Batch] = ()
    dropped: Mapping[str, int] = _NO_COUNTS
    partition: int = 0
    is_news: bool = False
    change: PageChange | None = None
    takes_place: bool = False


def outputs_of(job: Job, at: tuple[int, int], meta: PageMeta, parsed: Parsed) -> PageOutputs:
    """All outputs of a page.

    Args:
        at: Its (partition, offset) in crawl.pages.
    """
    dropped: dict[str, int] = {}
    awaited: set[Batch] = set()
    name, sent = job.joining(meta) or "", job.sent(meta.epoch)
    refusal = partial(job.refusal, joining=name) if name else job.refusal
    is_taken = parsed.takes_redirects or (meta.request is not None and is_answer(meta, meta.request))
    is_followed = is_redirect(meta) and not is_taken
    redirect = job.redirect(meta, dropped, name) if is_followed else None
    founds: list[Found] = [(redirect.link, redirect.found)] if redirect is not None else []
    is_again = any(parsed.lastmods.values())
    unsent = sent.unsent(parsed.outlinks, meta.depth + 1, refusal, dropped, awaited, is_again=is_again)
    founds += _founds(unsent, meta, parsed)
    job.count_foreign(parsed.foreign, meta.depth + 1, dropped)
    if parsed.requests:
        founds += requested(meta, parsed.requests, job.written_outlink, sent, refusal, dropped, awaited)
    if parsed.sitemaps:
        founds += job.sitemaps(meta, parsed.sitemaps, dropped, name)
    changed = change_of(job.spec, meta, parsed)
    joins = () if redirect is None and not name else _joins(name, redirect)
    return PageOutputs(
        meta.epoch,
        sent,
        _item(job, at, meta, parsed, changed)
        if meta.kind != "robots"
        else None,  # a robots.txt is no page of the crawl
        _controls(job, meta, joins, parsed) if joins or parsed.closes else (),
        joins,
        founds,
        awaited,
        dropped,
        at[0],
        changed is not None and changed.is_news,
        _change(at[1], meta, changed) if changed is not None and not changed.is_known else None,
        changed is not None and changed.change in ("new", "changed"),
    )


def _change(offset: int, meta: PageMeta, changed: Changed) -> PageChange | None:
    """What the state learns of a page; an unchanged one has its items where they were."""
    if meta.row is None:
        return None
    was = meta.was.item if meta.was is not None and changed.is_there else None
    return PageChange(meta.url, meta.row, offset, changed.digest, was, meta.priority)


def again_of(job: Job, meta: PageMeta) -> PageOutputs:
    """The output of a page whose body is gone: one found, to fetch its own URL once more."""
    return PageOutputs(meta.epoch, job.sent(meta.epoch), founds=[job.again(meta)])


def _item(job: Job, at: tuple[int, int], meta: PageMeta, parsed: Parsed, changed: Changed | None = None) -> Encoded:
    identity = meta.id if meta.id and meta.id != fingerprint(meta.url) else 0
    record = items.ItemsRecord(
        meta.job,
        meta.url,
        at,
        parsed.items,
        meta.epoch,
        parsed.label or job.spider,
        identity,
        parsed.is_raw and bool(parsed.items),
        dict(parsed.stats),
        parsed.unread[:MAX_UNREAD],
    )
    if changed is not None:
        was = meta.was.item if meta.was is not None and changed.change in ("changed", "gone") else None
        record = msgspec.structs.replace(record, change=changed.change, was=was)
    return items.key(meta.job, meta.url, identity), items.encode(record)


def _founds(links: Iterable[Outlink], meta: PageMeta, parsed: Parsed) -> list[Found]:
    depth, parent, priorities, lastmods = meta.depth + 1, meta.url, parsed.priorities, parsed.lastmods
    founds = [(link, FoundUrl(link.url, depth, priorities.get(link.url, 0), "link", parent)) for link in links]
    if not lastmods:
        return founds
    return [(link, msgspec.structs.replace(found, lastmod=lastmods.get(found.url, 0.0))) for link, found in founds]


def _joins(name: str, redirect: Redirect | None) -> tuple[str, ...]:
    """The scope names that join with a page: its own, and that of its redirect target."""
    names = (name, redirect.joins if redirect is not None else "")
    return tuple(dict.fromkeys(one for one in names if one))


def _controls(job: Job, meta: PageMeta, joins: Iterable[str], parsed: Parsed) -> list[Encoded]:
    records: list[control.Control] = [control.Join(job.name, name) for name in joins]
    if parsed.closes:
        records.append(control.Command("stop", job=job.name, at=meta.fetched_at, reason=parsed.closes))
    return [(control.key(record), control.encode(record)) for record in records]


# What a job's user is told of its pages as they are parsed: their rows, those without one, cookies that were dropped.

MAX_URL_CHARS = 300  # Longest URL in a remark: a report names up to 50 jobs


def remarked(before: JobRemarks | None, job: Job, meta: PageMeta, parsed: Parsed) -> JobRemarks | None:
    """The remarks on a job with one more page; None without any. A new epoch begins with none."""
    is_rowless = bool(job.spec.spider) and is_followed(meta) and not is_redirect(meta) and not parsed.items
    if not parsed.items and not is_rowless and not drops_cookie(job, meta):
        return before
    if before is None or before.epoch != meta.epoch:
        before = JobRemarks(meta.epoch)
    url = meta.url[:MAX_URL_CHARS]
    return JobRemarks(
        meta.epoch,
        before.rowless + is_rowless,
        before.first_rowless or url * is_rowless,
        before.lost_cookie or url * drops_cookie(job, meta),
        before.rows + len(parsed.items),
    )


def drops_cookie(job: Job, meta: PageMeta) -> bool:
    """Whether the answer to a form sets a cookie that the job does not keep: a login would be lost."""
    rules, request = job.spec.requests, meta.request
    if rules is None or rules.cookies or request is None or request.method.upper() != "POST":
        return False
    return request.keeps_cookies and any(name.lower() == "set-cookie" for name, _ in meta.headers)
