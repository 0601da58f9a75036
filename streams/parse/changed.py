"""What has changed on a page since it was parsed before. Pure: it reads the page, which has what was known of it.

state's row ─► dispatch ─► `PageMeta.was` ─► change_of ─┬─► `ItemsRecord.change`, and its copy in crawl.changes
                                                        └─► `PageChange` ─► crawl.urls ─► the row, the next interval

Only pages of jobs whose URLs are due again have a `was`. So a page that is parsed once more gives the same.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec
import xxhash

from crawlog.schemas.items import Change
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import GONE, MISSING, JobSpec
from crawlog.streams.spiders import Parsed, is_followed, is_redirect
from crawlog.streams.url import fingerprint

# Fields of the default spider's rows that say how the page was fetched, not what it is.
OF_FETCH = frozenset(("status", "depth", "fetched_at"))

_LEAST_DIGEST = MISSING + 1

_encode = msgspec.json.Encoder(order="deterministic").encode


class Changed(NamedTuple):
    """What has changed.

    Attributes:
        digest: Of the page now, as `PageChange` has it.
        is_there: Whether it has items.
        is_news: Whether crawl.changes gets it.
        is_known: Whether the state learns nothing new: an unchanged page whose done says so.
    """

    change: Change
    digest: int
    is_there: bool
    is_news: bool
    is_known: bool


def change_of(spec: JobSpec, meta: PageMeta, parsed: Parsed) -> Changed | None:
    """What has changed; None if the job does not ask, or if an answer such as a 503 does not say."""
    was = meta.was
    if was is None:
        return None
    is_gone = meta.http in (404, 410) and not (spec.spider and parsed.items)
    if not (is_gone or is_followed(meta) or is_redirect(meta) or (spec.spider and parsed.items)):
        return None
    is_there = bool(parsed.items) and not is_gone
    if is_gone:
        digest = GONE if was.item is not None or was.digest == GONE else MISSING
    else:
        digest = _digest(parsed, ignored(spec)) if is_there else _digest_of_links(meta, parsed)
    change: Change = "same"
    if is_there and was.item is None:
        change = "new"
    elif digest == GONE or (was.item is not None and not is_there):
        change = "gone"
    elif is_there and digest != was.digest:
        change = "changed"
    is_news = change != "same" and (is_there or was.item is not None)
    return Changed(change, digest, is_there, is_news, meta.same_as is not None and digest == was.digest)


def ignored(spec: JobSpec) -> Collection[str]:
    """Fields of a job's items that are no change."""
    return spec.recrawl.ignore if spec.spider else OF_FETCH.union(spec.recrawl.ignore)


def fields_of(item: msgspec.Raw | bytes, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The fields of an item that count. One as scraped may be an object with a class."""
    value = msgspec.json.decode(item)
    if isinstance(value, dict) and len(value) == 1 and isinstance(scraped := value.get("$object"), list):
        value = scraped[-1]
    fields = value if isinstance(value, dict) else {"": value}
    return {name: one for name, one in fields.items() if name not in ignored}


def _digest(parsed: Parsed, ignored: Collection[str]) -> int:
    state = xxhash.xxh3_64()
    for item in parsed.items:
        state.update(_encode(fields_of(item, ignored)) + b"\n")
    return max(state.intdigest(), _LEAST_DIGEST)


def _digest_of_links(meta: PageMeta, parsed: Parsed) -> int:
    """Of a page without items: where it leads to."""
    links = {link.fingerprint for link in parsed.outlinks}
    links |= {out.id or fingerprint(out.url) for out in parsed.requests}
    named = b"".join(number.to_bytes(8, "big") for number in sorted(links))
    return max(xxhash.xxh3_64_intdigest(meta.location.encode() + b"\n" + named), _LEAST_DIGEST)
