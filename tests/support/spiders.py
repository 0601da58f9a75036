"""What a spider gives for a page."""

import asyncio
from typing import Any, NamedTuple

from crawlog import Spider
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import CanonicalRules, JobSpec
from crawlog.streams.html.links import Links
from crawlog.streams.spiders import CallResult, PageCall, SpiderFacts, SpiderRef, Trust, Values, load_runner
from crawlog.streams.spiders.own import OwnRunner
from crawlog.streams.spiders.own_outputs import Bounds
from crawlog.streams.spiders.page import Parsed
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places

PAGE = "http://a.test/dir/p?q=1"


HTML = "text/html; charset=utf-8"


def given(spider: Spider, body: bytes = b"", bounds: Bounds | None = None, spec: Any = None, **meta: Any) -> Parsed:
    """What a spider gives for a page. Raises what the spider raises."""
    fields: dict[str, Any] = {"url": PAGE, "job": "j", "http": 200, "content_type": HTML} | meta
    runner = runner_of(spider, spec, bounds=bounds)
    result = asyncio.run(runner.made_of(PageCall(PageMeta(**fields), body)))
    priorities = {one.url: one.priority for one in result.requests if one.priority}
    links = Links(Canonicaliser(CanonicalRules()), Places(8))
    return Parsed(result.items, links.resolve(PAGE, [one.url for one in result.requests]), priorities)


def runner_of(spider: Spider, spec: Any = None, carrier: Any = None, bounds: Bounds | None = None) -> OwnRunner:
    """The runner of a spider that is no file's."""
    facts = SpiderFacts("", "", statuses=tuple(spider.handle_httpstatus_list), has_pipelines=bool(spider.pipelines))
    values = Values(carriers=[carrier(spider)] if carrier else ())
    return OwnRunner(spider, facts, SpiderRef("", spec=JobSpec(**spec or {})), bounds or Bounds(), values)


class Loaded(NamedTuple):
    """A spider of a file."""

    path: str
    label: str
    spider: Spider


def load_spider(named: str, trust: Trust | None = None) -> Loaded:
    """The spider in a file of crawlog's own. Raises: Misconfigured: as `load_runner`."""
    runner: Any = load_runner(SpiderRef(named), trust=trust)
    return Loaded(runner.facts.path, runner.facts.label, runner._spider)


def result_of(spider: Spider, body: bytes = b"", spec: Any = None, carrier: Any = None, **meta: Any) -> CallResult:
    """What the child process says of a page."""
    fields: dict[str, Any] = {"url": PAGE, "job": "j", "http": 200, "content_type": HTML} | meta
    return asyncio.run(runner_of(spider, spec, carrier).page(PageCall(PageMeta(**fields), body)))
