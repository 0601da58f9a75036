"""Decisions by a page's job: whether it is parsed, which links are sent, which name joins the scope.

    crawl.control ─► Jobs.learn ─► the newest revision of each job (`Job`); a page of a later revision must wait

`Jobs.fault` says why a job cannot be used: a wrong expression, a spider that does not load.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from crawlog.schemas import control
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import DEFAULT_JOB, DEFAULT_SPEC, MAX_VIA_BYTES, FoundUrl, JobSpec, Source
from crawlog.streams.errors import Misconfigured
from crawlog.streams.html import Links, Outlink, Resolved
from crawlog.streams.jobs import JobRevision, traits
from crawlog.streams.spiders import (
    SPIDER,
    Parsed,
    is_html,
    is_redirect,
    parse_listing,
    parse_page,
)
from crawlog.streams.url import (
    Canonicaliser,
    InvalidUrl,
    Names,
    Places,
    Scope,
    fingerprint,
    plain,
    scope_name,
    serialise,
)

from .founds import Sent
from .requested import redirected

SITEMAP_PRIORITY = 20  # Sitemaps are fetched before the URLs in them, whose priorities are -10 to 10

# The error of a page whose redirect the job's canonical rules undo.
UNDONE, CIRCLE = "redirect_undone", "redirect_circle"


# Longest reason why a job cannot be used, characters. It may quote a file name of megabytes, and it is in the dead
# letter of each page.
MAX_FAULT = 1000


class Revised(NamedTuple):
    """A revision of a job, as read from crawl.control.

    Attributes:
        error: Why it cannot be used; None if it can, or if it was known before.
    """

    job: str
    rev: int
    error: Misconfigured | None


FIRST = JobRevision(0, 1)


class Redirect(NamedTuple):
    """The accepted target of a redirect.

    Attributes:
        joins: The scope name that joins with it; empty for none.
    """

    link: Outlink
    found: FoundUrl
    joins: str


class Job:
    """The newest known revision of a job, ready to parse with.

    Args:
        joined: Names that joined its scope, from crawl.control; `Jobs` adds those that it reads.

    Attributes:
        begun: The record with which it began, or last went on after its end. No process of its spider is older.

    Raises: Misconfigured: its scope has a wrong expression.
    """

    def __init__(self, name: str, spec: JobSpec, places: Places, joined: Names, begun: JobRevision = FIRST) -> None:
        self.name = name
        self.begun = begun
        self.spider = "" if spec.spider else SPIDER
        self.spec = spec
        self.joined = joined
        canonicaliser = Canonicaliser(spec.canonical)
        self.canonical = canonicaliser.canonical
        self._scope = Scope(spec)
        self._scope_size = len(self.joined)
        self._own_name = ""
        self.links = Links(canonicaliser, places, is_foreign=None if spec.scope.kind == "any" else self._is_foreign)
        self._names = frozenset(spec.scope.names)
        self._place = places.of
        self._telling = frozenset(name.lower() for name in spec.fingerprint_headers)
        self._sent: dict[int, Sent] = {}

    # The page itself.

    def may_parse(self, meta: PageMeta) -> bool:
        """Whether a page may reach the HTML parser of the default spider."""
        return meta.kind == "page" and is_html(meta) and not is_redirect(meta)

    def may_lend(self, meta: PageMeta) -> bool:
        """Whether another process may parse a page: what it holds depends on nothing that this process remembers."""
        return not self.spec.spider and meta.same_as is None and self.may_parse(meta)

    def parsed(self, meta: PageMeta, body: bytes) -> Parsed:
        """The result of the default spider for a page."""
        self._note_scope(meta)
        parse = parse_page if meta.kind == "page" else parse_listing
        return parse(meta, body, self.links, self.spec)

    def scoped(self, meta: PageMeta, urls: Iterable[str]) -> Resolved:
        """Links of a page that are foreign by the scope names of another process, by those that this one knows."""
        self._note_scope(meta)
        return self.links.judged_again(urls)

    def _note_scope(self, meta: PageMeta) -> None:
        """Have links asked about again if the scope has grown, or if a page adds another name."""
        name = self.joining(meta) or ""
        if (len(self.joined), name) != (self._scope_size, self._own_name):
            self._scope_size, self._own_name = len(self.joined), name
            self.links.scope_grew()

    # Its links.

    def _is_foreign(self, origin: str) -> bool:
        """Whether no URL of an origin is in the scope, with the name that the page itself adds to it."""
        own = self._own_name
        return self._scope.is_foreign(origin, self.joined) and (not own or self._scope.is_foreign(origin, (own,)))

    def count_foreign(self, urls: Sequence[str], depth: int, dropped: dict[str, int]) -> None:
        """Count links that are foreign by the rule that refuses them."""
        for rule, count in self._scope.foreign_rules(urls, depth):
            dropped[rule] = dropped.get(rule, 0) + count

    def sent(self, epoch: int) -> Sent:
        """The links sent lately in an epoch; a new epoch replaces the older one."""
        sent = self._sent.get(epoch)
        if sent is None:
            sent = Sent()
            self._sent = {epoch: sent}
        return sent

    def refusal(self, link: Outlink, depth: int, hops: int = 0, joining: str = "") -> str | None:
        """The rule that refuses a link; None if it is accepted.

        Args:
            joining: A scope name that counts as joined although crawl.control does not have it yet.
        """
        rule = self._scope.refusal(link.url, link.place, depth, hops, self.joined)
        if rule == "scope" and joining:
            rule = self._scope.refusal(link.url, link.place, depth, hops, (joining,))
        return rule

    def sitemaps(
        self, meta: PageMeta, named: Iterable[Outlink], dropped: dict[str, int], joining: str = ""
    ) -> Iterator[tuple[Outlink, FoundUrl]]:
        """Founds for the accepted sitemaps that a robots.txt or a sitemap names; the refused ones are counted by rule.

        A sitemap has the depth of the file that names it. One named by a sitemap is a hop further, as after a redirect.
        """
        hops = meta.hops + (meta.kind == "sitemap")
        for link in named:
            rule = self.refusal(link, meta.depth, meta.hops + 1, joining)
            if rule is not None:
                dropped[rule] = dropped.get(rule, 0) + 1
            else:
                yield link, FoundUrl(link.url, meta.depth, SITEMAP_PRIORITY, "sitemap", meta.url, hops)

    def redirect(self, meta: PageMeta, dropped: dict[str, int], joining: str = "") -> Redirect | None:
        """The target of a redirect, a link of the same depth; None if it is refused, which is counted by rule.

        The target of a seed's redirect joins the scope. A redirect that set a cookie and leads back to its start has
        that URL fetched once more: without the cookie it answered with a redirect, with it it may answer with a page.
        """
        try:
            url = self.canonical(meta.location, meta.url)
        except InvalidUrl:
            return None
        identity, request = redirected(meta, url, self._place(url), self._telling)
        link, name = self.outlink(url, identity), ""
        rule = self.refusal(link, meta.depth, meta.hops + 1, joining)
        if rule == "scope" and meta.seed:
            name = scope_name(self.spec.scope.kind, link.place)
            rule = self.refusal(link, meta.depth, meta.hops + 1, name)
        if rule is not None:
            dropped[rule] = dropped.get(rule, 0) + 1
            return None
        source: Source = "sitemap" if meta.kind == "sitemap" else "redirect"
        hops, joins, checked = meta.hops + 1, meta.seed, meta.leads_back
        via = b"".join(_chain(meta))[-MAX_VIA_BYTES:]
        found = FoundUrl(url, meta.depth, 0, source, meta.url, hops, joins=joins, checked=checked, via=via)
        if request is not None:
            found = msgspec.structs.replace(found, id=identity, request=request)
        return Redirect(link, found, name)

    def undone(self, meta: PageMeta) -> PageMeta:
        """The page; a failure if its redirect leads back to a request that led to it, or to its own.

        Its found would be known, so nobody would learn of it. A check for cookies leads back once (`redirect`). The
        target may be another spelling of the page's URL, which the job's canonical rules undo: it is never asked for.
        """
        if not is_redirect(meta) or meta.kind != "page":
            return meta
        try:
            target = plain(serialise(meta.location, meta.url))
            url = self.canonical(target)
        except InvalidUrl:
            return meta
        identity, _ = redirected(meta, url, self._place(url), self._telling)
        chain, mark = _chain(meta), _mark(url, identity)
        if target != url == meta.url and mark == chain[-1]:
            return _failed(meta, f"{UNDONE}: canonical rules make {target[:MAX_FAULT]} this URL")
        if chain.count(mark) > meta.leads_back:
            return _failed(meta, f"{CIRCLE}: {url[:MAX_FAULT]} led here")
        return meta

    def ended(self, meta: PageMeta) -> PageMeta:
        """The page; if its redirect leads back or is refused by a rule, the failure that its request's errback gets."""
        if not is_redirect(meta) or meta.request is None or not meta.request.errback:
            return meta
        if (undone := self.undone(meta)) is not meta:
            return undone
        refused: dict[str, int] = {}
        if self.redirect(meta, refused, self.joining(meta) or "") is not None:
            return meta
        rule = next(iter(refused), "bad_url")
        return _failed(meta, rule if rule in ("scope", "bad_url") else f"scope: {rule}")

    def again(self, meta: PageMeta) -> tuple[Outlink, FoundUrl]:
        """The found that queues a page's URL once more, because its stored body is gone."""
        source: Source = "sitemap" if meta.kind == "sitemap" else "link"
        if meta.seed and source == "link":
            source = "redirect" if meta.hops else "seed"
        joins = source == "redirect"
        found = FoundUrl(meta.url, meta.depth, 0, source, "", meta.hops, joins, "not_modified", via=meta.via)
        found = msgspec.structs.replace(found, id=meta.id, request=meta.request)
        return self.outlink(meta.url, meta.id), found

    def outlink(self, url: str, identity: int = 0) -> Outlink:
        """A link to a canonical URL.

        Args:
            identity: Of its request; 0 for a plain GET.
        """
        return Outlink(url, identity or fingerprint(url), self._place(url))

    def written_outlink(self, url: str, identity: int) -> Outlink:
        """A link to a URL that a spider wrote. Raises: InvalidUrl: it is none."""
        return self.outlink(self.canonical(url), identity)

    # Its scope.

    def joining(self, meta: PageMeta) -> str | None:
        """The scope name of a page if it must still be written to crawl.control; else None.

        A page that was fetched for a job is in its scope. If the job's record lacks its name, a later seed added it.
        """
        kind = self.spec.scope.kind
        name = None if kind == "any" else scope_name(kind, self._place(meta.url))
        if name is None or name in self._names or name in self.joined:
            return None
        if meta.seed:
            return name
        self.joined.add(name)  # the seed's own page writes it; this worker has not read that record yet
        return None


