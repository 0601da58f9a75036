"""Gives hosts the rules of their robots.txt: from the cache beside the state, else by a request; follows redirects.

`streams/fetch/robots_answer.py` decides what an answer means. A redirect to another host waits for that host's turn.
Meanwhile it holds no turn of `suspects` and, like every late request, no place.
"""

import asyncio
import random
import time
from functools import partial

import structlog

from crawlog.agents.client import BUSY_S, Addresses, Asker, BodyBudget, Busy, HttpRequest, Transport
from crawlog.agents.frontier import HostHeld, Hosts, Stage
from crawlog.streams.fetch import (
    CONTROL,
    CRASH_LOOP,
    UNREACHABLE_TTL_S,
    Access,
    Counts,
    Later,
    Unreachable,
    opens,
    robots_answer,
)
from crawlog.streams.frontier import NO_TRIES, Host, Patience, Tries
from crawlog.streams.http import MAX_BYTES, Answer, Manner, SharedRules

from .suspects import Caution

log = structlog.get_logger()

RULES_BYTES = 8 << 20
"""A separate budget for large robots.txt: a page in the browser may need one while it already holds body memory."""

MOST_REDIRECTS = 5
"""RFC 9309 2.3.1.2: at least five."""

HELD_S = 30.0
"""Pause of a host whose robots.txt is at another one that a command pauses: until then it is asked in vain."""

_jitter = random.random  # spreads retries, no secret; the one generator that a fork seeds anew


