"""Commands, dead letters and replays over HTTP."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.commands.dead import Dropping, Opened
from crawlog.commands.replay import Replayed, ReplayOptions
from crawlog.service import api_control
from crawlog.service.answers import AnswerError
from crawlog.service.endpoint import ApiCall
from crawlog.service.routing import ROLES
from crawlog.streams.dead_letters import Letter, LetterChoice
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Settings
from tests.support.serving import told_fleet


def test_a_letter_is_opened_by_role_and_not_unpacked_beyond_what_a_record_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any client may have written a page that says of itself that it may have a gigabyte."""
    asked: list[Any] = []
    letter = Letter(7, 1.0, "parse", "j", ("crawl.pages", 0, 1), "ValueError: no")

    def opened(*given: Any, to_reader: bool) -> Opened:
        asked.append((*given, to_reader))
        return Opened(letter, b"k", b"v", {}, "")

    monkeypatch.setattr(api_control, "dead", SimpleNamespace(opened=opened))
    settings, fleet = Settings(), told_fleet(letters=[letter])
    for role in ROLES:
        api_control._letter(ApiCall(settings, fleet, {"offset": "7"}, None, None, "", role))
    assert asked == [(settings, letter, settings.body_room, role == "read") for role in ROLES]
    for name in ("8", "x", "9" * 30):
        with pytest.raises(AnswerError):
            api_control._letter(ApiCall(settings, fleet, {"offset": name}, None, None, "", "read"))


def test_letters_are_chosen_by_all_that_is_given_and_never_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of error names its letters, but for those that came after the page was made."""
    asked: list[LetterChoice] = []

    def dropped(_: Settings, choice: LetterChoice, *, execute: bool) -> Dropping:
        asked.append(choice)
        return Dropping([], execute)

    letters = [Letter(number, 1.0, "parse", "j", ("crawl.pages", 0, 1), f"no price in {number}") for number in range(3)]
    letters += [Letter(3, 1.0, "sink", "j", ("crawl.items", 0, 1), "no price in 3", handled="dropped")]
    monkeypatch.setattr(api_control, "dead", SimpleNamespace(dropped=dropped))
    fleet = told_fleet(letters=letters)

    def call(body: object = None, query: object = None) -> ApiCall:
        return ApiCall(Settings(), fleet, {}, query, body, "")

    (kind,) = api_control._kinds(call())
    assert (kind.count, kind.jobs, kind.newest.offset) == (3, ["j"], 2)
    assert api_control._drop(call(api_control.LettersBody(kind=kind.kind, upto=1, execute=True))).done
    assert [one.offset for one in letters if asked[0].takes(one)] == [0, 1]
    page = api_control._letters(call(query=api_control.DeadQuery(kind=kind.kind, before=2, limit=1)))
    assert ([one.offset for one in page.letters], page.total, page.closed) == ([1], 3, 1)
    with pytest.raises(AnswerError, match="chosen"):
        api_control._drop(call(api_control.LettersBody(execute=True)))


def test_a_replay_reads_no_file_of_the_machine_and_refills_an_output_of_a_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The value of from-file is its text; an output of a job on a fleet needs no stopped group."""
    asked: list[ReplayOptions] = []
    refilled: list[tuple[Any, ...]] = []

    def replay(_: Settings, options: ReplayOptions, __: Any) -> Replayed:
        asked.append(options)
        return Replayed([], [])

    monkeypatch.setattr(api_control, "replay", replay)
    monkeypatch.setattr(api_control, "is_of_fleet", lambda _, options: options.output == "rows")
    monkeypatch.setattr(api_control, "refill_output", lambda *given: refilled.append(given[1:]))

    def call(*given: Any, **named: Any) -> api_control.ReplayAnswer:
        body = api_control.ReplayBody(*given, **named)
        return api_control.replay_of(ApiCall(Settings(), told_fleet(), {}, None, body, "ann"))

    call("parse", "from-file", "t,0,5", topics=("t:0",))
    assert (asked[0].listed, asked[0].topics) == ("t,0,5", ("t:0",))
    for wrong in (("parse", "from-file", " "), ("parse", "to-offset", "five"), ("none", "to-latest")):
        with pytest.raises((AnswerError, Misconfigured)):
            call(*wrong)
    assert call("parse", "shift-by", "-5", execute=True).executed
    assert [(one.value, one.execute) for one in asked[1:]] == [(-5, False), (-5, True)]
    assert not call("sink", "to-earliest", job="shop", output="rows").executed
    assert refilled == []
    assert call("sink", "to-earliest", job="shop", output="rows", execute=True).refilled == "rows"
    assert refilled == [("shop", "rows", "ann")]
