"""A stored page in a frame: its own document, without scripts, forms, links out or requests, whatever it holds."""

from aiohttp import web

# `sandbox` without a word: an origin of its own, no script, no form, no new window, no navigation of the top.
POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)


def framed(content: str | bytes, *, content_type: str = "text/html") -> web.Response:
    """The document of a frame; a template shows it by the macro `frame`.

    Args:
        content: As text, it is sent as UTF-8, whatever its own head names.
    """
    body = content.encode(errors="replace") if isinstance(content, str) else content
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Frame-Options": "SAMEORIGIN",
        "Referrer-Policy": "no-referrer",
        "X-DNS-Prefetch-Control": "off",
        "Content-Type": f"{content_type}; charset=utf-8",
    }
    return web.Response(body=body, headers=headers)
