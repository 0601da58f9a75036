"""crawlog's own spiders as parsers within the worker."""

from collections.abc import Coroutine
from typing import Any

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html import Links, Outlink

from .exchange import PageCall, SpiderFacts, SpiderRef
from .own import OwnRunner
from .own_outputs import Bounds
from .page import Parse, Parsed
from .spider import Spider
from .values import Values


def parser_of(spider: Spider, bounds: Bounds) -> Parse:
    """A user's spider as a parser. It raises the exceptions of the spider's callback; the page then gives nothing."""
    runners: dict[JobSpec, OwnRunner] = {}

    def parse(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
        runner = runners.get(spec)
        if runner is None:
            runner = runners[spec] = OwnRunner(
                spider,
                SpiderFacts("", "", statuses=tuple(spider.handle_httpstatus_list)),
                SpiderRef("", spec=spec),
                bounds,
                Values(),
            )
        result = _run(runner.made_of(PageCall(meta, body)))
        outlinks: list[Outlink] = []
        priorities = {}
        for request in result.requests:
            if request.request is not None:
                continue
            outlinks += links.resolve(meta.url, [request.url])
            if request.priority:
                priorities[request.url] = request.priority
        requests = [request for request in result.requests if request.request is not None]
        return Parsed(result.items, outlinks, priorities, requests=requests or ())

    return parse


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise TypeError("a callback that waits needs a spider's process")
