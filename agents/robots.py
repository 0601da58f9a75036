"""Gives hosts their robots.txt: from the cache beside the state, else by asking, across redirects to other hosts.

What an answer means is decided in `streams/access.py`. A robots.txt that redirects to another host is asked there in
that host's turn; who waits for such a turn keeps no place, and no turn of the suspects'.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import structlog

from crawlog.streams import access
from crawlog.streams.access import UNREACHABLE_TTL_S, Access, Counts, Later
from crawlog.streams.answers import Answer
from crawlog.streams.outcomes import CRASH_LOOP
from crawlog.streams.politeness import crawl_delay_s
from crawlog.streams.queues import Host
from crawlog.streams.robots import MAX_BYTES, RobotsRules, Shared

from .addresses import BUSY_S
from .caution import Caution
from .frontier import Stage
from .hosts import Hosts
from .http import Asker, Client
from .room import Room

log = structlog.get_logger()

RULES_BYTES = 8 << 20
"""Of large robots.txt so much is read at a time: a page in the browser, which holds room for its body, may need one."""

MOST_REDIRECTS = 5
"""RFC 9309 2.3.1.2: at least five."""

_jitter = random.random  # spreads retries, no secret; the one generator that a fork seeds anew

Aside = Callable[[], AbstractContextManager[None]]


class Robots:
    """Robots.txt of the hosts that this worker asks.

    Args:
        aside: Entered while the dispatcher's request waits for the turn of another host.

    Attributes:
        rules: Those in memory, once for all hosts with the same file.
    """

    def __init__(
        self,
        stage: Stage,
        client: Client,
        hosts: Hosts,
        caution: Caution,
        aside: Aside,
    ) -> None:
        settings = stage.settings
        self._settings = settings
        self._frontier = stage.frontier
        self._place = stage.place
        self._client = client
        self._hosts = hosts
        self._caution = caution
        self._aside = aside
        self._access = Access(settings.robots, settings.fetch, settings.politeness)
        self._room = Room(RULES_BYTES)
        self.rules = Shared(settings.robots.token)

    async def give(self, host: Host, *, in_turn: bool = False) -> None:
        """Give a host its rules; the request counts among its own in flight, and that ends here.

        Args:
            in_turn: Wait where its address is busy; else the host is to come again.

        Raises: LeaseLost: this worker may not ask for them.
        """
        cached = self._cached(host, time.time())
        if cached is not None:
            wait_s = self.rules.wait_s(cached.body, time.monotonic())
            if wait_s > 0 and not in_turn:
                self._frontier.finished(host, wait_s)
                return
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._use(host, cached, cached.left_s(self._access.ttl_s, time.time()))
            self._frontier.unsent(host)
            return
        url = f"{host.key}/robots.txt"
        if self._caution.gives_up(url):
            log.error("crash_loop", url=url, then="nothing of its host is asked for")
            self._close(host, CRASH_LOOP)
            self._frontier.unsent(host)
            return
        try:
            answer = await self._answer(url, in_turn)
        except BaseException:
            self._frontier.finished(host)
            raise
        if answer is None:
            self._frontier.finished(host, BUSY_S)
        else:
            self._answered(host, answer)

    async def _answer(self, url: str, in_turn: bool) -> Answer | None:
        """The answer at the end of redirects; None when the address is busy. Another host is asked in its turn."""
        addresses, home = self._client.addresses, url
        ask = addresses.in_turn if in_turn else addresses.at_once
        answer = await self._caution.asked(url, partial(ask, url, partial(self._get, url)))
        if answer is None:
            return None
        is_home = True
        for _ in range(MOST_REDIRECTS):
            target = answer.target(url)
            if not target:
                break
            url = target
            is_home = is_home and self._place(url).host == self._place(home).host
            if is_home:
                answer = await self._caution.asked(home, partial(addresses.in_turn, url, partial(self._get, url)))
            else:
                with self._hosts.visiting(home):  # hosts that redirect to each other wait for requests, not for waits
                    answer = await self._elsewhere(home, url, in_turn)
        return answer

    async def _elsewhere(self, home: str, url: str, in_turn: bool) -> Answer:
        """What another host answers, in its turn."""
        answer = None
        while answer is None:
            with nullcontext() if in_turn else self._aside():
                await self._hosts.turn(url)
            ask = partial(self._hosts.ask, url, partial(self._get, url))
            answer = await self._caution.asked(home, partial(self._client.addresses.in_turn, url, ask))
        return answer

    async def _get(self, url: str) -> Answer:
        answer = await self._client.get(url, any_type=True, max_bytes=MAX_BYTES, asker=Asker(room=self._room))
        answer.held.give()  # it is read at once
        return answer

    def _answered(self, host: Host, answer: Answer) -> None:
        now = time.monotonic()
        if not host.robots_attempts:
            host.robots_since = now
        attempt, since_s = host.robots_attempts + 1, now - host.robots_since
        meant = self._access.judged(answer, time.time(), attempt, since_s, _jitter())
        if isinstance(meant, Later):
            host.robots_attempts = attempt
            self._frontier.finished(host, meant.wait_s)
            return
        if isinstance(meant, Counts):
            host.partition.cache(access.key(host.key), access.pack(meant))
            self._use(host, meant, self._access.ttl_s)
        else:
            self._close(host, meant.reason)
        if answer.private:
            self._frontier.unsent(host)
        else:
            self._frontier.finished(host)

    def _cached(self, host: Host, now: float) -> Counts | None:
        stored = host.partition.cached(access.key(host.key))
        if stored is None:
            return None
        rules = access.read(stored)
        return rules if rules.left_s(self._access.ttl_s, now) > 0 else None

    def _use(self, host: Host, counts: Counts, left_s: float) -> None:
        settings = self._settings
        host.rules = self.rules.rules(counts.body)
        host.rules_until = time.monotonic() + left_s
        host.unreachable = ""
        host.robots_attempts = 0
        wish = host.rules.crawl_delay_s(settings.robots.token)
        host.delay_s = crawl_delay_s(settings.politeness.delay_s, wish, settings.politeness.max_delay_s)

    def _close(self, host: Host, reason: str) -> None:
        host.rules = RobotsRules.disallow_all()
        host.rules_until = time.monotonic() + UNREACHABLE_TTL_S
        host.unreachable = reason
        host.robots_attempts = 0
