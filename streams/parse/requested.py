"""Requests of a spider, and redirects of requests: founds that carry everything.

CallResult of the spider's child ─► parsed_of ─► Parsed ─► requested: RequestOut ─► found, unless a rule refuses it
page with a request that redirects ─► redirected: the same request for the next URL, by RFC 9110 15.4
"""

from collections.abc import Callable, Collection, Iterable

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import FoundUrl, Source
from crawlog.streams.html import Outlink
from crawlog.streams.http import REDIRECTS
from crawlog.streams.requests import origin_of
from crawlog.streams.spiders import (
    CallResult,
    Parsed,
    RequestOut,
    SpiderFacts,
    receiver,
    request_id,
    unfiltered_id,
)
from crawlog.streams.url import InvalidUrl, Place, fingerprint

from .founds import Batch, Refusal, Sent

# Headers that go with the body when a redirect makes a GET of a request (Fetch 4.4).
_OF_BODY = ("content-type", "content-length", "content-encoding", "content-language", "content-location")

_OF_ORIGIN = ("authorization", "cookie", "proxy-authorization")  # Headers that no other origin gets


def wants_spider(meta: PageMeta, facts: SpiderFacts) -> bool:
    """Whether a page goes to its job's spider; other pages give only what a redirect gives."""
    if facts.is_scrapy:
        return meta.kind == "page"
    return receiver(meta, facts.statuses) != "nobody"


def parsed_of(result: CallResult, facts: SpiderFacts, meta: PageMeta) -> Parsed:
    """What a spider's child made of a page."""
    return Parsed(
        result.items,
        [],
        requests=result.requests,
        label=facts.label,
        takes_redirects=facts.is_scrapy or receiver(meta, facts.statuses) == "callback",
        closes=result.closes,
        is_raw=result.is_raw,
        stats=result.stats,
    )


def are_known(requests: Iterable[RequestOut], sent: Sent) -> bool:
    """Whether the requests that a spider's process left to the worker's memory are all in it."""
    return all(
        out.id in sent.newest or out.id in sent.on_way or sent.depth(out.id) is not None
        for out in requests
        if out.is_known
    )


def requested(  # what decides about a link, and where it is counted
    meta: PageMeta,
    requests: Iterable[RequestOut],
    outlink: Callable[[str, int], Outlink],
    sent: Sent,
    refusal: Refusal,
    dropped: dict[str, int],
    awaited: set[Batch],
) -> list[tuple[Outlink, FoundUrl]]:
    """The founds of a spider's requests; those that a rule refuses are counted, those in the log are left out."""
    founds = []
    for out in requests:
        if out.is_known:
            if (going := sent.on_way.get(out.id)) is not None:
                awaited.add(going[1])
            continue
        depth = out.depth if out.depth >= 0 else meta.depth + 1
        try:
            link = outlink(out.url, out.id)
        except InvalidUrl:
            continue
        is_again = out.timing is not None and out.timing.is_again
        if sent.unsent([link], depth, refusal, dropped, awaited, is_again=is_again):
            source: Source = "redirect" if out.hops else "link"
            found = FoundUrl(
                link.url, depth, out.priority, source, meta.url, out.hops, id=out.id, request=out.request
            )  # fmt: skip
            if out.timing is not None:
                found = out.timing.on(found, meta.fetched_at)
            founds.append((link, found))
    return founds


def redirected(meta: PageMeta, url: str, place: Place, named: Collection[str] = ()) -> tuple[int, RequestRecord | None]:
    """Identity and request with which the target of a redirect is fetched; (0, None) for a plain GET.

    A 303, and a POST's 301 and 302, become a GET without body, and so does a rendered page that goes elsewhere by
    itself. The target of a request that was no GET is unfiltered: a login that leads to a known page reaches its
    callback.

    Args:
        url: The target, canonical.
        place: Of the target.
        named: Names of headers that tell requests apart, in lower case.
    """
    before = meta.request
    if before is None:
        return 0, None
    method = _method(before.method.upper(), meta.http)
    left_out: tuple[str, ...] = ()
    request = msgspec.structs.replace(before, method=method, cookies=(), url="")
    if before.body and (method != before.method.upper() or meta.http not in REDIRECTS):
        request, left_out = msgspec.structs.replace(request, body=b""), _OF_BODY
    if place.host != origin_of(meta.url):
        left_out += _OF_ORIGIN
    if left_out:
        kept = tuple((name, value) for name, value in request.headers if name.lower() not in left_out)
        request = msgspec.structs.replace(request, headers=kept)
    filtered = request_id(url, request, named)
    if not (before.unfiltered or before.method.upper() not in ("GET", "HEAD")):
        return filtered, request
    request = msgspec.structs.replace(request, unfiltered=True)
    return unfiltered_id(meta.id or fingerprint(meta.url), meta.attempt, filtered, 0), request


def _method(method: str, http: int | None) -> str:
    is_get = http == 303 or http not in REDIRECTS  # a script navigates by GET, whatever request got its page
    if (is_get and method != "HEAD") or (http in (301, 302) and method == "POST"):
        return "GET"
    return method
