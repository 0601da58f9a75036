"""`crawlog parse`: what a spider makes of one page, in its own process, as a worker would run it."""

from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.streams.errors import Misconfigured, SpiderDied
from crawlog.streams.spiders import CallResult, PageCall, StoredPage, ref_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .named_spider import NamedSpider


def parsed_page(
    settings: "Settings", spider: "NamedSpider", page: StoredPage, callback: str = "", cb_kwargs: str = ""
) -> CallResult:
    """What a spider makes of a page.

    Args:
        callback: The method that gets the page; by default that of the page's own request.
        cb_kwargs: Its further arguments, a JSON object.

    Raises: Misconfigured: the spider cannot be loaded, or ended its process; `cb_kwargs` is no object.
    """
    from crawlog.agents.sandbox import ChildRules, SpiderChild
    from crawlog.streams.log import JobSpider, resolve_spec

    ref, facts = spider.ref, spider.facts
    spec = resolve_spec(settings, JobSpider(facts.path, ref.args, ref.scrapy, facts.starts))
    if callback or cb_kwargs:
        page = page.to_callback(callback, _object(cb_kwargs))
    try:
        with SpiderChild(ref_of("trying", 0, spec), ChildRules.of(settings, None)) as child:
            return child.page(PageCall(page.meta, page.body))
    except SpiderDied as error:
        raise Misconfigured(f"--spider {ref.path}: {error}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Misconfigured(f"--cb-kwargs {text}: a JSON object, such as '{{\"page\": 2}}' ({error})") from None
