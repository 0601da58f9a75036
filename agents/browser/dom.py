"""The DOM of a page in the browser, as HTML: read where no script of the page can have replaced a function."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

# URLs of documents that a page may have come to; it leaves for `about:blank` without a request.
DOCUMENTS = ("http", "blob:")

# Runs in an isolated world, where no script of the page can have replaced these functions. Shadow roots become the
# templates that declare them. A page that changed its own URL (`history.pushState`) has its links relative to that one,
# so a `base` says it. The DOM is kept in UTF-8, so links whose queries have another encoding become absolute.
_DOM = """((most, asked) => {
  const root = document.documentElement;
  if (location.href.split('#')[0] !== asked && root.baseURI.startsWith('http')) {
    const base = document.createElement('base');
    base.href = root.baseURI;
    (document.head ?? root).prepend(base);
  }
  const open = [];
  const walk = at => {
    for (const one of at.querySelectorAll('*'))
      if (one.shadowRoot) { open.push(one.shadowRoot); walk(one.shadowRoot); }
  };
  walk(document);
  if (document.characterSet !== 'UTF-8')
    for (const at of [document, ...open])
      for (const link of at.querySelectorAll('a[href], area[href]'))
        if (/[^\\0-\\x7f]/.test(link.getAttribute('href'))) link.setAttribute('href', link.href);
  const html = root.getHTML({shadowRoots: open});
  const tag = root.cloneNode(false).outerHTML.replace(/<\\/html>$/i, '');
  const all = '<!DOCTYPE html>' + tag + html + '</html>';
  return all.length > most ? null : all;
})(%d, %s)"""


class Failed(Exception):
    """A page that cannot be rendered; the message is a reason: one word, or what an action met."""


async def dom(session: "CDPSession", url: str, most_bytes: int) -> str:
    """The DOM. Raises: Failed: there is none, or it is too large.

    Args:
        url: Of the page, as its reader knows it.
    """
    tree = await session.send("Page.getFrameTree")
    frame = tree["frameTree"]["frame"]
    if not frame["url"].startswith(DOCUMENTS):
        raise Failed("render_gone")
    world = await session.send("Page.createIsolatedWorld", {"frameId": frame["id"]})
    script = _DOM % (most_bytes, json.dumps(url.partition("#")[0]))
    where = {"contextId": world["executionContextId"], "returnByValue": True}
    found = await session.send("Runtime.evaluate", {"expression": script, **where})
    if "exceptionDetails" in found:
        raise Failed("render_failed")
    html = found["result"].get("value")
    if not isinstance(html, str) or len(html.encode("utf-8", "replace")) > most_bytes:
        raise Failed("render_too_large")
    return html
