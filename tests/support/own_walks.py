"""A crawl without a log: a spider's runner, a dict of what was asked for, urllib."""

import asyncio
import json
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec
from crawlog.streams.spiders import CallResult, PageCall, RequestOut, SpiderRef, load_runner
from crawlog.streams.url import fingerprint

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def walked(path: Path, most: int = 500, **args: str) -> list[Any]:
    """The rows of a spider; its requests are sent one after the other."""
    return asyncio.run(_walked(path, most, args))


async def _walked(path: Path, most: int, args: dict[str, str]) -> list[Any]:
    runner = load_runner(SpiderRef(str(path), tuple(args.items()), job="j", spec=JobSpec()))
    queue: deque[RequestOut] = deque(RequestOut(url) for url in runner.facts.start_urls)
    rows: list[Any] = []
    known: set[int] = set()

    def take(result: CallResult) -> None:
        assert result.error == "", result.trace
        rows.extend(json.loads(bytes(item)) for item in result.items)
        queue.extend(result.requests)

    if runner.facts.starts:
        async for result in runner.start():
            take(result)
    while queue and len(known) < most:
        request = queue.popleft()
        identity = request.id or fingerprint(request.url)
        if identity not in known:
            known.add(identity)
            take(await runner.page(_answered(request)))
    return rows


def _answered(out: RequestOut) -> PageCall:
    record = out.request or RequestRecord()
    headers = dict(record.headers)
    sent = urllib.request.Request(out.url, record.body or None, headers, method=record.method)
    meta = PageMeta(out.url, "j", id=out.id, request=out.request)
    try:
        with _open(sent, timeout=60) as answer:
            return _call(meta, answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        return _call(meta, error.code, dict(error.headers), error.read())


def _call(meta: PageMeta, status: int, headers: dict[str, str], body: bytes) -> PageCall:
    named = {name.lower(): value for name, value in headers.items()}
    fields = {name: getattr(meta, name) for name in meta.__struct_fields__}
    fields |= {"http": status, "content_type": named.get("content-type", ""), "headers": tuple(headers.items())}
    return PageCall(PageMeta(**fields), body)
