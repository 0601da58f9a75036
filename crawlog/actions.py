"""What a spider does with a page in the browser: `Request(url, actions=[actions.click(".more"), actions.scroll()])`.

Each function makes one action, which travels in the log as data; `response.results` has what each returned. Times are
seconds; without one, an action may take `render.timeout_s`. Selectors are Playwright's: CSS, `text=…`, `xpath=…`.
"""

from typing import Any, Literal

from crawlog.schemas.requests import Action
from crawlog.streams.page_actions import action_of

__all__ = [
    "check",
    "click",
    "evaluate",
    "fill",
    "hover",
    "press",
    "screenshot",
    "scroll",
    "select",
    "wait",
    "wait_for",
]


def click(selector: str, timeout: float | None = None) -> Action:
    """Click an element. A form that it submits is sent, and a link that it follows is shown."""
    return _action("click", timeout, selector=selector)


def fill(selector: str, value: str, timeout: float | None = None) -> Action:
    """Replace the text of a field."""
    return _action("fill", timeout, selector=selector, value=value)


def press(selector: str, key: str, timeout: float | None = None) -> Action:
    """Press a key in an element, such as `Enter`, `ArrowDown` or `Control+A`."""
    return _action("press", timeout, selector=selector, key=key)


def check(selector: str, timeout: float | None = None) -> Action:
    """Check a box."""
    return _action("check", timeout, selector=selector)


def select(selector: str, value: str | list[str], timeout: float | None = None) -> Action:
    """Choose options of a `select` by their values or labels."""
    return _action("select_option", timeout, selector=selector, value=value)


def hover(selector: str, timeout: float | None = None) -> Action:
    """Move the mouse over an element."""
    return _action("hover", timeout, selector=selector)


def scroll(until: str | None = None, timeout: float | None = None) -> Action:
    """Scroll down until an element is there, or, without a selector, until the page grows no more.

    It fails if the page grows no more and the element is not there.
    """
    return _action("scroll", timeout, until=until)


def wait_for(selector: str, timeout: float | None = None) -> Action:
    """Wait until an element is visible."""
    return _action("wait_for_selector", timeout, selector=selector)


def wait(seconds: float) -> Action:
    """Wait. Prefer `wait_for`: it ends as soon as the page is ready."""
    return _action("wait_for_timeout", seconds)


def evaluate(expression: str, arg: Any = None) -> Action:
    """Evaluate JavaScript in the page, or call a function there with `arg`; its result is a JSON value."""
    return _action("evaluate", None, expression=expression, arg=arg)


def screenshot(*, full_page: bool = False, type: Literal["png", "jpeg"] = "png") -> Action:  # noqa: A002  # Playwright's name
    """A picture of the page; its result is bytes. Images are shown in it where `render.block` does not have `image`."""
    return _action("screenshot", None, full_page=full_page, type=type)


def _action(method: str, timeout: float | None, **args: Any) -> Action:
    given = {name: value for name, value in args.items() if value is not None}
    if timeout is not None:
        given["timeout"] = timeout * 1000
    return action_of(method, (), given)
