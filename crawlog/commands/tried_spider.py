"""`crawlog parse`: what a spider makes of one page, in its own process, as a worker would run it."""

from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.streams.errors import Misconfigured, SpiderDied
from crawlog.streams.http import essence
from crawlog.streams.sink import plain_row
from crawlog.streams.spiders import CallResult, PageCall, StoredPage, ref_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .named_spider import NamedSpider

TRIED_LOADER = "crawlog.streams.spiders.runners:load_tried"
"""What loads the spider in its process."""


def parsed_page(
    settings: "Settings", spider: "NamedSpider", page: StoredPage, callback: str = "", cb_kwargs: str = ""
) -> CallResult:
    """What a spider makes of a page; items are rows, of a spider with pipelines without these.

    Args:
        callback: The method that gets the page; by default that of the page's own request.
        cb_kwargs: Its further arguments, a JSON object.

    Raises: Misconfigured: the spider cannot be loaded, ended its process, or has no such method; `cb_kwargs` is no
        object.
    """
    from crawlog.agents.sandbox import ChildRules, SpiderChild
    from crawlog.streams.log import JobSpider, resolve_spec

    ref, facts = spider.ref, spider.facts
    spec = resolve_spec(settings, JobSpider(facts.path, ref.args, ref.scrapy, facts.starts))
    if callback or cb_kwargs:
        page = page.to_callback(callback, _object(cb_kwargs))
    try:
        with SpiderChild(ref_of("trying", 0, spec), ChildRules.of(settings, None), loader=TRIED_LOADER) as child:
            if callback and not child.call("has_callback", callback.encode()):
                name, _, _ = facts.label.partition("@")
                raise Misconfigured(f"-c {callback}: {name} has no method {callback}")
            result = child.page(PageCall(page.meta, page.body))
    except SpiderDied as error:
        raise Misconfigured(f"--spider {ref.path}: {error}") from None
    if result.is_raw:
        result.items = [msgspec.Raw(plain_row(item)) for item in result.items]
        result.is_raw = False
    return result


def unlike_a_crawl(settings: "Settings", spider: "NamedSpider", page: StoredPage) -> list[str]:
    """What a crawl would do otherwise with the page, a line each."""
    meta, facts = page.meta, spider.facts
    told = []
    is_answer = meta.http is not None and (200 <= meta.http < 300 or meta.http in facts.statuses)
    is_answer = is_answer or meta.same_as is not None  # 304: the callback gets the older page
    if not is_answer and not facts.is_scrapy:
        status = f"status {meta.http}" if meta.http is not None else meta.error
        told.append(f"{status}: no page for a callback; see handle_httpstatus_list, and the errback of its request")
    kept, kind = settings.fetch.content_types, meta.sniffed or essence(meta.content_type)
    if kind and page.body and kind not in kept and "*/*" not in kept:
        told.append(f"of links that it only finds a crawl keeps no body of type {kind}: see fetch.content_types")
    return told


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Misconfigured(f"--cb-kwargs {text}: a JSON object, such as '{{\"page\": 2}}' ({error})") from None
