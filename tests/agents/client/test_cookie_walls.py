"""Redirects that lead back to where they began, with a cookie more."""

import pytest

from crawlog.agents.client import cookie_jars
from crawlog.agents.client.cookie_jars import CookieWalls

A, B, C = (f"http://a.com/{name}" for name in "abc")


@pytest.mark.parametrize(
    ("steps", "last", "target", "sent_now", "leads_back"),
    [
        ([(A, B, "")], B, A, "seen=1", True),
        ([(A, B, ""), (B, C, "")], C, A, "seen=1", True),
        ([(A, B, "seen=1")], B, A, "seen=2", True),
        ([(A, B, "seen=1")], B, A, "seen=1", False),
        ([(A, B, "seen=1")], B, A, "", False),
        ([(A, B, "")], B, C, "seen=1", False),
        ([(A, B, "")], C, A, "seen=1", False),
        ([(A, B, ""), (B, A, "")], B, C, "seen=1", False),  # round and round
    ],
)
def test_a_redirect_leads_back_where_its_target_led_to_it_and_has_cookies_now(
    steps: list[tuple[str, str, str]], last: str, target: str, sent_now: str, leads_back: bool
) -> None:
    """Those that it was not sent."""
    known = CookieWalls()
    for url, to, cookies in steps:
        known.note("j", url, to, cookies)
    assert known.leads_back("j", last, target, lambda _: sent_now) == leads_back
    assert not known.leads_back("other", last, target, lambda _: sent_now)


def test_who_redirects_no_longer_leads_nowhere() -> None:
    """A later epoch may find the page at once, and the check by another link."""
    known = CookieWalls()
    known.note("j", A, B, "")
    known.forget("j", A)
    known.forget("j", C)
    assert not known.leads_back("j", B, A, lambda _: "seen=1")


def test_all_pages_behind_one_check_are_led_back_to() -> None:
    """Which may find the way back by a cookie."""
    known = CookieWalls()
    for url in (A, B):
        known.note("j", url, C, "")
    assert [known.leads_back("j", C, url, lambda _: "seen=1") for url in (A, B)] == [True, True]


def test_only_so_many_redirects_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those seen last."""
    monkeypatch.setattr(cookie_jars, "REMEMBERED", 2)
    known = CookieWalls()
    for number in range(4):
        known.note("j", f"{A}{number}", f"{B}{number}", "")
    known.note("j", f"{A}2", f"{B}2", "")
    known.note("j", f"{A}9", f"{B}9", "")
    back = [n for n in (*range(4), 9) if known.leads_back("j", f"{B}{n}", f"{A}{n}", lambda _: "c=1")]
    assert back == [2, 9]
