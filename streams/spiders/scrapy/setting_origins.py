"""What became of each setting of a Scrapy spider, for `crawlog settings --origins`; in the spider's process."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from crawlog.streams.printable import HIDDEN

from ..exchange import SettingOrigin, SpiderFacts
from .settings_table import SETTINGS

_SECRETS = ("PASS", "SECRET", "KEY", "TOKEN", "AUTH", "COOKIE", "DSN")
"""Parts of names of settings whose values are hidden."""

_OF_PROJECT = "read by the project's own code"


def origins_of(settings: BaseSettings) -> Iterator[SettingOrigin]:
    """The settings that the project, the spider or the command line sets, by name."""
    names = {number: name for name, number in SETTINGS_PRIORITIES.items()}
    for name in sorted(settings):
        priority = settings.getpriority(name) or 0
        if priority == 0:
            continue
        row = SETTINGS.get(name)
        value = settings[name].copy_to_dict() if isinstance(settings[name], BaseSettings) else settings[name]
        shown = HIDDEN if any(part in name for part in _SECRETS) else repr(value)[:200]
        effect, what = (row.effect, row.what) if row is not None else ("kept", _OF_PROJECT)
        yield SettingOrigin(name, shown, names.get(priority, "default"), effect, what)


class SettingsService:
    """Answers the one call for the origins of the settings."""

    def __init__(self, runner: Any) -> None:
        self.facts: SpiderFacts = runner.facts
        self._settings: BaseSettings | None = runner.crawler.settings if self.facts.is_scrapy else None

    async def call(self, _name: str, _argument: bytes) -> bytes:
        """The origins as JSON; none for a spider of crawlog's own."""
        return msgspec.json.encode(list(origins_of(self._settings)) if self._settings is not None else [])


def load_origins(*given: Any, **named: Any) -> SettingsService:
    """What answers the call. Raises: Misconfigured: as `load_runner`."""
    room = import_module("crawlog.streams.spiders")  # it imports this room
    return SettingsService(room.load_runner(*given, **named))