class Robots:
    """Robots.txt of the hosts that this worker crawls.

    Args:
        patience: Decides the timeout of a host; a host that it redirects to has the usual timeout.

    Attributes:
        rules: The rules in memory; hosts with the same file share them.
    """

    def __init__(
        self,
        stage: Stage,
        transport: Transport,
        addresses: Addresses,
        hosts: Hosts,
        caution: Caution,
        patience: Patience,
    ) -> None:
        settings = stage.settings
        self._frontier = stage.frontier
        self._place = stage.place
        self._transport = transport
        self._addresses = addresses
        self._hosts = hosts
        self._caution = caution
        self._patience = patience
        self._access = Access(settings.robots)
        self._bodies = BodyBudget(RULES_BYTES)
        self.rules = SharedRules()

    async def give(self, host: Host, manner: Manner, *, in_turn: bool = False) -> None:
        """Give a host its rules, and end the host's request in flight.

        Args:
            manner: Of the job that needs the rules.
            in_turn: Wait while the address is busy; else the host comes again later.

        Raises: LeaseLost: this worker may not send the request.
        """
        rest_s: float | None = BUSY_S
        wait_s = 0.0
        try:
            rest_s = await self._given(host, manner, in_turn)
        except Busy as busy:
            rest_s, wait_s = None, busy.wait_s
        except HostHeld:
            rest_s = HELD_S
        finally:  # after any exception: a request in flight that does not end would block its host for ever
            if rest_s is None:
                self._frontier.unsent(host, wait_s)
            else:
                self._frontier.finished(host, rest_s)

    async def _given(self, host: Host, manner: Manner, in_turn: bool) -> float | None:
        """Seconds that the host rests beside its delay; None if no request was sent.

        Raises: Busy, HostHeld: as `_answer`.
        """
        if (rest_s := self._rest_left_s(host)) > 0:
            return rest_s
        cached = self._cached(host, manner)
        left_s = cached.left_s(self._access.ttl_s, time.time()) if cached is not None else 0.0
        if cached is not None and left_s > 0:
            wait_s = self.rules.wait_s(cached.body, manner.token, time.monotonic())
            if wait_s > 0 and not in_turn:
                return wait_s
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._use(host, manner, cached, left_s - wait_s)
            return None
        url = f"{host.key}/robots.txt"
        if self._caution.gives_up(url):
            log.error("crash_loop", url=url, then="nothing of its host is asked for")
            self._close(host, CRASH_LOOP, Answer(None), manner)
            return None
        (failed, _, since), now = host.tries.get(manner.asking, NO_TRIES), time.monotonic()
        is_last = self._access.is_last(failed + 1, now - since if failed else 0.0)
        within_s = self._patience.within_s(host, manner.rules.timeout_s, failed, is_last=is_last)
        try:
            answer = await self._answer(url, manner, in_turn, within_s)
        except HostHeld:
            if cached is None:
                raise
            answer = Answer(None, CONTROL)  # the older rules count on, however long the other host is paused
        return self._answered(host, manner, answer, is_cut_short=within_s is not None and answer.error == "timeout")

    async def _answer(self, url: str, manner: Manner, waits: bool, within_s: float | None) -> Answer:
        """The answer after all redirects. A request to another host waits for its turn.

        Raises:
            Busy: no request was sent.
            HostHeld: it is at a host that is paused.
        """
        addresses, home, get = self._addresses, url, partial(self._get, manner)
        ask = addresses.in_turn if waits else addresses.at_once
        answer = await self._caution.asked(url, partial(ask, url, partial(get, url, within_s), manner.rules))
        is_home = True
        for _ in range(MOST_REDIRECTS):
            target = answer.target(url)
            if not target:
                break
            url = target
            is_home = is_home and self._place(url).host == self._place(home).host
            if is_home:
                in_turn = partial(addresses.in_turn, url, partial(get, url), manner.rules)
                answer = await self._caution.asked(home, in_turn)
            else:
                with self._hosts.visiting(home):  # two hosts that redirect to each other do not wait for each other
                    answer = await self._elsewhere(home, url, manner)
        return answer

    async def _elsewhere(self, home: str, url: str, manner: Manner) -> Answer:
        """The answer of another host, requested in its turn; of a blocked one, that it cannot be had.

        Raises: HostHeld: it is paused.
        """
        answer = None
        try:
            while answer is None:
                await self._hosts.turn(url)
                ask = partial(self._hosts.ask, url, partial(self._get, manner, url), manner)
                answer = await self._caution.asked(home, partial(self._addresses.in_turn, url, ask, manner.rules))
        except HostHeld as held:
            if not held.is_blocked:
                raise
            return Answer(None, CONTROL)
        return answer

    async def _get(self, manner: Manner, url: str, within_s: float | None = None) -> Answer:
        asker = Asker(bodies=self._bodies)
        answer = await self._transport.get(
            HttpRequest(url, any_type=True, max_bytes=MAX_BYTES, manner=manner, asker=asker, within_s=within_s)
        )
        answer.held.give()  # the body is used at once
        return answer

    def _answered(self, host: Host, manner: Manner, answer: Answer, *, is_cut_short: bool) -> float | None:
        """Apply the answer; returns as `_given`.

        Args:
            is_cut_short: Whether it timed out before the usual time: a slow host may need all of it, so the request is
                repeated.
        """
        now = time.monotonic()
        self._patience.heard(host, answer, is_page=False)
        failed, lost, since = host.tries.get(manner.asking, NO_TRIES)
        if answer.by_proxy:
            attempt = lost = lost + 1
            is_last = attempt >= manner.rules.attempts  # as for a page
        else:
            attempt = failed = failed + 1
            since = since if failed > 1 else now
            is_last = self._access.is_last(attempt, now - since) and not is_cut_short
        meant = self._access.judged(answer, time.time(), attempt, _jitter(), manner, is_last=is_last)
        rest_s = 0.0
        if not isinstance(meant, Counts) and not answer.by_proxy:
            self._keep_rest(host, meant.wait_s)
        if isinstance(meant, Later):
            host.tries[manner.asking] = Tries(failed, lost, since)
            return meant.wait_s
        if isinstance(meant, Unreachable) and (older := self._cached(host, manner)) is not None:
            rest_s, meant = meant.wait_s, older.kept(time.time())
        if isinstance(meant, Counts):
            key = robots_answer.key(host.key, meant.counts_for(manner.asking))
            host.partition.cache(key, robots_answer.pack(meant))
            self._use(host, manner, meant, meant.left_s(self._access.ttl_s, time.time()))
        else:
            self._close(host, meant.reason, answer, manner)
        return None if answer.private else rest_s

    @staticmethod
    def _keep_rest(host: Host, wait_s: float) -> None:
        if wait_s > 0:
            rest = robots_answer.Rest(time.time(), wait_s)
            host.partition.cache(robots_answer.rest_key(host.key), robots_answer.pack(rest))

    @staticmethod
    def _rest_left_s(host: Host) -> float:
        """Seconds that are left of the rest after the last vain request, of this worker or of the one before it."""
        row = host.partition.cached(robots_answer.rest_key(host.key))
        return robots_answer.read_rest(row).left_s(time.time()) if row is not None else 0.0

    @staticmethod
    def _cached(host: Host, manner: Manner) -> Counts | None:
        """The rules that were read last for a manner, however old."""
        keys = robots_answer.key(host.key), robots_answer.key(host.key, manner.asking)
        rows = [robots_answer.read(row) for key in keys if (row := host.partition.cached(key)) is not None]
        return max(rows, key=lambda row: (row.fetched_at, row.unreachable_at), default=None)

    def _use(self, host: Host, manner: Manner, counts: Counts, left_s: float) -> None:
        host.rules = self.rules.rules(counts.body, manner.token)
        host.rules_until = time.monotonic() + left_s
        host.rules_of = counts.counts_for(manner.asking)
        host.answered(host.rules_of)
        host.wish_s = host.rules.crawl_delay_s(manner.token)

    @staticmethod
    def _close(host: Host, reason: str, answer: Answer, manner: Manner) -> None:
        """Disallow the whole host to jobs that ask in the same way, or that lack a setting which would open it."""
        until = time.monotonic() + UNREACHABLE_TTL_S
        host.tries.pop(manner.asking, None)
        setting = opens(answer)
        if setting and not manner.has(setting):
            host.close(reason, until, to=setting)
        else:
            host.close(reason, until, asking=manner.asking)
