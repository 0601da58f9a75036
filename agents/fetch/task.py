"""The life of one task: from its dispatch to its page and its done, or back into its host's queue without a trace.

    sitemaps sent ─► ends early? ─► login step? ─► request, on record ─► rendered? ─► final, or again ─► outcome

`fetch_agent.py` dispatches; `streams/` decides: outcome, login, rendering, retry. The end of a task is one value
(`_End`), and one method (`_ends`) applies it, also after an exception. It does two things: the task is given back or
gets a done, and its host's request in flight ends. A task that skipped either would hold its place for ever.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from crawlog.agents.client import BUSY_S, THE_CRAWL, Asker, Busy, HttpRequest
from crawlog.streams import crash_points
from crawlog.streams.coded_pages import SITEMAP_HEADERS
from crawlog.streams.exits import refusal_of
from crawlog.streams.fetch import (
    CRASH_LOOP,
    EXPIRED,
    INTERRUPTED,
    Needs,
    Unasked,
    is_plain,
    is_sent_once,
    keeps_any_type,
    needs,
    unasked,
    wants_headers,
)
from crawlog.streams.frontier import Task
from crawlog.streams.http import NOT_MODIFIED, PRECONDITION_FAILED, Answer, HeldBytes, validators
from crawlog.streams.requests import policy_for
from crawlog.streams.session import Visited

from .dones import Begun

if TYPE_CHECKING:
    from crawlog.agents.browser import Browsing
    from crawlog.agents.client import Addresses, Transport
    from crawlog.agents.frontier import OwnedFrontier
    from crawlog.streams.exits import Exit
    from crawlog.streams.fetch import Retrying
    from crawlog.streams.frontier import Patience
    from crawlog.streams.http import Validators
    from crawlog.streams.requests import RequestPolicy
    from crawlog.streams.session import Session, Step

    from .logins import Logins
    from .outcome import Outcomes
    from .robots import Sitemaps
    from .suspects import Caution

log = structlog.get_logger()

# The answer must say if its address is private: that decides what the page may load in a browser.
MAY_BE_RENDERED = Asker(wants_place=True)


class Means(NamedTuple):
    """The collaborators of a task, in the order of use."""

    sitemaps: "Sitemaps"
    logins: "Logins"
    caution: "Caution"
    transport: "Transport"
    addresses: "Addresses"
    browsing: "Browsing"
    retrying: "Retrying"
    patience: "Patience"
    outcomes: "Outcomes"


class _End(NamedTuple):
    """How a task ends.

    Attributes:
        is_sent: Whether its host was sent a request, or shall rest as if it had been.
        rest_s: Rest of the host beside its delay; for a task that was not sent, the wait for its address.
        held: Body memory of an answer; it is returned unless `write` passes it on.
        write: Sends the result to the log; None for a task that is given back.
        needs: The setting without which this worker cannot fetch the URLs of this job on this host; they stay queued.
    """

    is_sent: bool = True
    rest_s: float = 0.0
    held: HeldBytes = HeldBytes()
    write: Callable[[], None] | None = None
    needs: str = ""


_UNSENT = _End(is_sent=False)  # Given back; its host does not rest

_BUSY = _End(rest_s=BUSY_S)  # Given back; it comes again after its host has rested


class Tasks:
    """Runs tasks to their end.

    Args:
        lows: The known first offsets of crawl.pages, by partition.
        release: Called with each task that was given back.
    """

    def __init__(
        self, stage: "OwnedFrontier", means: Means, lows: Mapping[int, int], release: Callable[[Task], None]
    ) -> None:
        self._frontier = stage.frontier
        self._sitemaps, self._logins, self._caution, self._transport, self._addresses = means[:5]
        self.browsing, self._retrying, self._patience, self._outcomes = means[5:]
        self._begun = Begun(stage)
        self._durations = stage.durations
        self._lows = lows
        self._release = release

    async def run(self, task: Task) -> None:
        """Fetch one URL. The task ends with a page and a done, with a done alone, or is given back."""
        end = _BUSY
        try:
            end = await self._way(task)
        except Busy as busy:
            end = _End(is_sent=False, rest_s=busy.wait_s)
        finally:  # after any exception: a request in flight that does not end would block its host for ever
            self._ends(task, end)

    async def _way(self, task: Task) -> _End:
        """The end of a task. An exception here gives it back, after its host has rested."""
        await self._sitemaps.told(task)
        end = self._unasked(task)
        if end is not None:
            return end
        session = self._logins.session(task)
        if session is not None:
            step = session.next(None, time.monotonic())
            if step.do != "page":
                return await self._stepped(task, session, step)
        return await self._answered(task, session)

    async def _stepped(self, task: Task, session: "Session", step: "Step") -> _End:
        """The end of a task whose place is used for a step of a login."""
        if step.do == "fail":
            return _End(is_sent=False, write=partial(self._outcomes.failed, task, step.reason))
        if step.do == "wait":
            return _BUSY
        answer = await self._logins.take(task, session, step)
        answer.held.give()
        return _End(rest_s=self._retrying.rest_s(task.host, answer, time.time(), task.policy, task.round))

    async def _answered(self, task: Task, session: "Session | None") -> _End:
        """The end of a task whose URL is requested."""
        asked_at = time.monotonic()
        answer = await self._asked(task)
        try:
            if session is not None and not self._is_sent_once(task):
                visited = Visited(task.row.url, answer, asked_at, task.policy.rules.logged_out)
                if session.next(visited, time.monotonic()).do == "wait":
                    return _End(held=answer.held)
            crash_points.point("fetch.answered")
            return self._judged(task, answer)
        except Exception as error:  # noqa: BLE001  # another request would break in the same way
            return _End(write=self._broken(task, answer.held, error))

    def _unasked(self, task: Task) -> _End | None:
        """The end of a task whose URL is not requested now; None if it is."""
        policy, host = task.policy, task.host
        is_unread = policy.rules.robots and not host.has_rules(policy)
        if host.orders.paused or (is_unread and host.closed_to(policy, time.monotonic()) is None):  # since its dispatch
            return _UNSENT
        return self._known(task, policy)

    # ------------------------------------------------------------------ the end

    def _ends(self, task: Task, end: _End) -> None:
        """End the host's request in flight; then write the task's result, or give the task back."""
        if end.needs:
            task.partition.lack(task.host, task.job.number, end.needs)
        if end.is_sent:
            self._frontier.finished(task.host, end.rest_s, task.job.number, task.exit)
        else:
            self._frontier.unsent(task.host, end.rest_s, task.exit)
        if end.write is not None and self._is_written(task, end.write, end.held):
            return
        end.held.give()
        self._frontier.back(task)
        self._release(task)

    def _is_written(self, task: Task, write: Callable[[], None], held: HeldBytes) -> bool:
        """Whether the result was sent to the log. If `write` fails, a failure is written in its place."""
        try:
            write()
        except Exception as error:  # noqa: BLE001  # else the place is held for ever, and the crawl never ends
            failed = self._broken(task, held, error)
        else:
            return True
        try:
            failed()
        except Exception:
            log.exception("failure_broken", job=task.job.name, url=task.row.url, then="asked for again")
            return False
        return True

    def _broken(self, task: Task, held: HeldBytes, error: Exception) -> Callable[[], None]:
        """A function that writes this error as the result. The answer's memory is returned now."""
        log.error("answer_broken", job=task.job.name, url=task.row.url, exc_info=error)
        held.give()
        return partial(self._outcomes.failed, task, f"answer_broken: {type(error).__name__}")

    # ------------------------------------------------------------------ before the request

    def _known(self, task: Task, policy: "RequestPolicy") -> _End | None:
        """The end of a task whose done is known without a request."""
        url = task.row.url
        if task.row.began:
            return _End(is_sent=False, write=partial(self._outcomes.failed, task, INTERRUPTED))
        if rule := task.job.scope.refusal_of_queued(url, task.row.depth, task.row.hops):
            return _End(is_sent=False, write=partial(self._outcomes.refused, task, Unasked("refused", "scope", rule)))
        end = EXPIRED if 0 < task.row.expires <= time.time() else unasked(task.host, url, policy, time.monotonic())
        if end is None and self._caution.gives_up(url):
            log.error("crash_loop", job=task.job.name, url=url, then="failed without another try")
            end = Unasked("failed", CRASH_LOOP)
        if end is None:
            return None
        if isinstance(end, Needs):
            return _End(is_sent=False, needs=end.setting)
        if end.status == "failed":
            return _End(is_sent=False, write=partial(self._outcomes.failed, task, end.reason))
        return _End(is_sent=False, write=partial(self._outcomes.refused, task, end))

    # ------------------------------------------------------------------ the request

    async def _asked(self, task: Task) -> Answer:
        """The answer; it may be rendered, or point to an older page. Raises: Busy: no request was sent."""
        unless = self._validators(task)
        answer, why = await self._caution.asked(task.row.url, partial(self._looked_at, task, unless))
        try:
            if unless is not None:
                self._note_condition(task, answer, unless)
            if answer.validators is not None:
                answer.validators = msgspec.structs.replace(answer.validators, selected_by=self._selecting(task))
            if why:
                await self.browsing.render(task, answer, why)
        except BaseException:
            answer.held.give()
            raise
        return answer

    def _note_condition(self, task: Task, answer: Answer, unless: "Validators") -> None:
        """Note the answer to a conditional request: 304 points to the older page; after 412 none are sent again."""
        answer.is_conditional = True
        used = msgspec.structs.replace(unless, epoch=task.epoch)
        if answer.http == NOT_MODIFIED:
            answer.validators = used
            answer.same_as = task.partition.fold.partition, unless.offset
        elif answer.http == PRECONDITION_FAILED:  # the next attempt goes without
            task.partition.remember(validators.key(task.job.name, task.row.url), validators.pack(used))

    async def _looked_at(self, task: Task, unless: "Validators | None") -> tuple[Answer, str]:
        """The answer, and why a browser shall render it; empty if it shall not."""
        row = task.row
        policy = self._policy(task)
        rules = policy.rules
        is_last = row.attempt + 1 >= rules.attempts
        verdict = self.browsing.verdict(task)
        headers = {**(SITEMAP_HEADERS if row.sitemap else {}), **(unless.headers if unless is not None else {})}
        request = HttpRequest(
            row.url,
            any_type=row.sitemap or keeps_any_type(task),
            job=task.job.name,
            headers=headers or None,
            policy=policy,
            asker=MAY_BE_RENDERED if verdict else THE_CRAWL,
            within_s=self._patience.within_s(task.host, rules.timeout_s, row.attempt, is_last=is_last),
            record=task.request,
            all_headers=wants_headers(task),
            as_came=row.sitemap or not verdict,  # a browser shows the body, and `auto` looks at it
            exit=task.exit,
        )
        get = partial(self._transport.get, request)
        if self._is_sent_once(task):
            get = partial(self._begun.first, task, get)
        way = task.exit.name if task.exit is not None and rules.per_exit else ""
        answer = await self._addresses.at_once(row.url, get, rules, way)
        return answer, "" if not verdict else await self.browsing.why(task, answer, verdict)

    @staticmethod
    def _is_sent_once(task: Task) -> bool:
        return task.request is not None and is_sent_once(task.request, task.policy.rules)

    def _policy(self, task: Task) -> "RequestPolicy":
        """How a task's URL is requested: as its job says, or its own request."""
        request = task.request
        return task.policy if request is None else policy_for(request, task.policy, self._frontier.schedule.limits)

    def _validators(self, task: Task) -> "Validators | None":
        """The validators of a page from an earlier epoch, for a conditional request; None for a plain one.

        A URL that is due again has those of this epoch, but not after an attempt that these may have failed.
        """
        before = task.epoch + (task.row.is_again and not task.row.attempt)
        if not before or not task.policy.rules.conditional or not is_plain(task):
            return None
        stored = task.partition.cached(validators.key(task.job.name, task.row.url))
        if stored is None:
            return None
        known = validators.read(stored)
        if known.selected_by != self._selecting(task):
            return None
        low = self._lows.get(task.partition.fold.partition, 0)
        may_ask = validators.may_ask(known, task.job.after, before, low, self.browsing.verdict(task))
        return known if may_ask else None

    def _selecting(self, task: Task) -> bytes:
        """What a server may select the representation of a plain page by."""
        return task.policy.selecting(self._logins.user(task.row.url))

    # ------------------------------------------------------------------ the answer

    def _judged(self, task: Task, answer: Answer) -> _End:
        """The end of a task by its answer."""
        now = time.time()
        policy = self._policy(task)
        if task.exit is not None and self._goes_again(task, task.exit, answer, policy):
            self._frontier.ledger.answered(task.host, answer, now)
            return _End(held=answer.held)
        if (needed := needs(answer, policy)) and not self._is_sent_once(task):
            return _End(is_sent=not answer.is_closed, held=answer.held, needs=needed)
        self._patience.heard(task.host, answer, is_page=True)
        self._durations.note(answer.took_s)
        rest_s = self._retrying.rest_s(task.host, answer, now, policy, task.round)
        asked_s = self._retrying.asked_s(answer, now, policy)
        rests = "" if not rest_s else "retry_after" if asked_s >= rest_s else "backoff"
        self._frontier.ledger.answered(task.host, answer, now, rests)
        least_s = max(rest_s, asked_s)
        again = self._retrying.again(answer, task.row.attempt + 1, least_s, policy, task.request)
        if again is None:
            self._frontier.schedule.exits.settled(task.identity)
            write = partial(self._outcomes.final, task, answer, now, rest_s)
        else:
            write = partial(self._outcomes.again, task, answer, again, now, rest_s)
        return _End(rest_s=rest_s, held=answer.held, write=write)

    def _goes_again(self, task: Task, way: "Exit", answer: Answer, policy: "RequestPolicy") -> bool:
        """Whether a URL goes back to its queue, to be sent by another exit: this one was turned away, or failed.

        A request that is sent once has this answer in any case.
        """
        exits, now = self._frontier.schedule.exits, time.monotonic()
        refusal = refusal_of(answer, policy.rules, self._retrying.asked_s(answer, time.time(), policy))
        if refusal is not None and len(exits.of_group(policy.rules.exit_group)) > 1:
            exits.refused(task.host.key, way, refusal, now - answer.took_s, now)
            log.info("exit_refused", exit=way.name, host=task.host.key, reason=refusal.reason, url=task.row.url)
        elif not answer.by_proxy:
            if answer.http is not None:
                exits.served(task.host.key, way, now)
            return False
        return exits.again(task.identity, way, policy.rules) and not self._is_sent_once(task)
