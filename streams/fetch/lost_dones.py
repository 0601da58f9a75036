"""Dones of pages whose own dones were lost: their worker was killed after the page, or the page's founds came first.

    crawl.pages, from `first_page` on ─► LostDones.of ─► the page's URL still has its row? ─► a done, and no request

A worker writes the dones of one partition and job in the order of its pages, and has at most `fetch.concurrency` pages
without a done. So the pages before the one that the newest done names have theirs, but for the last ones of other jobs.
Pure: it reads the fold.
"""

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta
from crawlog.streams.fold import Fold, JobState
from crawlog.streams.requests import RequestPolicy, WorkerLimits, policy_of
from crawlog.streams.session import CookieJar
from crawlog.streams.url import Places

from .outcome import REASON_CHARS, unkept

OTHER_JOBS_PAGES = 1_000  # Pages before the newest done in which another job may have some without a done

LEAST_PAGES = 2_000  # No fewer pages at the end of crawl.pages may be looked at, if no done says where to begin


def first_page(fold: Fold) -> int | None:
    """The offset from which a partition's pages may have no done; None if it has no URL that awaits one."""
    queued = [job.counts.page_end for job in fold.numbers.values() if job.counts.queued + job.counts.again > 0]
    if not queued:
        return None
    newest = max(job.counts.page_end for job in fold.numbers.values())
    return max(min(queued), newest - OTHER_JOBS_PAGES)


def most_pages(concurrency: int) -> int:
    """How many pages at the end of crawl.pages are looked at, at most."""
    return max(LEAST_PAGES, 2 * concurrency)


class LostDones:
    """Makes the dones of one partition's pages, which come in their order.

    Args:
        usual, limits: The worker's own request policy, and its limits.
    """

    def __init__(self, fold: Fold, places: Places, usual: RequestPolicy, limits: WorkerLimits) -> None:
        self._fold = fold
        self._places = places
        self._usual = usual
        self._limits = limits
        self._jars: dict[tuple[int, int, str], CookieJar] = {}
        self._done: set[tuple[int, int]] = set()

    def of(self, meta: PageMeta, offset: int, size_bytes: int = 0) -> u.Result | None:
        """The done of a page, whose body has a size; None if its URL does not await one."""
        job = self._fold.jobs.get(meta.job)
        if job is None or meta.epoch != job.epoch or meta.row is None or offset < job.counts.page_end:
            return None
        result = _result(meta, meta.row, (self._fold.partition, offset))
        row = self._fold.dones.awaiting(job, result)
        place = (job.number, meta.row)
        if row is None or row.id != meta.id or row.attempt + 1 != meta.attempt or place in self._done:
            return None
        self._done.add(place)
        rules = policy_of(job.spec, self._usual, self._limits).rules
        rest_s = min(max(meta.rest_s, 0.0), rules.max_delay_s)
        result = msgspec.structs.replace(result, host_wait_s=rest_s, bytes=size_bytes)
        return self._with_cookies(job, meta, rules, result)

    def _with_cookies(self, job: JobState, meta: PageMeta, rules: u.RequestRules, result: u.Result) -> u.Result:
        """The done, with what the request and its answer set in the jar."""
        request = meta.request
        if not rules.cookies or (request is not None and not request.keeps_cookies):
            return result
        name = request.jar if request is not None else ""
        domain = self._places.of(meta.url).domain_hash
        key = job.number, domain, name
        if key not in self._jars:
            self._jars[key] = CookieJar(self._fold.dones.jars.read(*key))
        jar = self._jars[key]
        if request is not None:
            jar.give(meta.url, request.cookies, meta.fetched_at)
        said = [_as_read(value) for name, value in meta.headers if name.lower() == "set-cookie"]
        jar.keep(meta.url, said, meta.fetched_at)
        return msgspec.structs.replace(result, jar=name, cookies=jar.changes())


def _as_read(value: str) -> str:
    """A header's value as fetch had it from aiohttp: a page keeps each byte as a character."""
    return value.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def result_status(meta: PageMeta) -> u.Status:
    """The status of a page's done."""
    if meta.http is None:
        return "refused" if meta.is_refused else "failed"
    if meta.same_as is not None:
        return "not_modified"
    return "redirected" if meta.location else "fetched"


def _result(meta: PageMeta, row: int, page: tuple[int, int]) -> u.Result:
    return u.Result(
        meta.url,
        row,
        result_status(meta),
        priority=meta.priority,
        reason=meta.error[:REASON_CHARS],
        http=meta.http,
        attempt=meta.attempt,
        depth=meta.depth,
        at=meta.fetched_at,
        took_s=meta.took_s,
        page=page,
        id=meta.id,
        unkept=unkept(meta),
    )
