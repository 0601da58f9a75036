"""Settings: what is in force in the service, and who set it; secrets are hidden."""

from collections.abc import Mapping

from aiohttp import web

from crawlog.service.api_fleet import SettingView, setting_views
from crawlog.service.routing import SETTINGS, in_thread
from crawlog.streams.settings import Settings, known_keys, shown

from .layout import NavEntry, add_page, page
from .lists import Column, Filter, Listed, listed, query_of

NAV = (NavEntry("Settings", "/ui/settings"),)

COLUMNS: tuple[Column[SettingView], ...] = (
    Column("key", "Setting", lambda one: one.key),
    Column("value", "Value"),
    Column("origin", "Set by", lambda one: one.origin),
    Column("default", "Default", None, "minor"),
    Column("about", "What it is", None, "minor"),
)

_SECTIONS = dict.fromkeys(key.partition(".")[0] for key in known_keys())

FILTERS = (
    Filter("origin", "Set by", [("", "all"), ("set", "somebody"), ("default", "nobody: the default")]),
    Filter("section", "Section", [("", "all sections"), *((one, one) for one in _SECTIONS)]),
)


def routes(app: web.Application) -> None:
    """Adds the page."""
    add_page(app, "/ui/settings", _settings)


async def _settings(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, settings_page, request.app[SETTINGS], dict(request.query))
    return page(request, "settings.html", found=found, shown=_shown)


def _shown(value: object) -> str:
    return shown(tuple(value) if isinstance(value, list) else value)


def settings_page(settings: Settings, given: Mapping[str, str]) -> Listed[SettingView]:
    """The settings that an address names, by section where it names no order."""
    query = query_of(given, COLUMNS, FILTERS)
    text = "{0.key} {0.value} {0.origin} {0.about}".format
    return listed(setting_views(settings), query, COLUMNS, FILTERS, text=text, fits=_fits)


def _fits(one: SettingView, name: str, value: str) -> bool:
    if name == "section":
        return one.key.startswith(f"{value}.")
    return (one.origin == "default") == (value == "default")
