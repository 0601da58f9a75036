"""What a request may have done with its page in the browser: methods of Playwright's page whose arguments are data.

crawlog.actions, PageMethod ─► action_of: names and arguments are checked ─► Action, in the request's record ─► browser

A page with actions is *driven*: forms that an action submits are sent, and the browser follows its navigations. Nothing
here knows a browser.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from crawlog.schemas.requests import Action

RESULT_BYTES = 1 << 20  # What the actions of a page return together, at most

TIMES = 10  # Time for all actions of a page, in multiples of `render.timeout_s`

CONTEXT = "context"  # Not done with the page: how it is shown, as Playwright's `new_context` has it

_FORCED = "force no_wait_after strict timeout trial"
_POINTED = f"{_FORCED} modifiers position"

# The arguments that may be given by position, then those by name alone. A test compares them with Playwright's.
_ARGUMENTS = {
    "check": ("selector", f"{_FORCED} position"),
    "click": ("selector", f"{_POINTED} button click_count delay"),
    "dblclick": ("selector", f"{_POINTED} button delay"),
    "dispatch_event": ("selector type event_init", "strict timeout"),
    "evaluate": ("expression arg", ""),
    "fill": ("selector value", "force no_wait_after strict timeout"),
    "focus": ("selector", "strict timeout"),
    "goto": ("url", "timeout wait_until"),
    "hover": ("selector", _POINTED),
    "press": ("selector key", "delay no_wait_after strict timeout"),
    "reload": ("", "timeout wait_until"),
    "screenshot": ("", "animations caret clip full_page omit_background quality scale style timeout type"),
    "scroll": ("until", "timeout"),
    "select_option": ("selector value", "force index label no_wait_after strict timeout"),
    "set_viewport_size": ("viewport_size", ""),
    "type": ("selector text", "delay no_wait_after strict timeout"),
    "uncheck": ("selector", f"{_FORCED} position"),
    "wait_for_function": ("expression", "arg polling timeout"),
    "wait_for_load_state": ("state", "timeout"),
    "wait_for_selector": ("selector", "state strict timeout"),
    "wait_for_timeout": ("timeout", ""),
    "wait_for_url": ("url", "timeout wait_until"),
    CONTEXT: (
        "",
        "color_scheme device_scale_factor has_touch is_mobile locale reduced_motion screen timezone_id viewport",
    ),
}

ACTIONS = {name: (tuple(given.split()), frozenset(named.split())) for name, (given, named) in _ARGUMENTS.items()}

_OPTIONAL = {"evaluate": 1, "dispatch_event": 2, "select_option": 1, "scroll": 0, "wait_for_load_state": 0}

# Arguments whose values are no secret of a login.
SHOWN = frozenset({"selector", "until", "url", "state", "timeout", "key", "viewport", "locale"})


def action_of(method: object, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Action:
    """An action, whose arguments are named as in Playwright.

    Raises: ValueError: there is no such action, or it has no such arguments.
    """
    if not isinstance(method, str):
        raise ValueError("it calls a function, which cannot travel in the log: name a method of the page")  # noqa: TRY004  # as all
    if method not in ACTIONS:
        raise ValueError(f"{method!r:.80} is no action; there are {', '.join(sorted(ACTIONS.keys() - {CONTEXT}))}")
    names, _ = ACTIONS[method]
    given = list(args)
    if len(given) > len(names):
        raise ValueError(f"{method} takes {len(names)} arguments by position, not {len(given)}")
    named = dict(zip(names, given, strict=False)) | dict(kwargs or {})
    if refusal := _refusal(method, named):
        raise ValueError(refusal)
    try:
        return Action(method, msgspec.json.decode(msgspec.json.encode(named)))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{method}: its arguments are not data: {error}") from None


def _refusal(method: str, named: Mapping[str, Any]) -> str:
    """Why an action is not done with these arguments; empty if it is."""
    names, by_name = ACTIONS[method]
    if unknown := sorted(named.keys() - {*names} - by_name):
        why = "no action reads or writes a file of the worker" if "path" in unknown else "crawlog does not have it"
        return f"{method}: the argument {unknown[0]!r:.80} is refused: {why}"
    if missing := [name for name in names[: _OPTIONAL.get(method, len(names))] if name not in named]:
        return f"{method} needs the argument {missing[0]!r}"
    if method == "select_option" and not named.keys() & {"value", "index", "label"}:
        return "select_option needs one of the arguments 'value', 'index', 'label'"
    if method == "goto" and not str(named["url"]).startswith(("http://", "https://")):
        return "goto: the URL is one of http or https: no page of the browser shows a file of the worker"
    return ""


def context_of(actions: Iterable[Action]) -> dict[str, Any]:
    """How the page is shown: arguments of Playwright's `new_context`."""
    return {name: value for action in actions if action.do == CONTEXT for name, value in action.args.items()}


def named(number: int, action: Action) -> str:
    """An action in a few words, without what it fills in."""
    first = next((action.args[name] for name in ACTIONS[action.do][0][:1] if name in action.args), None)
    return f"{number} {action.do}" + (f"({first!r:.80})" if first is not None else "")