def _mark(url: str, identity: int) -> bytes:
    """The identity of a request, as `FoundUrl.via` has it."""
    return (identity or fingerprint(url)).to_bytes(8, "big")


def _chain(meta: PageMeta) -> list[bytes]:
    """The requests whose redirects led to a page, and its own."""
    return [*(meta.via[at : at + 8] for at in range(0, len(meta.via), 8)), _mark(meta.url, meta.id)]


def _failed(meta: PageMeta, error: str) -> PageMeta:
    """A redirect that is not followed, as a failure."""
    return msgspec.structs.replace(meta, location="", error=error, kept=False)


Check = Callable[[str], None]


class Jobs:
    """The newest revision of each job in crawl.control; a later epoch is newer, whatever its revisions.

    Args:
        check: Called with the spider in a job's record. Raises: Misconfigured: it may not be run.
    """

    def __init__(self, places: Places, check: Check) -> None:
        self._places = places
        self._check = check
        self._known: dict[str, Job] = {}
        self._marks: dict[str, JobRevision] = {}
        self._broken: dict[str, tuple[JobRevision, str]] = {}
        self._deleted: dict[str, int] = {}
        self._joined: dict[str, Names] = {}
        self._learn(DEFAULT_JOB, DEFAULT_SPEC, 0)

    def of(self, meta: PageMeta) -> Job | None:
        """The job of a page that has waited; None if it was deleted meanwhile."""
        return None if self.is_deleted(meta) else self._known.get(meta.job)

    def get(self, name: str) -> Job | None:
        return self._known.get(name)

    def fault(self, meta: PageMeta) -> str | None:
        """Why a page's job cannot be used at the page's revision or a newer one; None if no fault is known."""
        mark, error = self._broken.get(meta.job, ((-1, -1), ""))
        return error if mark >= (meta.epoch, meta.rev) else None

    def is_behind(self, meta: PageMeta) -> bool:
        """Whether a page was fetched under a newer revision of its job than the one that is known."""
        return self._marks.get(meta.job, (-1, -1)) < (meta.epoch, meta.rev) and meta.job != DEFAULT_JOB

    def is_past(self, meta: PageMeta) -> bool:
        """Whether a page's job has begun again since the page was asked for."""
        return meta.epoch < self._marks.get(meta.job, (-1, -1))[0]

    def is_deleted(self, meta: PageMeta) -> bool:
        """Whether a page's job is deleted; a later job of its name has later epochs."""
        return meta.epoch <= self._deleted.get(meta.job, control.NO_EPOCH)

    def learn(self, record: control.Control) -> Revised | None:
        """Apply a record of crawl.control: a job's revision, or names that joined its scope."""
        if isinstance(record, control.JobCopy):
            self._deleted[record.job] = max(record.after, self._deleted.get(record.job, control.NO_EPOCH))
            return Revised(record.job, record.spec.rev, self._learn(record.job, record.spec, record.epoch))
        if isinstance(record, control.Join):
            self._joined_of(record.job).update(record.names)
        return None

    def _joined_of(self, job: str) -> Names:
        return self._joined.setdefault(job, Names())

    def _learn(self, name: str, spec: JobSpec, epoch: int) -> Misconfigured | None:
        mark, known = JobRevision(epoch, spec.rev), self._known.get(name)
        if known is not None and (mark < self._marks[name] or (mark, spec) == (self._marks[name], known.spec)):
            return None
        if spec.state == "deleted" and name != DEFAULT_JOB:
            self._deleted[name] = max(epoch, self._deleted.get(name, control.NO_EPOCH))
            for of_job in (self._known, self._marks, self._broken, self._joined):
                of_job.pop(name, None)
            return None
        try:
            if spec.spider and spec.code is None:  # deployed code is judged where its process starts
                self._check(spec.spider)
            begun = mark if known is None or _begins_anew(known, mark, spec) else known.begun
            self._known[name] = Job(name, spec, self._places, self._joined_of(name), begun)
            self._marks[name] = mark
        except Misconfigured as error:
            self._broken[name] = (mark, str(error)[:MAX_FAULT])
            return error
        return None


def _begins_anew(known: Job, mark: JobRevision, spec: JobSpec) -> bool:
    """Whether a job begins anew with a revision: in a new epoch, or after its end."""
    return mark.epoch != known.begun.epoch or (traits(known.spec.state).ended and not traits(spec.state).ended)
