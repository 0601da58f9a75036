"""Actions of the browser: their table beside Playwright's methods, what is refused, and how people are shown them."""

import inspect
from typing import Any

import pytest

from crawlog import actions
from crawlog.schemas.requests import MAX_ACTIONS, Action, RequestRecord
from crawlog.streams.page_actions import ACTIONS, CONTEXT, action_of, context_of
from crawlog.streams.printable import HIDDEN
from crawlog.streams.redaction import shown_request
from crawlog.streams.spiders import Request, request_id

OURS = {"scroll", CONTEXT}
"""They are no methods of Playwright's page."""


@pytest.mark.parametrize("method", sorted(ACTIONS.keys() - OURS))
def test_an_action_has_the_arguments_of_playwrights_method(method: str) -> None:
    """Those that may be given by position in their order, and all that must be given."""
    playwright = pytest.importorskip("playwright.async_api")
    takes = list(inspect.signature(getattr(playwright.Page, method)).parameters.values())[1:]
    by_position = [one.name for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD]
    names, by_name = ACTIONS[method]
    assert list(names) == by_position[: len(names)]
    assert set(by_name) <= {one.name for one in takes} - set(names)
    needed = {one.name for one in takes if one.default is one.empty}
    if needed:
        with pytest.raises(ValueError, match="needs"):
            action_of(method)
    assert "path" not in {*names, *by_name}


def test_a_context_has_arguments_of_playwrights_own() -> None:
    """None that reads a file, keeps a folder or opens another way out."""
    playwright = pytest.importorskip("playwright.async_api")
    _, by_name = ACTIONS[CONTEXT]
    assert by_name <= inspect.signature(playwright.Browser.new_context).parameters.keys()
    assert not by_name & {"proxy", "storage_state", "record_har_path", "record_video_dir", "http_credentials"}
    assert context_of([Action("click"), Action(CONTEXT, {"locale": "de"})]) == {"locale": "de"}


def test_times_of_our_functions_are_seconds() -> None:
    """As everywhere in crawlog; the record has Playwright's milliseconds."""
    assert actions.wait(1.5) == Action("wait_for_timeout", {"timeout": 1500.0})
    assert actions.scroll(timeout=2) == Action("scroll", {"timeout": 2000})
    assert actions.select("#kind", "tea") == Action("select_option", {"selector": "#kind", "value": "tea"})


def test_a_request_has_actions_and_their_number_is_bounded() -> None:
    """Each is a value of a function of crawlog.actions; a browser renders the page."""
    request = Request("http://a.com/", actions=[actions.click("a")])
    assert (request.render, request.actions) == (True, (Action("click", {"selector": "a"}),))
    assert request.replace(priority=1).actions == request.actions
    wrong: Any = [["click", {"selector": "a"}]]
    with pytest.raises(TypeError, match=r"actions\.click"):
        Request("http://a.com/", actions=wrong)
    many = (actions.click("a"),) * (MAX_ACTIONS + 1)
    with pytest.raises(TypeError, match="at most 100"):
        Request("http://a.com/", actions=many)
    with pytest.raises(ValueError, match="at most 100"):
        RequestRecord(actions=many).check()


def test_actions_tell_requests_apart() -> None:
    """Two lists on one URL are two requests, neither of them the plain GET; the order of arguments does not count."""
    one, other = Action("fill", {"selector": "a", "value": "x"}), Action("fill", {"value": "x", "selector": "a"})
    records = [RequestRecord(), RequestRecord(actions=(one,)), RequestRecord(actions=(one, one))]
    ids = {request_id("http://a.com/", record) for record in records}
    assert len(ids) == 3
    assert request_id("http://a.com/", RequestRecord(actions=(other,))) in ids


def test_people_are_not_shown_what_is_filled_in() -> None:
    """It may be a password."""
    record = RequestRecord(actions=(actions.fill("#password", "hush"), actions.click("button")))
    shown = shown_request(record)["actions"]
    assert shown == [["fill", {"selector": "#password", "value": HIDDEN}], ["click", {"selector": "button"}]]
