"""Commands, dead letters and replays over HTTP."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.commands.dead import Opened
from crawlog.service import api_control
from crawlog.service.endpoint import ApiCall
from crawlog.service.routing import ROLES
from crawlog.streams.dead_letters import Letter
from crawlog.streams.settings import Settings


def test_a_letter_is_opened_by_role_and_not_unpacked_beyond_what_a_record_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any client may have written a page that says of itself that it may have a gigabyte."""
    asked: list[Any] = []
    letter = Letter(7, 1.0, "parse", "j", ("crawl.pages", 0, 1), "ValueError: no")

    def opened(*given: Any, to_reader: bool) -> Opened:
        asked.append((*given, to_reader))
        return Opened(letter, b"k", b"v", {}, "")

    monkeypatch.setattr(api_control, "dead", SimpleNamespace(Dead=lambda _: SimpleNamespace(all={7}), opened=opened))
    settings = Settings()
    fleet: Any = None
    for role in ROLES:
        api_control._letter(ApiCall(settings, fleet, {"offset": "7"}, None, None, "", role))
    assert asked == [(settings, 7, settings.body_room, role == "read") for role in ROLES]
