"""Logins by a form: what is posted, when, and how an ended session is noticed. Pure: time is `now`.

    nothing yet ─► read ─ Shown ─► post ─ Posted ─► page ─ Visited ─► page, or read again: the session is over
                    ▲                      │
                    └── it may pass ◄──────┴─► fail, for `again_s`

A session belongs to one job and one origin. A login takes two turns of the host: the form's page is read for its hidden
fields, then the form is posted. It precedes the job's first page there. It is repeated when an answer shows that the
session has ended, at most once in `again_s`; before that such an answer is a normal result.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

import endec

from crawlog.streams.http import REDIRECTS, RETRY_STATUSES, Answer
from crawlog.streams.requests import origin_of
from crawlog.streams.url import InvalidUrl, plain, serialise

Sign = Literal["redirect", "401", "403"]  # A redirect to the form's own URL, or a status


class Form(NamedTuple):
    """A form of one origin.

    Attributes:
        url: Where it is posted to; as configured, also where its page is.
        fields: Names and values.
        encoding: In which they are sent, by its WHATWG name.
    """

    origin: str
    url: str
    fields: tuple[tuple[str, str], ...]
    encoding: str = "utf-8"

    @property
    def body(self) -> str:
        return form_encoded(self.fields, self.encoding)


def read_form(text: str) -> Form:
    """The form in `https://HOST[:PORT]/PATH#FIELD=VALUE&FIELD=VALUE`; fields are percent-encoded.

    Raises: ValueError: there is none; the message does not repeat it.
    """
    shape = "a form login is https://HOST[:PORT]/PATH#FIELD=VALUE&FIELD=VALUE; fields are percent-encoded"
    url, _, fields = text.strip().partition("#")
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(fields, keep_blank_values=True, strict_parsing=True)
        is_form = pairs and parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        url = plain(serialise(url))
    except (ValueError, InvalidUrl):
        raise ValueError(shape) from None
    if not is_form:
        raise ValueError(shape)
    return Form(origin_of(url), url, tuple(pairs))


def leads_to(form: Form, url: str, location: str) -> bool:
    """Whether a redirect of `url` leads to the form, whatever its query."""
    try:
        target = serialise(location, url)
    except InvalidUrl:
        return False
    return origin_of(target) == form.origin and urlsplit(target).path == urlsplit(form.url).path


# Pages of one session that wait for their answer after a login of their own; a host has fewer in flight.
MOST_ANEW = 1000


class Step(NamedTuple):
    """What a task does with its turn.

    Attributes:
        do: `page`: ask for its page, or take its answer as the result. `read`: read the form's page. `post`: post the
            form. `wait`: give the task back. `fail`: fail it.
        form: What is read or posted.
        reason: Why it fails.
    """

    do: Literal["page", "read", "post", "wait", "fail"]
    form: Form | None = None
    reason: str = ""


_PAGE = Step("page")
_WAIT = Step("wait")


class Shown(NamedTuple):
    """The form's page was answered, or may not be fetched.

    Attributes:
        found: The form there, filled in; without it the form is posted as configured.
        missing: Why there is none, in a word.
        may_be_in: Whether its page may be closed because there is a session already.
    """

    found: Form | None
    missing: str = ""
    may_be_in: bool = False


class Posted(NamedTuple):
    """The form was answered, or its page in a way that ends the login.

    Attributes:
        reason: Why the login failed; empty if it succeeded.
        may_pass: Whether another try may succeed.
    """

    reason: str
    may_pass: bool = False


class Unsent(NamedTuple):
    """The request for the form or its page was not sent, or its outcome is unknown."""


class Visited(NamedTuple):
    """A page was answered.

    Attributes:
        signs: Statuses, or `redirect`, which show that there is no session.
    """

    url: str
    answer: Answer
    asked_at: float
    signs: Collection[str]


class Session:
    """A job's session at one origin.

    Args:
        form: As configured.
        again_s: Least time between two logins; also how long a failed one stands.
        attempts: Tries at a server that does not answer.

    Attributes:
        missing: Why nothing was found on the form's page, in a word; empty if something was, or before it was read.
        may_be_in: As the form's page was answered; False after a refusal, as cookies are no session's then.
    """

    def __init__(self, form: Form, again_s: float, attempts: int) -> None:
        self.form = self._posted = form
        self.missing = ""
        self.may_be_in = False
        self._is_refused = False
        self._reason = ""
        self._again_s = again_s
        self._attempts = attempts
        self._state: Literal["out", "reading", "read", "sending", "in", "failed"] = "out"
        self._at = 0.0
        self._tries = 0
        self._anew_for: set[str] = set()

    def next(self, answer: Shown | Posted | Unsent | Visited | None, now: float) -> Step:
        """What a task does next. A task that is told `read` or `post` has to say what came of it.

        Args:
            answer: Of the task's last step; None at the beginning of its turn.
        """
        if isinstance(answer, Visited):
            return self._visited(answer, now)
        if answer is None:
            return self._begun(now)
        if isinstance(answer, Shown):
            self._posted, self._state = answer.found or self.form, "read"
            self.missing, self.may_be_in = answer.missing, answer.may_be_in and not self._is_refused
        elif isinstance(answer, Posted):
            self._answered(answer, now)
        else:
            self._state = "out"
        return _WAIT

    def _begun(self, now: float) -> Step:
        if self._state == "failed" and now - self._at >= self._again_s:
            self._state, self._tries = "out", 0
        if self._state == "in":
            return _PAGE
        if self._state == "out":
            self._state, self.missing, self.may_be_in = "reading", "", False
            return Step("read", self.form)
        if self._state == "read":
            self._state = "sending"
            return Step("post", self._posted)
        return Step("fail", reason=self._reason) if self._state == "failed" else _WAIT

    def _answered(self, posted: Posted, now: float) -> None:
        self._tries += 1
        self._at = now
        self._is_refused = bool(posted.reason)
        if not posted.reason:
            self._state, self._tries = "in", 0
        elif posted.may_pass and self._tries < self._attempts:
            self._state = "out"
        else:
            told = f", its page: {self.missing}" if self.missing else ""
            self._state, self._reason = "failed", f"login_failed: {posted.reason}{told}"

    def _visited(self, page: Visited, now: float) -> Step:
        """`wait` where the page is asked for once more, logged in anew; `page` where its answer counts."""
        if not _is_logged_out(self.form, page):
            self._anew_for.discard(page.url)  # another time it may have another login
            return _PAGE
        return _WAIT if page.url != self.form.url and self._begins_anew(page, now) else _PAGE

    def _begins_anew(self, page: Visited, now: float) -> bool:
        """Whether a page has a login of its own, or one that others began.

        Once for each page: a page that this user may not see would repeat the login for ever, if its host rests longer
        than `again_s`.
        """
        if self._state == "in" and page.asked_at >= self._at:
            if now - self._at < self._again_s or page.url in self._anew_for:
                self._anew_for.discard(page.url)
                return False
            if len(self._anew_for) >= MOST_ANEW:
                self._anew_for.clear()
            self._anew_for.add(page.url)
            self._state = "out"
        return self._state != "failed"


def _is_logged_out(form: Form, page: Visited) -> bool:
    answer, signs = page.answer, page.signs
    if str(answer.http) in signs:
        return True
    return "redirect" in signs and answer.http in REDIRECTS and leads_to(form, page.url, answer.location)


def is_for_guests(form: Form, answer: Answer) -> bool:
    """Whether the form's page was answered as pages for guests are where there is a session: it leads elsewhere.

    The cookies may be of a session that another worker began, or an earlier object of this one. But some servers
    redirect every GET of a form's URL, so the form is posted to be sure.
    """
    is_elsewhere = answer.http in REDIRECTS and not leads_to(form, form.url, answer.location)
    return is_elsewhere and answer.had_cookies


def no_login(form: Form, url: str, answer: Answer, *, may_be_in: bool = False) -> str:
    """Why a posted form did not log in, in a word; empty if it did.

    Args:
        url: Where the form was posted to.
        may_be_in: As its page was answered. A refusal then means that the page's hidden fields were missing.
    """
    if answer.error:
        return answer.error
    if answer.http is not None and answer.http >= 400:
        is_refused = answer.http < 500 and answer.http not in RETRY_STATUSES
        if may_be_in and is_refused:
            return ""
        return f"http_{answer.http}"
    is_shown_again = answer.http in REDIRECTS and leads_to(form, url, answer.location)
    return "shown_again" if is_shown_again else ""


# The fields of a form as browsers send them: application/x-www-form-urlencoded, in the encoding of its page.


def form_encoded(fields: Sequence[tuple[str, object]], encoding: str) -> str:
    """Fields, percent-encoded; what the encoding lacks is a reference by number.

    Args:
        fields: Names and values; a list of values is several fields.
        encoding: A WHATWG name, of which UTF-16 is sent as UTF-8, or one that only Python has.
    """
    return urlencode(fields, doseq=True, encoding=encoding, quote_via=_quoted)


def _quoted(text: str | bytes, safe: str | bytes, encoding: str | None = None, _errors: str | None = None) -> str:
    if isinstance(text, bytes) or encoding is None:
        return quote_plus(text, safe)
    return quote_plus(_encoded(text, encoding), safe)


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return endec.encode(text, encoding, "xmlcharrefreplace")
    except (LookupError, UnicodeEncodeError):  # a name that only Python has, or half a character
        return text.encode(encoding, "xmlcharrefreplace")
