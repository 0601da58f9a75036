"""Try: what a spider of a deployed project makes of a page, and the page beside it.

POST /ui/try ─► try_spider, in a thread ─► Trials keeps it ─► 303 /ui/try/ID: items, requests, lines, page
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from multidict import MultiDict, MultiDictProxy

from crawlog.commands.projects import ProjectVersion, versions
from crawlog.service.answers import AnswerError
from crawlog.service.api_try import TriedPage, TryBody, try_spider
from crawlog.service.endpoint import call_of
from crawlog.service.routing import SETTINGS, add, in_thread, prefix_of, user_of
from crawlog.streams.spiders import StoredPage

from .forms import body_of, form_of
from .frames import page_frame
from .layout import NavEntry, add_page, page, problem_of, with_errors

NAV = (NavEntry("Try", "/ui/try"),)

MOST, MOST_BYTES = 20, 32 << 20  # Trials that are kept, and the bytes of their pages

SHOWN = 200  # Items, and requests, that the page shows

FIELDS = frozenset(field.name for field in msgspec.structs.fields(TryBody))


class KeptTrial(NamedTuple):
    """A trial that a page shows.

    Attributes:
        given: Fields of the form.
    """

    user: str
    at: float
    given: Mapping[str, str]
    page: StoredPage
    result: TriedPage


class Trials:
    """The newest trials; they are in no log, so they are gone when the service ends."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptTrial] = {}

    def keep(self, trial: KeptTrial) -> str:
        """Keeps a trial, and forgets old ones. Returns: its name."""
        name = secrets.token_urlsafe(12)
        self.kept[name] = trial
        while len(self.kept) > MOST or (self._size() > MOST_BYTES and len(self.kept) > 1):
            del self.kept[next(iter(self.kept))]
        return name

    def _size(self) -> int:
        return sum(len(one.page.body) for one in self.kept.values())

    def of(self, request: web.Request) -> KeptTrial:
        """The trial that the path names. Raises: AnswerError: there is none of this user."""
        found = self.kept.get(request.match_info["trial"])
        if found is None or found.user != user_of(request):
            raise AnswerError(404, "this trial is no longer kept\nTry the page again.")
        return found


TRIALS: web.AppKey[Trials] = web.AppKey("trials", Trials)


def routes(app: web.Application) -> None:
    """Adds the page, its form's target, and the frame."""
    app[TRIALS] = Trials()
    add_page(app, "/ui/try", _form_page, "operate")
    add(app, "POST", "/ui/try", with_errors(_try), "operate", runs_code=True)
    add_page(app, "/ui/try/{trial}", _trial_page, "operate")
    add_page(app, "/ui/try/{trial}/page", _frame, "operate")


async def _form_page(request: web.Request) -> web.StreamResponse:
    given = {name: value for name, value in request.query.items() if name in FIELDS}
    return await _shown(request, given)


async def _trial_page(request: web.Request) -> web.StreamResponse:
    trial = request.app[TRIALS].of(request)
    return await _shown(request, trial.given, trial=trial, name=request.match_info["trial"])


async def _frame(request: web.Request) -> web.StreamResponse:
    return page_frame(request.app[TRIALS].of(request).page)


async def _try(request: web.Request) -> web.StreamResponse:
    form = await form_of(request)
    given: MultiDict[Any] = MultiDict(form)
    project, _, spider = str(given.pop("which", "")).partition(" ")
    given.update(project=project, spider=spider)
    texts = {name: value for name, value in given.items() if name in FIELDS and isinstance(value, str)}
    try:
        body = body_of(MultiDictProxy(given), TryBody)
        found, result = await in_thread(request, try_spider, call_of(request, body))
    except Exception as error:  # noqa: BLE001 - problem_of raises the others
        status, note = problem_of(error)
        return await _shown(request, texts, status=status, notes=[note])
    name = request.app[TRIALS].keep(KeptTrial(user_of(request), time.time(), texts, found, result))
    return web.Response(status=303, headers={"Location": f"{prefix_of(request)}/ui/try/{name}"})


async def _shown(
    request: web.Request, given: Mapping[str, str], *, status: int = 200, notes: Any = (), **values: Any
) -> web.Response:
    found: list[ProjectVersion] = await in_thread(request, versions, request.app[SETTINGS])
    newest = {one.project: one for one in found}  # by project, the newest last
    spiders = [(one.project, name) for one in newest.values() for name in one.spiders]
    given = dict.fromkeys(FIELDS, "") | dict(given)
    shared = {"trial": None, "name": ""} | values
    return page(request, "try.html", status=status, given=given, spiders=spiders, most=SHOWN, failed=notes, **shared)
