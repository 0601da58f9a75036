"""The way of one task: from its dispatch to its page and its done, or back into its host's queue without a trace.

    sitemaps told ─► ends unasked? ─► logged in? ─► asked, on record ─► rendered? ─► final, or again ─► outcomes

The dispatch is `fetch.py`; what is decided on the way stands in `streams/`: outcomes, forms, rendering, retrying.
Whatever happens, the task is given back or gets a done, and its host's request in flight is ended: what forgot either
would hold a place for ever.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from crawlog.streams import crash, validators
from crawlog.streams.answers import NOT_MODIFIED, PRECONDITION_FAILED, Answer
from crawlog.streams.outcomes import CRASH_LOOP, Unasked, unasked
from crawlog.streams.queues import Task

from .addresses import BUSY_S
from .http import THE_CRAWL, Asker

if TYPE_CHECKING:
    from crawlog.streams.forms import Session
    from crawlog.streams.retrying import Retrying
    from crawlog.streams.validators import Validators

    from .browsing import Browsing
    from .caution import Caution
    from .frontier import Stage
    from .http import Client
    from .logins import Logins
    from .outcomes import Outcomes
    from .sitemaps import Sitemaps

log = structlog.get_logger()

MAY_BE_RENDERED = Asker(wants_place=True)
"""What a page in the browser may ask for depends on where the page came from."""


class Means(NamedTuple):
    """What a task needs, in the order of its way."""

    sitemaps: "Sitemaps"
    logins: "Logins"
    caution: "Caution"
    client: "Client"
    browsing: "Browsing"
    retrying: "Retrying"
    outcomes: "Outcomes"


class Tasks:
    """Sees tasks to their end.

    Args:
        lows: Where the partitions of crawl.pages begin, as far as is known.
        release: Called with a task that was given back.
    """

    def __init__(self, stage: "Stage", means: Means, lows: Mapping[int, int], release: Callable[[Task], None]) -> None:
        self._robots = stage.settings.robots
        self._is_conditional = stage.settings.fetch.conditional
        self._frontier = stage.frontier
        self._sitemaps, self._logins, self._caution, self._client, self.browsing, self._retrying, self._outcomes = means
        self._lows = lows
        self._release = release

    async def run(self, task: Task) -> None:
        """Fetch one URL; ends as a page and a done, as a done, or given back."""
        url = task.row.url
        try:
            await self._sitemaps.told(task)
        except BaseException:
            self._unsent(task)
            raise
        rules = task.host.rules
        if rules is not None and rules.is_gone and not task.host.orders.blocked:
            self._unsent(task)  # others needed their room since the dispatch
            return
        if self._ends_unasked(task):
            self._frontier.unsent(task.host)
            return
        session = self._logins.session(task)
        if session is not None and not await self._is_logged_in(task, session):
            return
        asked_at = time.monotonic()
        try:
            answer = await self._asked(task)
        except BaseException:
            self._back(task)
            raise
        if answer is None or self._logins.is_over(session, url, answer, asked_at):
            self._asks_again(task, answer)
            return
        crash.point("fetch.answered")
        try:
            self._answered(task, answer)
        except Exception as error:  # its place would be held for ever, and the crawl never end
            log.exception("answer_broken", url=url)
            answer.held.give()
            self._outcomes.failed(task, f"answer_broken: {type(error).__name__}")

    # ------------------------------------------------------------------ given back

    def _unsent(self, task: Task) -> None:
        """Nothing was sent to its host, which need not rest for it."""
        self._frontier.unsent(task.host)
        self._frontier.back(task)
        self._release(task)

    def _back(self, task: Task, wait_s: float = 0.0) -> None:
        """The URL is its host's next one again, once that has rested."""
        self._frontier.finished(task.host, wait_s)
        self._frontier.back(task)
        self._release(task)

    def _asks_again(self, task: Task, answer: Answer | None, wait_s: float = 0.0) -> None:
        """Nobody was asked, for the address was busy, or the answer was none to it."""
        if answer is None:
            self._back(task, BUSY_S)
        else:
            answer.held.give()
            self._back(task, wait_s)

    # ------------------------------------------------------------------ before it is asked

    def _ends_unasked(self, task: Task) -> bool:
        """Whether its done is known, and on its way, without asking the web."""
        url = task.row.url
        end = unasked(task.host, url, self._robots)
        if end is None and self._caution.gives_up(url):
            log.error("crash_loop", url=url, then="failed without another try")
            end = Unasked("failed", CRASH_LOOP)
        if end is None:
            return False
        if end.status == "failed":
            self._outcomes.failed(task, end.reason)
        else:
            self._outcomes.refused(task, end)
        return True

    async def _is_logged_in(self, task: Task, session: "Session") -> bool:
        """Whether the task may go on; else its turn went to the login, or it has failed with that."""
        try:
            spent = await self._logins.spend(task, session)
        except BaseException:
            self._back(task, BUSY_S)
            raise
        if spent is None:
            return True
        if spent.failure:
            self._frontier.unsent(task.host)
            self._outcomes.failed(task, spent.failure)
        else:
            rest_s = self._retrying.rest_s(task.host, spent.answer, time.time()) if spent.answer is not None else 0.0
            self._asks_again(task, spent.answer, rest_s)
        return False

    # ------------------------------------------------------------------ asked

    async def _asked(self, task: Task) -> Answer | None:
        """The answer, rendered or pointing to an older page where it is one; None when the address is busy."""
        unless = self._validators(task)
        answer, why = await self._caution.asked(task.row.url, partial(self._looked_at, task, unless))
        if answer is None:
            return None
        if unless is not None:
            answer.is_conditional = True
            used = msgspec.structs.replace(unless, epoch=task.epoch)
            if answer.http == NOT_MODIFIED:
                answer.validators = used
                answer.same_as = task.partition.fold.partition, unless.offset
            elif answer.http == PRECONDITION_FAILED:  # the next attempt goes without
                task.partition.remember(validators.key(task.job.name, task.row.url), validators.pack(used))
        if why:
            await self.browsing.render(task, answer, why)
        return answer

    async def _looked_at(self, task: Task, unless: "Validators | None") -> tuple[Answer | None, str]:
        """The answer, and why a browser is to make its body, if one is."""
        row = task.row
        verdict = self.browsing.verdict(task)
        get = partial(
            self._client.get,
            row.url,
            any_type=row.sitemap,
            job=task.job.name,
            headers=unless.headers if unless is not None else None,
            asker=MAY_BE_RENDERED if verdict else THE_CRAWL,
        )
        answer = await self._client.addresses.at_once(row.url, get)
        return answer, "" if answer is None or not verdict else await self.browsing.why(task, answer, verdict)

    def _validators(self, task: Task) -> "Validators | None":
        """By which a page of an earlier epoch is asked for again."""
        if not task.epoch or not self._is_conditional:
            return None
        stored = task.partition.cached(validators.key(task.job.name, task.row.url))
        if stored is None:
            return None
        known = validators.read(stored)
        low = self._lows.get(task.partition.fold.partition, 0)
        return known if validators.may_ask(known, task.epoch, low, self.browsing.verdict(task)) else None

    # ------------------------------------------------------------------ answered

    def _answered(self, task: Task, answer: Answer) -> None:
        now = time.time()
        rest_s = self._retrying.rest_s(task.host, answer, now)
        self._frontier.finished(task.host, rest_s)
        again = self._retrying.again(answer, task.row.attempt + 1, rest_s)
        if again is None:
            self._outcomes.final(task, answer, now, rest_s)
        else:
            self._outcomes.again(task, answer, again, now, rest_s)
