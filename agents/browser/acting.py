"""Does the actions of a request with its page in the browser, one after the other, and bounds what they return.

    Action ─► a method of Playwright's page ─► the page has loaded, if it went elsewhere ─► ActionResult

The page may be a stranger's: what `evaluate` returns is made text in the page and measured there, so that no page fills
this worker's memory, and no element, function or file crosses over.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crawlog.schemas.pages import ActionResult
from crawlog.streams.page_actions import ACTIONS, CONTEXT, RESULT_BYTES, action_of, named

if TYPE_CHECKING:
    from playwright.async_api import JSHandle, Page

    from crawlog.schemas.requests import Action

# `length` of a primitive text is its own: no script of the page can lie about it.
_TEXT = """(value, most) => {
  const text = JSON.stringify(value);
  return typeof text !== 'string' ? 'null' : text.length > most ? null : text;
}"""

# Scrolls to the end. Its result is a number, whatever the page made of these names.
_SCROLL = """() => {
  const root = document.scrollingElement ?? document.documentElement;
  window.scrollTo(0, root.scrollHeight);
  return +root.scrollHeight;
}"""


STILL = 3  # Scrolls after which a page of one height has ended


class ActionFailed(Exception):
    """An action that failed; the message names it, and why."""


class Acting:
    """The actions of one page.

    Args:
        loaded: Waits until the page has loaded. Raises: TimeoutError.
        settled: Waits until the page has sent no request for a while.
        timeout_s: Time for an action that names none.

    Attributes:
        results: Of the actions that are done.
    """

    def __init__(
        self,
        page: "Page",
        actions: "Sequence[Action]",
        loaded: Callable[[], Awaitable[None]],
        settled: Callable[[], Awaitable[object]],
        timeout_s: float,
    ) -> None:
        self._page = page
        self._actions = actions
        self._loaded, self._settled = loaded, settled
        self._timeout_s = timeout_s
        self._room = RESULT_BYTES
        self.results: list[ActionResult] = []

    @property
    def at(self) -> str:
        """The action that is done now."""
        place = min(len(self.results), len(self._actions) - 1)
        return named(place + 1, self._actions[place]) if self._actions[place].do in ACTIONS else f"{place + 1}"

    async def run(self) -> None:
        """Do all of them. Raises: ActionFailed."""
        from playwright.async_api import Error

        try:
            for action in self._actions:
                result = await self._done(action)
                self._room -= len(result.json) + len(result.data)
                if self._room < 0:
                    raise ValueError(f"what the actions return has more than {RESULT_BYTES:,} bytes")
                await self._loaded()
                self.results.append(result)
        except TimeoutError:
            raise ActionFailed(f"{self.at}: then the page did not load in time") from None
        except Error as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise ActionFailed(f"{self.at}: {lines[0] if lines else type(error).__name__}") from error
        except (ValueError, TypeError) as error:  # of arguments in the record, whoever wrote it
            raise ActionFailed(f"{self.at}: {error}") from error

    async def _done(self, action: "Action") -> ActionResult:
        given = action_of(action.do, (), action.args).args
        if action.do == CONTEXT:
            return ActionResult()
        if action.do == "evaluate":
            return await self._evaluated(given)
        if action.do == "scroll":
            return await self._scrolled(given)
        made = await getattr(self._page, action.do)(**given)
        return ActionResult(data=made) if isinstance(made, bytes) else ActionResult()

    async def _evaluated(self, given: Mapping[str, Any]) -> ActionResult:
        handle: JSHandle = await self._page.evaluate_handle(**given)
        try:
            text = await handle.evaluate(_TEXT, RESULT_BYTES)
        finally:
            await handle.dispose()
        if not isinstance(text, str):
            raise ValueError(f"its result has more than {RESULT_BYTES:,} characters")  # noqa: TRY004  # None stands for it
        result = ActionResult(text)
        try:
            result.value  # noqa: B018  # so that no reader fails later
        except RecursionError:
            raise ValueError("its result is nested too deeply") from None
        return result

    async def _scrolled(self, given: Mapping[str, Any]) -> ActionResult:
        """Scroll to the end again and again, until the element is there or the page grows no more."""
        until, timeout_s = given.get("until"), given.get("timeout", 0) / 1000 or self._timeout_s
        heights: list[float] = [0.0]
        end = time.monotonic() + timeout_s
        while until is None or not await self._page.locator(until).count():
            if time.monotonic() > end:
                raise ValueError(f"not there after {timeout_s:g} s, at a height of {heights[-1]} pixels")
            heights.append(await self._page.evaluate(_SCROLL))
            await self._settled()
            if until is None and heights[-3:].count(heights[-1]) == STILL:
                break
        return ActionResult()
