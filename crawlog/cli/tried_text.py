"""What a spider made of a page, as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from crawlog.streams.spiders import CallResult, RequestOut


def lines(result: "CallResult") -> Iterator[str]:
    """Items, then requests."""
    for item in result.items:
        yield from msgspec.json.format(bytes(item), indent=2).decode().splitlines()
    for request in result.requests:
        yield _request(request)


def faults(result: "CallResult") -> Iterator[str]:
    """Counts, warnings and the error."""
    yield f"{len(result.items)} items, {len(result.requests)} requests"
    yield from result.warnings
    if result.error:
        yield from result.trace.splitlines()
        yield f"the callback fails: {result.error}"


def _request(out: "RequestOut") -> str:
    record = out.request
    if record is None:
        return f"GET {out.url}" + (f"  priority {out.priority}" if out.priority else "")
    parts = [f"{record.method} {out.url}", f"-> {record.callback or 'parse'}"]
    if record.kwargs:
        parts.append(msgspec.json.encode(record.kwargs).decode())
    if record.meta:
        parts.append(f"meta {msgspec.json.encode(record.meta).decode()}")
    if out.priority:
        parts.append(f"priority {out.priority}")
    if record.unfiltered:
        parts.append("unfiltered")
    return "  ".join(parts)
