"""What a spider gives for a page."""

import asyncio
from typing import Any

from crawlog import Spider
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import CanonicalRules, JobSpec
from crawlog.streams.html.links import Links
from crawlog.streams.spiders import CallResult, PageCall, SpiderFacts, SpiderRef, Values
from crawlog.streams.spiders.own import OwnRunner
from crawlog.streams.spiders.own_outputs import Bounds
from crawlog.streams.spiders.page import Parsed
from crawlog.streams.spiders.yielded import parser_of
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places

PAGE = "http://a.test/dir/p?q=1"


HTML = "text/html; charset=utf-8"


def given(spider: Spider, body: bytes = b"", bounds: Bounds | None = None, spec: Any = None, **meta: Any) -> Parsed:
    """What a spider gives for a page."""
    fields: dict[str, Any] = {"url": PAGE, "job": "j", "http": 200, "content_type": HTML} | meta
    links = Links(Canonicaliser(CanonicalRules()), Places(8))
    return parser_of(spider, bounds or Bounds())(PageMeta(**fields), body, links, JobSpec(**spec or {}))


def result_of(spider: Spider, body: bytes = b"", spec: Any = None, carrier: Any = None, **meta: Any) -> CallResult:
    """What the child process says of a page."""
    fields: dict[str, Any] = {"url": PAGE, "job": "j", "http": 200, "content_type": HTML} | meta
    facts = SpiderFacts("", "", statuses=tuple(spider.handle_httpstatus_list), has_pipelines=bool(spider.pipelines))
    values = Values(carriers=[carrier(spider)] if carrier else ())
    runner = OwnRunner(spider, facts, SpiderRef("", spec=JobSpec(**spec or {})), Bounds(), values)
    return asyncio.run(runner.page(PageCall(PageMeta(**fields), body)))
