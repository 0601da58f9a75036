"""A page of the log as Scrapy's response."""

from collections.abc import Iterable

from scrapy.http import Headers, Request, Response
from scrapy.responsetypes import responsetypes

from crawlog.schemas.pages import PageMeta

# Headers about the connection: Twisted does not give them to Scrapy.
HIDDEN = frozenset({"connection", "keep-alive", "te", "trailers", "transfer-encoding", "upgrade", "proxy-connection"})

# Codings that are removed from the body, and from its header.
DECODED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})


def response_of(meta: PageMeta, body: bytes, request: Request) -> Response:
    """The response of a page; its class is found by Scrapy's own rules."""
    headers = _headers(meta, is_decoded=request.method != "HEAD")  # it has no body, and keeps its header in Scrapy
    is_moved = bool(meta.location) and 200 <= (meta.http or 0) < 300  # a rendered page went there by itself
    if is_moved:
        headers["Location"] = meta.location
    url = request.url.partition("#")[0]
    kind = responsetypes.from_args(headers=headers, url=url, body=body)
    return kind(
        url=url,
        status=302 if is_moved else meta.http or 200,
        headers=headers,
        body=body,
        request=request,
        protocol="HTTP/1.1",
    )


def _headers(meta: PageMeta, *, is_decoded: bool) -> Headers:
    given = meta.headers or tuple(_known(meta))
    headers = Headers()
    for name, value in given:
        lower = name.lower()
        if lower in HIDDEN:
            continue
        left = _undecoded(value) if lower == "content-encoding" and is_decoded else value
        if left or lower != "content-encoding":
            headers.appendlist(name, left.encode("latin-1", "replace"))
    if meta.rendered and not meta.location:  # its body is the browser's, in UTF-8 whatever the server said
        headers["Content-Type"] = meta.content_type
    return headers


def _undecoded(codings: str) -> str:
    return ", ".join(one for one in map(str.strip, codings.split(",")) if one.lower() not in DECODED)


def _known(meta: PageMeta) -> Iterable[tuple[str, str]]:
    """The headers of a page that was stored before its job had a spider."""
    if meta.content_type:
        yield "Content-Type", meta.content_type
    if meta.location:
        yield "Location", meta.location
