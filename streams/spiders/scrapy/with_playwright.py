"""scrapy-playwright: its handler, settings and keys of `meta`, as actions in crawlog's own browser.

meta["playwright"], PageMethods, contexts ─► Browsed.actions ─► the request's record ─► browser
response.meta["playwright_page_methods"], each with its result ◄─ methods ◄─ the page's results
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from crawlog.schemas.pages import ActionResult
from crawlog.schemas.requests import Action
from crawlog.streams.page_actions import CONTEXT, action_of

log = logging.getLogger(__name__)

HANDLER = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"

PAGE_METHOD = "scrapy_playwright.page.PageMethod"  # The library is the project's

METHODS = "playwright_page_methods"

_CONTEXT_NAME = "default"  # scrapy-playwright's

# Arguments of a context that change nothing here.
_UNUSED = frozenset({"accept_downloads", "ignore_https_errors", "service_workers"})

# Arguments of a context that crawlog does not have, each with the way to it.
_WAYS = {
    "extra_http_headers": "set DEFAULT_REQUEST_HEADERS",
    "http_credentials": "set HTTPAUTH_USER, or fetch.logins of the workers",
    "proxy": "set meta['proxy'], or exits.proxies of the workers",
    "storage_state": "give the cookies to a request",
    "user_data_dir": "cookies are kept in the log, for all workers: no folder is",
}


def is_playwright(handler: Any) -> bool:
    """Whether a download handler is scrapy-playwright's; no class of it is loaded."""
    path = handler if isinstance(handler, str) else f"{handler.__module__}.{handler.__qualname__}"
    return path == HANDLER


def has_playwright(settings: BaseSettings) -> bool:
    return any(map(is_playwright, filter(None, settings.getdict("DOWNLOAD_HANDLERS").values())))


def refused(settings: BaseSettings) -> Iterator[str]:
    """Why a context, or the browser's start, cannot be as the settings have it."""
    for name, given in settings.getdict("PLAYWRIGHT_CONTEXTS").items():
        try:
            _context(given)
        except ValueError as error:
            yield f"PLAYWRIGHT_CONTEXTS[{name!r:.80}]: {error}"
    if settings.getdict("PLAYWRIGHT_LAUNCH_OPTIONS").get("proxy"):
        yield f"PLAYWRIGHT_LAUNCH_OPTIONS['proxy']: {_WAYS['proxy']}"


def _context(given: Mapping[str, Any] | None) -> Action:
    """The context of a page. Raises: ValueError: it cannot be so."""
    kept = {name: value for name, value in (given or {}).items() if name not in _UNUSED and value is not None}
    for name, way in _WAYS.items():
        if name in kept:
            raise ValueError(f"{name!r} is refused: {way}")
    return action_of(CONTEXT, (), kept)


class Browsed:
    """How the requests of a project go to the browser.

    Attributes:
        is_on: Whether scrapy-playwright is the project's download handler.
    """

    def __init__(self, settings: BaseSettings) -> None:
        self.is_on = has_playwright(settings)
        self._contexts = settings.getdict("PLAYWRIGHT_CONTEXTS") if self.is_on else {}

    def actions(self, meta: Mapping[str, Any]) -> tuple[Action, ...]:
        """What is done with a request's page; empty if no browser gets it. Raises: ValueError: it cannot be done."""
        if not self.is_on or not meta.get("playwright"):
            return ()
        name = meta.get("playwright_context", _CONTEXT_NAME)
        first = [_context(self._contexts.get(name, meta.get("playwright_context_kwargs")))]
        goto = meta.get("playwright_page_goto_kwargs") or {}
        if unknown := sorted(goto.keys() - {"url", "timeout", "wait_until"}):
            raise ValueError(f"playwright_page_goto_kwargs[{unknown[0]!r:.80}]: set it as a header of the request")
        if goto.get("wait_until") == "networkidle":
            first.append(action_of("wait_for_load_state", ["networkidle"]))
        return (*first, *(action_of(one.method, one.args, one.kwargs) for one in _page_methods(meta)))

    def jar(self, meta: Mapping[str, Any]) -> Any:
        """The key of the jar: a context has cookies of its own."""
        name = meta.get("playwright_context") if self.is_on and meta.get("playwright") else None
        return meta.get("cookiejar", None if name == _CONTEXT_NAME else name)

    @staticmethod
    def keys(meta: Mapping[str, Any]) -> list[Any] | int:
        """How the methods stand in `meta`: the keys of a dict, or their number."""
        given = meta[METHODS]
        return list(given) if isinstance(given, dict) else len(_page_methods(meta))


def _page_methods(meta: Mapping[str, Any]) -> list[Any]:
    """The PageMethods of a request; other objects are ignored, as by scrapy-playwright."""
    kind = load_object(PAGE_METHOD)
    given = meta.get(METHODS) or ()
    methods = list(given.values() if isinstance(given, dict) else given)
    for one in methods:
        if not isinstance(one, kind):
            log.warning("Ignoring %r: expected PageMethod, got %r", one, type(one))
    return [one for one in methods if isinstance(one, kind)]


def methods(
    keys: list[Any] | int, actions: Sequence[Action], results: Sequence[ActionResult]
) -> list[Any] | dict[Any, Any]:
    """The PageMethods of a page's request, with their results, as `keys` has them."""
    kind = load_object(PAGE_METHOD)
    count = keys if isinstance(keys, int) else len(keys)
    own = actions[len(actions) - count :]
    made = [kind(one.do, **one.args) for one in own]
    for method, result in zip(reversed(made), reversed(results), strict=False):
        method.result = result.value
    return made if isinstance(keys, int) else dict(zip(keys, made, strict=False))
