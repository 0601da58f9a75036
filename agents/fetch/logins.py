"""Form logins: makes the requests of a login, each in the place of a task.

    task ─► session.next ─┬─► page: the task requests its URL
                          └─► read, post: `take` requests the form's page, or posts the form ─► session.next

`streams/session/login.py` decides each step; this module makes the requests.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.client import HttpRequest
from crawlog.streams.fetch import may_pass, unasked
from crawlog.streams.html import PAGE_BYTES, filled_in
from crawlog.streams.http import Answer
from crawlog.streams.requests import origin_of, read_login
from crawlog.streams.session import Form, Posted, Session, Shown, Step, Unsent, is_for_guests, no_login, read_form

if TYPE_CHECKING:
    from crawlog.agents.client import Addresses, Transport
    from crawlog.streams.frontier import Task
    from crawlog.streams.settings import Settings

    from .suspects import Caution

log = structlog.get_logger()

Refusal = Callable[["Task", Answer, bytes], Awaitable[str]]


class Logins:
    """The sessions of one worker.

    Args:
        refusal: Says why HTML must not be parsed; empty if it may be.
    """

    def __init__(
        self, settings: "Settings", transport: "Transport", addresses: "Addresses", caution: "Caution", refusal: Refusal
    ) -> None:
        self._transport = transport
        self._addresses = addresses
        self._caution = caution
        self._refusal = refusal
        self._forms = {form.origin: form for form in map(read_form, settings.fetch.forms)}
        users = {login.origin: login.user for login in map(read_login, settings.fetch.logins)}
        self._users = {origin: form.url for origin, form in self._forms.items()} | users
        self._sessions: dict[tuple[str, int, str], Session] = {}

    def session(self, task: "Task") -> Session | None:
        """The session of the task's job at the URL's origin; None without a login form for it."""
        if not self._forms:
            return None
        form = self._forms.get(origin_of(task.row.url))
        if form is None:
            return None
        key = task.job.name, task.epoch, form.origin
        session = self._sessions.get(key)
        if session is None:
            rules = task.policy.rules
            session = Session(form, rules.login_again_s, rules.attempts)
            self._sessions[key] = session
        return session

    def user(self, url: str) -> str:
        """Who asks for a URL: the user of a basic login, or the form that is posted; empty for nobody."""
        return self._users.get(origin_of(url), "") if self._users else ""

    async def take(self, task: "Task", session: Session, step: Step) -> Answer:
        """Request the form's page or post the form, as the session's step says.

        Raises:
            LeaseLost: Nothing was sent.
            Busy: Nothing was sent.
        """
        now = time.monotonic()
        if step.do == "read" and unasked(task.host, session.form.url, task.policy, now) is not None:
            session.next(Shown(None, "robots"), now)  # the form is posted as configured
            step = session.next(None, now)
        form = step.form
        assert form is not None, "there is a form to read or post"
        try:
            if step.do == "post":
                answer = await self._caution.asked(form.url, partial(self._post, task, form))
                reason = no_login(session.form, form.url, answer, may_be_in=session.may_be_in)
                heard: Shown | Posted = Posted(reason, may_pass(answer))
            else:
                answer, refusal = await self._caution.asked(form.url, partial(self._read, task, form.url))
                heard = shown(form, answer, refusal)
        except BaseException:
            session.next(Unsent(), time.monotonic())
            raise
        if isinstance(heard, Posted):
            page = (session.missing or "found") if step.do == "post" else "unread"
            _tell(session.form, answer, heard.reason, page)
        session.next(heard, time.monotonic())
        return answer

    async def _post(self, task: "Task", form: Form) -> Answer:
        policy = task.policy
        request = HttpRequest(form.url, form=form, job=task.job.name, policy=policy)
        return await self._addresses.at_once(form.url, partial(self._transport.get, request), policy.rules)

    async def _read(self, task: "Task", url: str) -> tuple[Answer, str]:
        """The answer to the form's page, and why its HTML must not be parsed."""
        policy = task.policy
        request = HttpRequest(url, any_type=True, job=task.job.name, policy=policy)
        answer = await self._addresses.at_once(url, partial(self._transport.get, request), policy.rules)
        try:
            return answer, await self._refusal(task, answer, answer.body[:PAGE_BYTES])
        except BaseException:  # also on cancellation: no other frame has the answer, to give its memory back
            answer.held.give()
            raise


def shown(form: Form, answer: Answer, refusal: str = "") -> Shown | Posted:
    """The form as its page shows it; if the page has no such form, it is posted as configured.

    Args:
        refusal: Why its HTML must not be parsed; empty if it may be.
    """
    if may_pass(answer) or answer.http is None:
        return Posted(answer.error or f"http_{answer.http}", may_pass(answer))
    found = None
    try:
        if 200 <= answer.http < 300 and not refusal:
            found = filled_in(form, answer.body, answer.content_type)
    except Exception:  # else the login is tried for ever
        log.exception("look_broken", url=form.url, then="posted as configured")
    missing = f"http_{answer.http}" if answer.http >= 300 else answer.error or refusal.partition(":")[0] or "no_form"
    return Shown(found, "" if found else missing, is_for_guests(form, answer))


def _tell(form: Form, answer: Answer, reason: str, page: str) -> None:
    if reason:
        log.warning("login_failed", origin=form.origin, reason=reason, page=page)
    else:
        log.info("logged_in", origin=form.origin, http=answer.http)
