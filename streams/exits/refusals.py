"""Whether an answer is a page, or a site's way to turn an exit away: by status, redirect, or the text of the page."""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas.urls import RequestRules
from crawlog.streams.http import Answer, UnkeptBody, decoded
from crawlog.streams.url import compiled

if TYPE_CHECKING:
    import re2

MOST_BYTES = 256 * 1024  # A longer page turns nobody away

HEAD_CHARS = 16 * 1024  # The part of a page in which the text stands

TURNED_AWAY = frozenset({429, 503})  # Statuses that concern whoever asks, whatever for


class Refusal(NamedTuple):
    """How a site turned an exit away.

    Attributes:
        is_sure: Whether the exit rests at once; another refusal may be the page's own, such as a 403.
        rest_s: The first rest; further ones are longer.
    """

    reason: str
    is_sure: bool
    rest_s: float


def refusal_of(answer: Answer, rules: RequestRules, asked_s: float) -> Refusal | None:
    """How an answer turns its exit away; None for one that does not.

    Args:
        asked_s: Seconds that the answer asks to wait.
    """
    if answer.http in rules.ban_statuses:
        return Refusal(f"http_{answer.http}", answer.http in TURNED_AWAY, max(rules.ban_rest_s, asked_s))
    if answer.location:
        pattern, text, reason = _matcher(rules.ban_redirects), answer.location, "redirect"
    else:
        pattern, text, reason = _matcher(rules.ban_texts), "", "text"
        if pattern is not None and answer.kept and len(answer.body) <= MOST_BYTES:
            text = _text(answer)
    if pattern is None or not text or not pattern.search(text):
        return None
    return Refusal(reason, is_sure=False, rest_s=max(rules.ban_rest_s, asked_s))


@lru_cache(256)
def _matcher(patterns: tuple[str, ...]) -> "re2._Regexp[str] | None":
    """None for no patterns, and for those that no setting could have: any client may have written the record."""
    try:
        return compiled(patterns)
    except ValueError:
        return None


def _text(answer: Answer) -> str:
    body = answer.body
    if answer.coding:
        try:
            body = decoded(body, answer.coding, MOST_BYTES)
        except UnkeptBody:
            return ""
    return body[:HEAD_CHARS].decode("utf-8", "replace")
