"""Gives hosts their robots.txt: from the cache beside the state, else by asking, across redirects to other hosts.

`streams/fetch/robots_answer.py` decides what an answer means. A robots.txt that redirects to another host waits for
that host's turn; meanwhile it keeps no turn of the suspects' and, as all that is late, no place.
"""

import asyncio
import random
import time
from functools import partial

import structlog

from crawlog.agents.client import BUSY_S, Addresses, Asker, BodyBudget, Busy, HttpRequest, Transport
from crawlog.agents.frontier import Hosts, Stage
from crawlog.streams.fetch import CRASH_LOOP, UNREACHABLE_TTL_S, Access, Counts, Later, opens, robots_answer
from crawlog.streams.frontier import Host, Patience
from crawlog.streams.http import MAX_BYTES, Answer, Manner, RobotsRules, SharedRules

from .suspects import Caution

log = structlog.get_logger()

RULES_BYTES = 8 << 20
"""Of large robots.txt so much is read at a time: a page in the browser, which holds room for its body, may need one."""

MOST_REDIRECTS = 5
"""RFC 9309 2.3.1.2: at least five."""

_jitter = random.random  # spreads retries, no secret; the one generator that a fork seeds anew


class Robots:
    """Robots.txt of the hosts that this worker asks.

    Args:
        patience: How long a host is waited for; another one that it redirects to has the usual time.

    Attributes:
        rules: Those in memory, once for all hosts with the same file.
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
        """Give a host its rules; the request counts among its own in flight, and that ends here.

        Args:
            manner: Of the job that needs them.
            in_turn: Wait where its address is busy; else the host is to come again.

        Raises: LeaseLost: this worker may not ask for them.
        """
        rest_s: float | None = BUSY_S
        wait_s = 0.0
        try:
            rest_s = await self._given(host, manner, in_turn)
        except Busy as busy:
            rest_s, wait_s = None, busy.wait_s
        finally:  # whatever was raised: a request in flight that nobody ends would keep the host for ever
            if rest_s is None:
                self._frontier.unsent(host, wait_s)
            else:
                self._frontier.finished(host, rest_s)

    async def _given(self, host: Host, manner: Manner, in_turn: bool) -> float | None:
        """How long the host rests beside its delay, with its rules or without; None where it was not asked.

        Raises: Busy: nor was it asked.
        """
        cached = self._cached(host, time.time())
        if cached is not None:
            wait_s = self.rules.wait_s(cached.body, manner.token, time.monotonic())
            if wait_s > 0 and not in_turn:
                return wait_s
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._use(host, manner, cached, cached.left_s(self._access.ttl_s, time.time()))
            return None
        url = f"{host.key}/robots.txt"
        if self._caution.gives_up(url):
            log.error("crash_loop", url=url, then="nothing of its host is asked for")
            self._close(host, CRASH_LOOP, Answer(None), manner)
            return None
        attempts = host.robots_attempts
        since_s = time.monotonic() - host.robots_since if attempts else 0.0
        is_last = self._access.is_last(attempts + 1, since_s)
        within_s = self._patience.within_s(host, manner.rules.timeout_s, attempts, is_last=is_last)
        answer = await self._answer(url, manner, in_turn, within_s)
        return self._answered(host, manner, answer, is_cut_short=within_s is not None and answer.error == "timeout")

    async def _answer(self, url: str, manner: Manner, waits: bool, within_s: float | None) -> Answer:
        """The answer at the end of redirects. Another host is asked in its turn.

        Raises: Busy: nobody was asked.
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
                with self._hosts.visiting(home):  # hosts that redirect to each other wait for requests, not for waits
                    answer = await self._elsewhere(home, url, manner)
        return answer

    async def _elsewhere(self, home: str, url: str, manner: Manner) -> Answer:
        """What another host answers, in its turn."""
        answer = None
        while answer is None:
            await self._hosts.turn(url)
            ask = partial(self._hosts.ask, url, partial(self._get, manner, url), manner)
            answer = await self._caution.asked(home, partial(self._addresses.in_turn, url, ask, manner.rules))
        return answer

    async def _get(self, manner: Manner, url: str, within_s: float | None = None) -> Answer:
        asker = Asker(bodies=self._bodies)
        answer = await self._transport.get(
            HttpRequest(url, any_type=True, max_bytes=MAX_BYTES, manner=manner, asker=asker, within_s=within_s)
        )
        answer.held.give()  # it is read at once
        return answer

    def _answered(self, host: Host, manner: Manner, answer: Answer, *, is_cut_short: bool) -> float | None:
        """As `_given`, by what the answer means.

        Args:
            is_cut_short: Whether it had less than the usual time: a slow host may need all of it, so it is asked again.
        """
        now = time.monotonic()
        self._patience.heard(host, answer, is_page=False)
        if not host.robots_attempts:
            host.robots_since = now
        attempt, since_s = host.robots_attempts + 1, now - host.robots_since
        is_last = self._access.is_last(attempt, since_s) and not is_cut_short
        meant = self._access.judged(answer, time.time(), attempt, _jitter(), manner, is_last=is_last)
        if isinstance(meant, Later):
            host.robots_attempts = attempt
            return meant.wait_s
        if isinstance(meant, Counts):
            host.partition.cache(robots_answer.key(host.key), robots_answer.pack(meant))
            self._use(host, manner, meant, self._access.ttl_s)
        else:
            self._close(host, meant.reason, answer, manner)
        return None if answer.private else 0.0

    def _cached(self, host: Host, now: float) -> Counts | None:
        stored = host.partition.cached(robots_answer.key(host.key))
        if stored is None:
            return None
        rules = robots_answer.read(stored)
        return rules if rules.left_s(self._access.ttl_s, now) > 0 else None

    def _use(self, host: Host, manner: Manner, counts: Counts, left_s: float) -> None:
        host.rules = self.rules.rules(counts.body, manner.token)
        host.rules_until = time.monotonic() + left_s
        host.unreachable = ""
        host.robots_attempts = 0
        host.wish_s = host.rules.crawl_delay_s(manner.token)

    @staticmethod
    def _close(host: Host, reason: str, answer: Answer, manner: Manner) -> None:
        """Nothing of the host is asked for; but by jobs that have what would open it, where there is such a setting."""
        until = time.monotonic() + UNREACHABLE_TTL_S
        host.robots_attempts = 0
        setting = opens(answer)
        if setting and not manner.has(setting):
            host.close(setting, reason, until)
            return
        host.rules, host.rules_until = RobotsRules.disallow_all(), until
        host.unreachable = reason
