"""Dead letters: grouped by error, and one in full with its record; redrive and drop."""

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec
from aiohttp import web

from crawlog.commands.dead import Opened
from crawlog.outcome import counted
from crawlog.schemas import pages
from crawlog.service.api_control import DeadKind, DropAnswer, RedriveAnswer, letter_kinds, opened_letter
from crawlog.service.endpoint import call_of
from crawlog.service.routing import add, fleet_of, in_thread
from crawlog.streams.dead_letters import Letter, letter_fate
from crawlog.streams.html import charset

from . import forms
from .frames import framed
from .layout import NavEntry, add_page, page, with_errors
from .lists import Column, Filter, Listed, listed, query_of

NAV = (NavEntry("Dead letters", "/ui/dead"),)

COLUMNS: tuple[Column[Letter], ...] = (
    Column("offset", "Letter", lambda one: one.offset),
    Column("at", "Time", lambda one: one.at, "number minor"),
    Column("job", "Job", lambda one: one.job),
    Column("url", "URL or place", lambda one: one.url),
    Column("error", "Error", lambda one: one.error, "minor"),
    Column("tries", "Tries", lambda one: one.tries, "number minor"),
)

FILTERS = (
    Filter("stage", "Stage", [("", "all stages"), *((one, one) for one in ("frontier", "parse", "sink", "control"))]),
    Filter("state", "State", [("", "open"), ("closed", "redriven or dropped"), ("all", "all")]),
)

KINDS = 12  # Kinds of errors on a page; the search finds others

SHOWN_BYTES = 64 << 10  # Of a record's value as text


class DeadPageRows(NamedTuple):
    """What the page shows.

    Attributes:
        kinds: Of the letters that fit, the commonest first; they count all of their letters, as the buttons act on all.
        more: Kinds that are not shown.
        upto: The newest letter: what is done about a kind is not done about later ones.
    """

    letters: Listed[Letter]
    kinds: list[DeadKind]
    more: int
    upto: int


def routes(app: web.Application) -> None:
    """Adds the pages."""
    add_page(app, "/ui/dead", _letters)
    add_page(app, "/ui/dead/{offset}", _letter)
    add(app, "GET", "/ui/dead/{offset}/page", with_errors(_content), "read")
    forms.RESULTS["POST", "/dead/redrive"] = _redriven
    forms.RESULTS["POST", "/dead/drop"] = _dropped


async def _letters(request: web.Request) -> web.StreamResponse:
    known = await in_thread(request, fleet_of(request).letters.all)
    found = await in_thread(request, dead_page, known, dict(request.query))
    return page(request, "dead.html", found=found, fate=letter_fate)


def dead_page(known: list[Letter], given: Mapping[str, str]) -> DeadPageRows:
    """The letters that an address names, the newest first where it names no order."""
    query = query_of(given, COLUMNS, FILTERS, keep=["kind", "job"])
    state, kind, job = query.chosen.get("state", ""), query.kept.get("kind"), query.kept.get("job")
    wanted = query.text.casefold()
    of_state = [
        one
        for one in reversed(known)
        if (state == "all" or (state == "closed") == bool(one.handled))
        and query.chosen.get("stage", one.stage) == one.stage
        and (not job or one.job == job)
    ]
    fitting = {one.kind for one in of_state if wanted in _text(one).casefold()} if wanted or not kind else {kind}
    kinds = [one for one in letter_kinds(reversed(of_state)) if one.kind in fitting and kind in (None, one.kind)]
    rows = [one for one in of_state if kind in (None, one.kind)]
    upto = known[-1].offset if known else 0
    return DeadPageRows(
        listed(rows, query, COLUMNS, FILTERS, text=_text), kinds[:KINDS], max(0, len(kinds) - KINDS), upto
    )


def _text(letter: Letter) -> str:
    return f"{letter.error} {letter.url} {letter.job}"


async def _letter(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, opened_letter, call_of(request))
    return page(
        request, "dead_letter.html", found=found, fate=letter_fate, value=_value(found), is_page=_is_page(found)
    )


def _value(found: Opened) -> str:
    """As much of the record's value as a page shows; JSON indented."""
    value = found.value or b""
    with suppress(ValueError, RecursionError):
        value = msgspec.json.format(value)
    return value[:SHOWN_BYTES].decode("utf-8", "replace")


def _is_page(found: Opened) -> bool:
    return pages.HEADER in found.headers and bool(found.value)


async def _content(request: web.Request) -> web.StreamResponse:
    """The page whose record is dead, in its frame."""
    found = await in_thread(request, opened_letter, call_of(request))
    if not _is_page(found):
        raise web.HTTPNotFound
    _, text = await in_thread(request, charset.decode, found.value or b"", "")
    return framed(text)


def _redriven(answer: RedriveAnswer) -> str:
    stays = f"; {counted(len(answer.staying), 'dead letter')} stay: {answer.staying[0][1]}" if answer.staying else ""
    return f"{counted(answer.sent or 0, 'record')} went back to the log{stays}"


def _dropped(answer: DropAnswer) -> str:
    return f"{counted(len(answer.letters), 'dead letter')} laid aside; they stay in the log"
