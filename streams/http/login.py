"""Logins by a form: what is posted, when, and what shows that it is needed again. Pure: time is `now`.

A session belongs to one job and one origin. It is begun before the job's first page there, and again when an answer
shows that it is over, but no more often than once in `again_s`: an answer that shows so sooner is a result like any.
It takes two turns of the host: the form's page is read for what it hides in the form, then the form is posted.
"""

from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from crawlog.streams.url import InvalidUrl, plain, serialise

from .request import origin_of

Sign = Literal["redirect", "401", "403"]
"""A redirect to the form's own URL, or a status."""

Turn = Literal["ask", "read", "send", "wait", "fail"]


class Form(NamedTuple):
    """A form of one origin.

    Attributes:
        url: Where it is posted to; as configured, also where its page is.
        fields: Names and values.
    """

    origin: str
    url: str
    fields: tuple[tuple[str, str], ...]

    @property
    def body(self) -> str:
        """Its fields as they are sent (application/x-www-form-urlencoded)."""
        return urlencode(self.fields)


def read_form(text: str) -> Form:
    """The form in `https://HOST[:PORT]/PATH#FIELD=VALUE&FIELD=VALUE`; fields are percent-encoded.

    Raises: ValueError: there is none; the message does not repeat it.
    """
    shape = "a form login is https://HOST[:PORT]/PATH#FIELD=VALUE&FIELD=VALUE; fields are percent-encoded"
    url, _, fields = text.strip().partition("#")
    try:
        parts, origin = urlsplit(url), origin_of(plain(url))
        pairs = parse_qsl(fields, keep_blank_values=True, strict_parsing=True)
        is_form = pairs and parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        url = plain(serialise(url))
    except (ValueError, InvalidUrl):
        raise ValueError(shape) from None
    if not is_form:
        raise ValueError(shape)
    return Form(origin, url, tuple(pairs))


def leads_to(form: Form, url: str, location: str) -> bool:
    """Whether a redirect of `url` leads to the form, whatever its query."""
    try:
        target = serialise(location, url)
    except InvalidUrl:
        return False
    return origin_of(target) == form.origin and urlsplit(target).path == urlsplit(form.url).path


MOST_ANEW = 1000
"""Pages that wait for their answer after a login of their own, of one session; more are not under way at a host."""


class Session:
    """A job's session at one origin.

    Args:
        form: As configured.
        again_s: Least time between two logins; also how long a failed one stands.
        attempts: Tries at a server that does not answer.

    Attributes:
        posted: What is posted.
        missing: Why nothing was found on the form's page, in a word; empty where something was, or nobody looked yet.
        reason: Why the last login failed.
    """

    def __init__(self, form: Form, again_s: float, attempts: int) -> None:
        self.form = self.posted = form
        self.reason = ""
        self._again_s = again_s
        self._attempts = attempts
        self._state: Literal["out", "reading", "read", "sending", "in", "failed"] = "out"
        self._at = 0.0
        self._tries = 0
        self._anew_for: set[str] = set()
        self.missing = ""

    def turn(self, now: float) -> Turn:
        """What is to be done before a page is asked for; who is told `read` or `send` must say what became of it."""
        if self._state == "failed" and now - self._at >= self._again_s:
            self._state, self._tries = "out", 0
        if self._state == "out":
            self._state, self.missing = "reading", ""
            return "read"
        if self._state == "read":
            self._state = "sending"
            return "send"
        turns: dict[str, Turn] = {"in": "ask", "reading": "wait", "sending": "wait", "failed": "fail"}
        return turns[self._state]

    def given_back(self) -> None:
        """Nothing was sent, or nobody knows what became of it."""
        self._state = "out"

    def shown(self, found: Form | None, missing: str = "") -> None:
        """The form's page was answered, or may not be asked for.

        Args:
            found: The form there, filled in; without it what is configured is posted as it is.
            missing: Why there is none, in a word.
        """
        self.posted, self.missing = found or self.form, missing
        self._state = "read"

    def answered(self, reason: str, now: float, *, may_pass: bool) -> None:
        """The form was answered: `reason` says why that is no login; empty when it is one. Also for a page not read."""
        self._tries += 1
        self._at = now
        if not reason:
            self._state, self._tries = "in", 0
        elif may_pass and self._tries < self._attempts:
            self._state = "out"
        else:
            told = f", its page: {self.missing}" if self.missing else ""
            self._state, self.reason = "failed", f"login_failed: {reason}{told}"

    def is_worth_another(self, url: str, asked_at: float, now: float) -> bool:
        """Whether a page whose answer shows no session is asked for once more, logged in anew.

        Once for each page: one that is closed to this user would have it logged in for ever where its host rests
        longer than that.
        """
        if self._state == "in" and asked_at >= self._at:
            if now - self._at < self._again_s or url in self._anew_for:
                self.answered_for(url)
                return False
            if len(self._anew_for) >= MOST_ANEW:
                self._anew_for.clear()
            self._anew_for.add(url)
            self._state = "out"
        return self._state != "failed"

    def answered_for(self, url: str) -> None:
        """A page's answer counts: another time it may have another login."""
        self._anew_for.discard(url)
