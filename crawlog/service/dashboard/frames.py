"""A stored page in a frame: its own document, without scripts, forms, links out or requests, whatever it holds."""

import re

from aiohttp import web

from crawlog.streams.html import charset
from crawlog.streams.http import essence
from crawlog.streams.spiders import StoredPage

# `sandbox` without a word: an origin of its own, no script, no form, no new window, no navigation of the top.
POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)

# No policy keeps Chromium from opening a connection, without a request, for `<link rel=preconnect>`, for a frame, or
# when somebody clicks a link: such attributes get another name.
ADDRESS = re.compile(rb"\b(href|srcdoc|src)(?=\s*=(?!\s*[\"']?data:))", re.IGNORECASE)


def framed(content: str | bytes, *, content_type: str = "text/html") -> web.Response:
    """The document of a frame; a template shows it by the macro `frame`.

    Args:
        content: As text, it is sent as UTF-8, whatever its own head names.
    """
    body = content.encode(errors="replace") if isinstance(content, str) else content
    if content_type == "text/html":
        body = ADDRESS.sub(rb"data-\1", body)
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Frame-Options": "SAMEORIGIN",
        "Referrer-Policy": "no-referrer",
        "X-DNS-Prefetch-Control": "off",
        "Content-Type": f"{content_type}; charset=utf-8",
    }
    return web.Response(body=body, headers=headers)


def page_frame(page: StoredPage) -> web.Response:
    """A page as the document of a frame: HTML rendered, other text as it is, of anything else its size."""
    kind = page.meta.sniffed or essence(page.meta.content_type)
    if not page.body:
        return framed(page.meta.error or "The page has no body.", content_type="text/plain")
    is_html = kind in ("text/html", "application/xhtml+xml")
    if not is_html and not kind.startswith("text/") and not kind.endswith(("json", "xml", "javascript")):
        return framed(f"{len(page.body):,} bytes of {kind or 'an unknown type'}", content_type="text/plain")
    text = charset.decode(page.body, page.meta.content_type)[1]
    return framed(text, content_type="text/html" if is_html else "text/plain")
