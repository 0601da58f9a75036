"""Form logins: in turns of the host before a job's first page there, and again when a session is over.

`streams/http/login.py` has the session's state. A login takes two turns of a task: one reads the form's page, one posts
the form.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import structlog

from crawlog.streams.fetch import may_pass, unasked
from crawlog.streams.html import PAGE_BYTES, filled_in
from crawlog.streams.http import REDIRECTS, Answer, Session, leads_to, origin_of, read_form

if TYPE_CHECKING:
    from crawlog.agents.client import Client
    from crawlog.streams.frontier import Task
    from crawlog.streams.settings import Settings

    from .suspects import Caution

log = structlog.get_logger()

Refusal = Callable[["Task", Answer, bytes], Awaitable[str]]


class Spent(NamedTuple):
    """What a task's turn went to instead of its page.

    Attributes:
        answer: Of the form, or of its page; None where nobody was asked.
        failure: Why the task fails with its login; empty where it is its host's next one again.
    """

    answer: Answer | None = None
    failure: str = ""


class Logins:
    """The sessions of one worker.

    Args:
        refusal: Why HTML is not to be parsed; empty where it may be.
    """

    def __init__(self, settings: "Settings", client: "Client", caution: "Caution", refusal: Refusal) -> None:
        self._client = client
        self._caution = caution
        self._refusal = refusal
        self._forms = {form.origin: form for form in map(read_form, settings.fetch.forms)}
        self._sessions: dict[tuple[str, str], Session] = {}

    def session(self, task: "Task") -> Session | None:
        """Of the task's job at its origin; None where no login was given."""
        if not self._forms:
            return None
        form = self._forms.get(origin_of(task.row.url))
        if form is None:
            return None
        key = task.job.name, form.origin
        session = self._sessions.get(key)
        if session is None:
            rules = task.manner.rules
            session = Session(form, rules.login_again_s, rules.attempts)
            self._sessions[key] = session
        return session

    def is_over(self, session: Session | None, task: "Task", answer: Answer, asked_at: float) -> bool:
        """Whether an answer shows that there is no session, and one is worth beginning."""
        if session is None:
            return False
        url, signs = task.row.url, task.manner.rules.logged_out
        is_sign = str(answer.http) in signs or (
            "redirect" in signs and answer.http in REDIRECTS and leads_to(session.form, url, answer.location)
        )
        if not is_sign:
            session.answered_for(url)
        return is_sign and url != session.form.url and session.is_worth_another(url, asked_at, time.monotonic())

    async def spend(self, task: "Task", session: Session) -> Spent | None:
        """Log in with the task's turn where that is needed; None where its page may be asked for.

        Raises:
            LeaseLost: Nothing was sent.
            Busy: So too.
        """
        turn = session.turn(time.monotonic())
        if turn == "read" and not _allows(task, session.form.url):
            session.shown(None, "robots")  # what is configured is posted as it is
            turn = session.turn(time.monotonic())
        if turn == "ask":
            return None
        if turn == "fail":
            return Spent(failure=session.reason)
        return Spent() if turn == "wait" else await self._log_in(task, session, turn)

    async def _log_in(self, task: "Task", session: Session, turn: Literal["read", "send"]) -> Spent:
        """Read the form's page, or post it."""
        try:
            if turn == "send":
                answer = await self._caution.asked(session.posted.url, partial(self._post, task, session))
            else:
                answer, refusal = await self._caution.asked(session.form.url, partial(self._page, task, session))
        except BaseException:
            session.given_back()
            raise
        if turn == "send":
            posted(session, answer)
        else:
            shown(session, answer, refusal)
        return Spent(answer)

    async def _post(self, task: "Task", session: Session) -> Answer:
        log_in = partial(self._client.log_in, session.posted, task.job.name, task.manner)
        return await self._client.addresses.at_once(session.posted.url, log_in, task.manner.rules)

    async def _page(self, task: "Task", session: Session) -> tuple[Answer, str]:
        """The page of the form, and why nobody is to look at it."""
        url = session.form.url
        answer = await self._client.addresses.at_once(
            url,
            partial(self._client.get, url, any_type=True, job=task.job.name, manner=task.manner),
            task.manner.rules,
        )
        return answer, await self._refusal(task, answer, answer.body[:PAGE_BYTES])


def _allows(task: "Task", url: str) -> bool:
    """Whether robots.txt, as far as it is known, lets a URL of the task's host be asked for."""
    return unasked(task.host, url, task.manner, time.monotonic()) is None


def shown(session: Session, answer: Answer, refusal: str = "") -> None:
    """Take note of the answer to the form's page; without the form in it, what is configured is posted as it is.

    Args:
        refusal: Why its HTML is not to be parsed; empty where it may be.
    """
    if may_pass(answer) or answer.http is None:
        _ended(session, answer.error or f"http_{answer.http}", answer, page="unread")
        return
    found = None
    try:
        if 200 <= answer.http < 300 and not refusal:
            found = filled_in(session.form, answer.body, answer.content_type)
    except Exception:  # the login would be tried for ever
        log.exception("look_broken", url=session.form.url, then="posted as configured")
    missing = f"http_{answer.http}" if answer.http >= 300 else answer.error or refusal.partition(":")[0] or "no_form"
    session.shown(found, "" if found else missing)


def posted(session: Session, answer: Answer) -> None:
    """Take note of the form's answer."""
    reason = answer.error
    if not reason and answer.http is not None and answer.http >= 400:
        reason = f"http_{answer.http}"
    if not reason and answer.http in REDIRECTS and leads_to(session.form, session.posted.url, answer.location):
        reason = "shown_again"
    _ended(session, reason, answer, page=session.missing or "found")


def _ended(session: Session, reason: str, answer: Answer, *, page: str) -> None:
    session.answered(reason, time.monotonic(), may_pass=may_pass(answer))
    if reason:
        log.warning("login_failed", origin=session.form.origin, reason=reason, page=page)
    else:
        log.info("logged_in", origin=session.form.origin, http=answer.http)
