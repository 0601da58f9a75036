"""Form logins: in turns of the host before a job's first page there, and again when a session is over."""

import time
from typing import TYPE_CHECKING

import structlog

from crawlog.streams.answers import REDIRECTS, Answer
from crawlog.streams.formpage import filled_in
from crawlog.streams.forms import Session, leads_to, read_form
from crawlog.streams.outbound import origin_of
from crawlog.streams.sections import Fetch

if TYPE_CHECKING:
    from crawlog.streams.queues import Task

log = structlog.get_logger()


class Logins:
    """The sessions of one worker."""

    def __init__(self, settings: Fetch) -> None:
        self._settings = settings
        self._forms = {form.origin: form for form in map(read_form, settings.forms)}
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
            session = Session(form, self._settings.login_again_s, self._settings.attempts)
            self._sessions[key] = session
        return session

    def closed(self, session: Session) -> None:
        """The form's page may not be asked for: what is configured is posted as it is."""
        session.shown(None, "robots")

    def shown(self, session: Session, answer: Answer, *, may_pass: bool, refusal: str = "") -> None:
        """Take note of the answer to the form's page; without the form in it, what is configured is posted as it is.

        Args:
            refusal: Why its HTML is not to be parsed; empty where it may be.
        """
        if may_pass or answer.http is None:
            self._ended(session, answer.error or f"http_{answer.http}", answer, may_pass=may_pass, page="unread")
            return
        found = None
        try:
            if 200 <= answer.http < 300 and not refusal:
                found = filled_in(session.form, answer.body, answer.content_type)
        except Exception:  # the login would be tried for ever
            log.exception("look_broken", url=session.form.url, then="posted as configured")
        missing = (
            f"http_{answer.http}" if answer.http >= 300 else answer.error or refusal.partition(":")[0] or "no_form"
        )
        session.shown(found, "" if found else missing)

    def answered(self, session: Session, answer: Answer, *, may_pass: bool) -> None:
        """Take note of the form's answer."""
        reason = answer.error
        if not reason and answer.http is not None and answer.http >= 400:
            reason = f"http_{answer.http}"
        if not reason and answer.http in REDIRECTS and leads_to(session.form, session.posted.url, answer.location):
            reason = "shown_again"
        self._ended(session, reason, answer, may_pass=may_pass, page=session.missing or "found")

    @staticmethod
    def _ended(session: Session, reason: str, answer: Answer, *, may_pass: bool, page: str) -> None:
        session.answered(reason, time.monotonic(), may_pass=may_pass)
        if reason:
            log.warning("login_failed", origin=session.form.origin, reason=reason, page=page)
        else:
            log.info("logged_in", origin=session.form.origin, http=answer.http)

    def is_over(self, session: Session | None, url: str, answer: Answer, asked_at: float) -> bool:
        """Whether an answer shows that there is no session, and one is worth beginning."""
        if session is None:
            return False
        signs = self._settings.logged_out
        is_sign = str(answer.http) in signs or (
            "redirect" in signs and answer.http in REDIRECTS and leads_to(session.form, url, answer.location)
        )
        return is_sign and url != session.form.url and session.is_worth_another(asked_at, time.monotonic())
