"""Actions of pages: each changing endpoint of /api/v1 is the target of a form, so there is no second way to do it.

POST /ui/do/jobs/shop/pause ─► the form's token ─► fields as the endpoint's body ─► `does`, in a thread
                                                                      └─► 303 to `back`, which shows a note once

Fields of a form: `token`; `back`, a page below `/ui/`; `said`, the note if it was done; `each`, repeated, where the
name in the path is `_`: the action is done for each of them; or a field has the name that is `_`. All others are fields
of the body: empty ones are left out, a list is a field that is repeated or has several lines, a mapping has lines
KEY=VALUE, and a field of a struct within the body is `submit.urls`.
"""

import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from multidict import MultiDictProxy

from crawlog.service.answers import AnswerError
from crawlog.service.api_v1 import ENDPOINTS, kind_of
from crawlog.service.endpoint import ApiEndpoint, call_of
from crawlog.service.routing import Handler, add, in_thread, prefix_of, user_of

from .layout import LAYOUT, Note, problem_of, with_errors

B = TypeVar("B")

Form = MultiDictProxy[str | bytes | bytearray | web.FileField]

BACK = re.compile(r"/ui/[^\s\\]*", re.ASCII)  # Where a form may lead back to

OWN = frozenset({"token", "back", "said", "each"})  # Fields that are no part of a body

MOST_EACH = 1_000  # Things that one form may change

MOST_SAID = 300  # Characters of a note

# What is said of an action's value, by method and path of the endpoint; pages add theirs.
RESULTS: dict[tuple[str, str], Callable[[Any], str]] = {}


def action_path(endpoint: ApiEndpoint) -> str:
    """The path of an endpoint's form: methods other than POST are named at its end."""
    ending = "" if endpoint.method == "POST" else f"/{endpoint.method.lower()}"
    return f"/ui/do{endpoint.path}{ending}"


def routes(app: web.Application) -> None:
    """Adds a target for each endpoint that changes something."""
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" and endpoint.does is not None:
            add(app, "POST", action_path(endpoint), _handler(endpoint), endpoint.role, **kind_of(endpoint))


async def form_of(request: web.Request) -> Form:
    """The fields of a form that one of our pages has sent.

    Raises: AnswerError: the token is missing, or is that of another user or of the service before its restart.
    """
    form = await request.post()
    token = form.get("token", "")
    wanted = request.app[LAYOUT].token(user_of(request))
    if not isinstance(token, str) or not hmac.compare_digest(token.encode(), wanted.encode()):
        raise AnswerError(403, "the form is too old, or no page of the dashboard has sent it\nLoad the page again.")
    return form


def body_of(form: Form, kind: type[B]) -> B:
    """A form's fields as a struct.

    Raises: msgspec.ValidationError: a field is wrong.
    """
    named = {name: [one for one in form.getall(name) if isinstance(one, str) and one.strip()] for name in form}
    return msgspec.convert(_given({name: named[name] for name in named if name not in OWN}, kind), kind, strict=False)


def _given(named: Mapping[str, list[str]], kind: Any) -> dict[str, Any]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    given: dict[str, Any] = {}
    for name, values in named.items():
        head, dot, _ = name.partition(".")
        kind_of_head = fields.get(head)
        if not (dot and isinstance(kind_of_head, type) and issubclass(kind_of_head, msgspec.Struct)):
            given |= {name: _value(values, fields.get(name, str))} if values else {}
        elif head not in given:
            inner = {one.removeprefix(f"{head}."): named[one] for one in named if one.startswith(f"{head}.")}
            given[head] = _given(inner, kind_of_head)
    return given


def _value(values: list[str], kind: Any) -> Any:
    described = msgspec.inspect.type_info(kind)
    kinds = described.types if isinstance(described, msgspec.inspect.UnionType) else (described,)
    if any(isinstance(one, msgspec.inspect.DictType) for one in kinds):
        pairs = (line.partition("=") for value in values for line in value.splitlines() if line.strip())
        return {name.strip(): text.strip() for name, _, text in pairs}
    lists = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType, msgspec.inspect.SetType)
    if any(isinstance(one, lists) for one in kinds):
        return [line.strip() for value in values for line in value.splitlines() if line.strip()]
    return values[-1].strip()


def _handler(endpoint: ApiEndpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        form = await form_of(request)
        try:
            note = await _done(request, endpoint, form)
        except Exception as error:  # noqa: BLE001 - problem_of raises the others
            _, note = problem_of(error)
        return back(request, form, note)

    return with_errors(handle)


def back(request: web.Request, form: Form, note: Note | None = None) -> web.Response:
    """Leads to the page that the form came from; a note shows there once."""
    given = form.get("back", "")
    place = given if isinstance(given, str) and BACK.fullmatch(given) else "/ui/"
    response = web.Response(status=303, headers={"Location": prefix_of(request) + place})
    if note is not None:
        request.app[LAYOUT].keep(response, request, note)
    return response


async def _done(request: web.Request, endpoint: ApiEndpoint, form: Form) -> Note:
    body = _upload(form) if endpoint.body is bytes else endpoint.body and body_of(form, endpoint.body)
    query = endpoint.query and body_of(form, endpoint.query)
    assert endpoint.does is not None
    given = {name: form.get(name) for name, value in request.match_info.items() if value == "_"}
    names = {name: value for name, value in given.items() if isinstance(value, str) and value}
    open_name = next((name for name in given if name not in names), None)
    if open_name is None:
        value = await in_thread(request, endpoint.does, call_of(request, body, query, **names))
        return Note(_said(endpoint, form, value))
    each = [one for one in form.getall("each", []) if isinstance(one, str)]
    if not 0 < len(each) <= MOST_EACH:
        raise AnswerError(400, f"choose 1 to {MOST_EACH} rows\nThe boxes at the beginning of each row choose it.")
    errors = []
    for one in each:
        try:
            await in_thread(request, endpoint.does, call_of(request, body, query, **{open_name: one}))
        except Exception as error:  # noqa: BLE001 - problem_of raises the others
            errors.append(f"{one}: {problem_of(error)[1].text}")
    done = f"{_said(endpoint, form, None)}: {len(each) - len(errors)} of {len(each)}"
    return Note(done, "\n".join(errors[:20]), is_error=bool(errors))


def _said(endpoint: ApiEndpoint, form: Form, value: Any) -> str:
    result = RESULTS.get((endpoint.method, endpoint.path))
    if result is not None and value is not None:
        return result(value)
    said = form.get("said", "")
    return said[:MOST_SAID] if isinstance(said, str) and said else f"{endpoint.summary}: done"


def _upload(form: Form) -> bytes:
    given, content = form.get("file"), b""
    if isinstance(given, web.FileField):
        with given.file as file:
            content = file.read()
    if not content:
        raise AnswerError(400, "no file was chosen, or it is empty\nChoose an egg or a ZIP of the project.")
    return content
