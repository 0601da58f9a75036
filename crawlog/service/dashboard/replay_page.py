"""Replay: a form with the options of `crawlog replay`, its plan as a table, its execution, and the way back."""

from typing import Any, get_args
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from multidict import MultiDict, MultiDictProxy

from crawlog.outcome import counted
from crawlog.service.access import is_allowed
from crawlog.service.api_control import ReplayAnswer, ReplayBody, replay_of
from crawlog.service.endpoint import call_of
from crawlog.service.routing import in_thread, role_of

from . import forms
from .layout import NavEntry, add_page, page, problem_of

NAV = (NavEntry("Replay", "/ui/replay"),)

TARGETS = get_args(msgspec.structs.fields(ReplayBody)[1].type)

BEFORE = "before"  # Parameter of the page: where the groups were, as lines of `from-file`

MAX_BEFORE = 6_000  # Its characters: servers refuse long addresses


def routes(app: web.Application) -> None:
    """Adds the page."""
    add_page(app, "/ui/replay", _replay)
    forms.RESULTS["POST", "/replay"] = _executed


async def _replay(request: web.Request) -> web.StreamResponse:
    """A plan changes nothing, so it is a page with an address of its own."""
    given = request.query
    answer, problem = None, None
    if given.get("group") and is_allowed(role_of(request), "operate"):
        own: MultiDict[Any] = MultiDict((name, value) for name, value in given.items() if name != BEFORE)
        try:
            body = msgspec.structs.replace(forms.body_of(MultiDictProxy(own), ReplayBody), execute=False)
            answer = await in_thread(request, replay_of, call_of(request, body))
        except Exception as error:  # noqa: BLE001 - problem_of raises the others
            _, problem = problem_of(error)
    fields = {name: given.getall(name) for name in dict.fromkeys(given) if name != BEFORE}
    before = given.get(BEFORE, "")
    return page(
        request,
        "replay.html",
        given=given,
        fields=fields,
        answer=answer,
        problem=problem,
        targets=TARGETS,
        again=f"{request.path}?{urlencode(fields | {BEFORE: before_of(answer)}, doseq=True)}" if answer else "",
        undo=urlencode({"group": given.get("group", ""), "to": "from-file", "value": before}) if before else "",
    )


def before_of(answer: ReplayAnswer) -> str:
    """The places before a plan is executed, as lines of `from-file`; empty where there is no way back."""
    lines = [
        f"{plan.group},{plan.topic},{move.partition},{move.before}\n"
        for plan in answer.plans
        for move in plan.moves
        if plan.stage != "fetch" and move.before is not None
    ]
    text = "".join(lines)
    return text if len(text) <= MAX_BEFORE else ""


def _executed(answer: ReplayAnswer) -> str:
    if answer.refilled:
        return f"output {answer.refilled} is emptied, and filled from the log again"
    again, skipped = (sum(getattr(plan, name) for plan in answer.plans) for name in ("again", "skipped"))
    left_out = f", {counted(skipped, 'record')} are skipped" if skipped else ""
    return f"moved: {counted(again, 'record')} are read again once workers run{left_out}"
