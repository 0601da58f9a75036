"""Renders pages: a template with the head, the navigation and the notes; only its block `live` for a refresh by htmx.

page(request, "jobs.html", …) ─► base.html: navigation, notes ─► block `head` ─► block `live`, every 5 s ─► block `foot`
"""

import hashlib
import hmac
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

import crawlog
from crawlog.service.access import is_allowed
from crawlog.service.answers import verdict
from crawlog.service.guards import HEADERS
from crawlog.service.routing import Handler, Role, add, is_part, prefix_of, role_of, user_of

from . import charts, words

FOLDER = Path(__file__).parent

# What a browser may load and do on a page: as everywhere, and frames of our own.
POLICY = HEADERS["Content-Security-Policy"] + "; frame-src 'self'"

NOTE = "crawlog_note"  # Cookie that names the note which the next page shows

NOTES = 1_000  # Notes that are kept until a page shows them

STATIC = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}

CACHED = "private, max-age=31536000, immutable"  # The address of a file names its content


class NavEntry(NamedTuple):
    """A link of the navigation.

    Attributes:
        path: Below the service's prefix.
    """

    label: str
    path: str


class Note(NamedTuple):
    """What became of an action, for the next page.

    Attributes:
        hint: What to do about an error.
    """

    text: str
    hint: str = ""
    is_error: bool = False


class PageLayout:
    """The templates, and what all pages share.

    Args:
        nav: The navigation, in its order.
        key: Signs the tokens of forms.
    """

    def __init__(self, nav: list[NavEntry], key: bytes) -> None:
        self._nav = nav
        self._key = key
        self._notes: dict[str, Note] = {}
        self._files = {name: (FOLDER / "static" / name).read_bytes() for name in STATIC}
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= words.FILTERS | {"segment": partial(quote, safe="")}
        self._templates.globals |= {
            "ago": pass_context(_ago),
            "static": self._address,
            "svg_points": charts.svg_points,
            "version": crawlog.__version__,
        }

    def _address(self, name: str) -> str:
        return f"/ui/static/{name}?v={hashlib.sha256(self._files[name]).hexdigest()[:12]}"

    async def file(self, request: web.Request) -> web.StreamResponse:
        """A file that pages load."""
        name = request.match_info["file"]
        if name not in STATIC:
            raise web.HTTPNotFound
        headers = {"Cache-Control": CACHED}
        return web.Response(body=self._files[name], content_type=STATIC[name], charset="utf-8", headers=headers)

    def token(self, user: str) -> str:
        """The token that a form of this user carries; another site's page does not know it."""
        return hmac.digest(self._key, user.encode(), hashlib.sha256).hex()

    def keep(self, response: web.StreamResponse, request: web.Request, note: Note) -> None:
        """Has the next page of this browser show a note, once."""
        while len(self._notes) >= NOTES:
            self._notes.pop(next(iter(self._notes)))
        name = secrets.token_urlsafe(12)
        self._notes[name] = note
        path = f"{prefix_of(request)}/ui/"
        response.set_cookie(NOTE, name, path=path, max_age=60, httponly=True, samesite="Strict")

    def render(self, request: web.Request, template: str, status: int, values: dict[str, Any]) -> web.Response:
        """A page as an answer."""
        role = role_of(request)
        found = self._templates.get_template(template)
        shared = {
            "prefix": prefix_of(request),
            "here": request.rel_url.raw_path_qs,  # a name in the path may have a slash
            "path": request.rel_url.raw_path,
            "nav": self._nav,
            "user": user_of(request),
            "may": partial(_may, role),
            "token": self.token(user_of(request)),
            "now": time.time(),
        }
        values = shared | {"m": self._templates.get_template("macros.html").make_module(shared)} | values
        headers = {"Content-Security-Policy": POLICY, "Vary": "HX-Request"}
        if is_part(request) and "live" in found.blocks:
            parts = found.blocks["live"](found.new_context(values))
            return web.Response(text="".join(parts), content_type="text/html", charset="utf-8", headers=headers)
        note = self._notes.pop(request.cookies.get(NOTE, ""), None)
        text = found.render(values | {"notes": [note] if note is not None else []})
        response = web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=headers)
        if NOTE in request.cookies:
            response.del_cookie(NOTE, path=f"{prefix_of(request)}/ui/")
        return response


LAYOUT: web.AppKey[PageLayout] = web.AppKey("layout", PageLayout)


def prepare(app: web.Application, nav: list[NavEntry]) -> None:
    """Makes the layout of the app, and serves the files of pages."""
    app[LAYOUT] = layout = PageLayout(nav, secrets.token_bytes(32))
    add(app, "GET", "/ui/static/{file}", layout.file, "read")


def page(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """A page; for a request of htmx its block `live` alone.

    Args:
        values: Of the template, beside those that all pages have: `prefix here path nav user may token now
            notes`, and `m`, the macros.
    """
    return request.app[LAYOUT].render(request, template, status, values)


def add_page(app: web.Application, path: str, handler: Handler, role: Role = "read") -> None:
    """Adds a page; its errors are pages, too."""
    add(app, "GET", path, with_errors(handler), role)


def problem_of(error: Exception) -> tuple[int, Note]:
    """The status and the note of an error that a user can do something about; any other one is raised again."""
    status, message = verdict(error)
    if status == 500:
        raise error
    first, _, hint = message.partition("\n")
    return status, Note(first, hint, is_error=True)


def with_errors(handler: Handler) -> Handler:
    """The handler of a page or of a form, whose errors people read."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - problem_of raises the others
            status, note = problem_of(error)
            return page(request, "error.html", status=status, note=note)

    return handle


def _may(role: Role, needed: Role) -> bool:
    return is_allowed(role, needed)


def _ago(context: Context, at: float) -> str:
    return "" if not at else words.seconds(max(0.0, context["now"] - at))
