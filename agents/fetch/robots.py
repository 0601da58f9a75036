"""Gives hosts the rules of their robots.txt: from the cache beside the state, else by a request; follows redirects.

`streams/fetch/robots_answer.py` decides what an answer means. A redirect to another host waits for that host's turn.
Meanwhile it holds no turn of `suspects` and, like every late request, no place.
"""

import asyncio
import random
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.client import BUSY_S, Addresses, Asker, BodyBudget, Busy, HttpRequest, Transport
from crawlog.agents.frontier import HostHeld, Hosts, OwnedFrontier
from crawlog.schemas import pages as pg
from crawlog.schemas.hosts import MAX_RULE, MAX_RULES, HostRobots
from crawlog.streams.fetch import CONTROL, CRASH_LOOP, opens, robots_answer
from crawlog.streams.frontier import NO_TRIES, Host, Patience, Tries
from crawlog.streams.http import Answer
from crawlog.streams.requests import RequestPolicy
from crawlog.streams.robots import MAX_BYTES, SharedRules
from crawlog.streams.url import serialise

from .suspects import Caution

if TYPE_CHECKING:
    from crawlog.streams.fetch import Pressure
    from crawlog.streams.frontier import Task
    from crawlog.streams.log import Producer

log = structlog.get_logger()

# A separate budget for large robots.txt: a page in the browser may need one while it already holds body memory.
RULES_BYTES = 8 << 20

MOST_REDIRECTS = 5  # RFC 9309 2.3.1.2: at least five

# Pause of a host whose robots.txt is at another one that a command pauses: until then it is asked in vain.
HELD_S = 30.0

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
        stage: OwnedFrontier,
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
        self._access = robots_answer.Access(settings.robots)
        self._bodies = BodyBudget(RULES_BYTES)
        self.rules = SharedRules()

    async def give(self, host: Host, policy: RequestPolicy, *, in_turn: bool = False) -> None:
        """Give a host its rules, and end the host's request in flight.

        Args:
            policy: Of the job that needs the rules.
            in_turn: Wait while the address is busy; else the host comes again later.

        Raises: LeaseLost: this worker may not send the request.
        """
        rest_s: float | None = BUSY_S
        wait_s = 0.0
        try:
            rest_s = await self._given(host, policy, in_turn)
        except Busy as busy:
            rest_s, wait_s = None, busy.wait_s
        except HostHeld:
            rest_s = HELD_S
        finally:  # after any exception: a request in flight that does not end would block its host for ever
            if rest_s is None:
                self._frontier.unsent(host, wait_s)
            else:
                self._frontier.finished(host, rest_s)

    async def _given(self, host: Host, policy: RequestPolicy, in_turn: bool) -> float | None:
        """Seconds that the host rests beside its delay; None if no request was sent.

        Raises: Busy, HostHeld: as `_answer`.
        """
        if (rest_s := self._rest_left_s(host)) > 0:
            return rest_s
        cached = self._cached(host, policy)
        left_s = cached.left_s(self._access.ttl_s, time.time()) if cached is not None else 0.0
        if cached is not None and left_s > 0:
            wait_s = self.rules.wait_s(cached.body, policy.token, time.monotonic())
            if wait_s > 0 and not in_turn:
                return wait_s
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._use(host, policy, cached, left_s - wait_s)
            return None
        url = f"{host.key}/robots.txt"
        if self._caution.gives_up(url):
            log.error("crash_loop", url=url, then="nothing of its host is asked for")
            self._close(host, CRASH_LOOP, Answer(None), policy)
            return None
        (failed, _, since), now = host.tries.get(policy.asking, NO_TRIES), time.monotonic()
        is_last = self._access.is_last(failed + 1, now - since if failed else 0.0)
        within_s = self._patience.within_s(host, policy.rules.timeout_s, failed, is_last=is_last)
        try:
            answer = await self._answer(url, policy, in_turn, within_s)
        except HostHeld:
            if cached is None:
                raise
            answer = Answer(None, CONTROL)  # the older rules count on, however long the other host is paused
        return self._answered(host, policy, answer, is_cut_short=within_s is not None and answer.error == "timeout")

    async def _answer(self, url: str, policy: RequestPolicy, waits: bool, within_s: float | None) -> Answer:
        """The answer after all redirects. A request to another host waits for its turn.

        Raises:
            Busy: no request was sent.
            HostHeld: it is at a host that is paused.
        """
        addresses, home, get = self._addresses, url, partial(self._get, policy)
        ask = addresses.in_turn if waits else addresses.at_once
        answer = await self._caution.asked(url, partial(ask, url, partial(get, url, within_s), policy.rules))
        is_home = True
        for _ in range(MOST_REDIRECTS):
            target = answer.target(url)
            if not target:
                break
            url = target
            is_home = is_home and self._place(url).host == self._place(home).host
            if is_home:
                in_turn = partial(addresses.in_turn, url, partial(get, url), policy.rules)
                answer = await self._caution.asked(home, in_turn)
            else:
                with self._hosts.visiting(home):  # two hosts that redirect to each other do not wait for each other
                    answer = await self._elsewhere(home, url, policy)
        return answer

    async def _elsewhere(self, home: str, url: str, policy: RequestPolicy) -> Answer:
        """The answer of another host, requested in its turn; of a blocked one, that it cannot be had.

        Raises: HostHeld: it is paused.
        """
        answer = None
        try:
            while answer is None:
                await self._hosts.turn(url)
                ask = partial(self._hosts.ask, url, partial(self._get, policy, url), policy)
                answer = await self._caution.asked(home, partial(self._addresses.in_turn, url, ask, policy.rules))
        except HostHeld as held:
            if not held.is_blocked:
                raise
            return Answer(None, CONTROL)
        return answer

    async def _get(self, policy: RequestPolicy, url: str, within_s: float | None = None) -> Answer:
        asker = Asker(bodies=self._bodies)
        answer = await self._transport.get(
            HttpRequest(url, any_type=True, max_bytes=MAX_BYTES, policy=policy, asker=asker, within_s=within_s)
        )
        answer.held.give()  # the body is used at once
        return answer

    def _answered(self, host: Host, policy: RequestPolicy, answer: Answer, *, is_cut_short: bool) -> float | None:
        """Apply the answer; returns as `_given`.

        Args:
            is_cut_short: Whether it timed out before the usual time: a slow host may need all of it, so the request is
                repeated.
        """
        now = time.monotonic()
        self._patience.heard(host, answer, is_page=False)
        failed, lost, since = host.tries.get(policy.asking, NO_TRIES)
        if answer.by_proxy:
            attempt = lost = lost + 1
            is_last = attempt >= policy.rules.attempts  # as for a page
        else:
            attempt = failed = failed + 1
            since = since if failed > 1 else now
            is_last = self._access.is_last(attempt, now - since) and not is_cut_short
        meant = self._access.judged(answer, time.time(), attempt, _jitter(), policy, is_last=is_last)
        rest_s = 0.0
        wait_s = 0.0 if isinstance(meant, robots_answer.Counts) else meant.wait_s
        rests = "" if not wait_s else "retry_after" if answer.retry_after else "backoff"
        self._frontier.ledger.answered(host, answer, time.time(), rests, is_page=False)
        if not answer.by_proxy:
            self._keep_rest(host, wait_s)
        if isinstance(meant, robots_answer.Later):
            host.tries[policy.asking] = Tries(failed, lost, since)
            return meant.wait_s
        if isinstance(meant, robots_answer.Unreachable) and (older := self._cached(host, policy)) is not None:
            rest_s, meant = meant.wait_s, older.kept(time.time())
        if isinstance(meant, robots_answer.Counts):
            key = robots_answer.key(host.key, meant.counts_for(policy.asking))
            host.partition.cache(key, robots_answer.pack(meant))
            self._use(host, policy, meant, meant.left_s(self._access.ttl_s, time.time()))
        else:
            self._close(host, meant.reason, answer, policy)
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
    def _cached(host: Host, policy: RequestPolicy) -> robots_answer.Counts | None:
        """The rules that were read last for a policy, however old."""
        keys = robots_answer.key(host.key), robots_answer.key(host.key, policy.asking)
        rows = [robots_answer.read(row) for key in keys if (row := host.partition.cached(key)) is not None]
        return max(rows, key=lambda row: (row.fetched_at, row.unreachable_at), default=None)

    def _use(self, host: Host, policy: RequestPolicy, counts: robots_answer.Counts, left_s: float) -> None:
        host.rules = self.rules.rules(counts.body, policy.token)
        host.rules_until = time.monotonic() + left_s
        host.rules_of = counts.counts_for(policy.asking)
        host.answered(host.rules_of)
        host.wish_s = host.rules.crawl_delay_s(policy.token)
        rules = [line[:MAX_RULE] for line in islice(host.rules.lines(policy.token), MAX_RULES)]
        read = HostRobots(round(counts.fetched_at), counts.status, rules=rules, delay_s=host.wish_s)
        self._frontier.ledger.robots(host, read)

    def _close(self, host: Host, reason: str, answer: Answer, policy: RequestPolicy) -> None:
        """Disallow the whole host to jobs that ask in the same way, or that lack a setting which would open it."""
        until = time.monotonic() + robots_answer.UNREACHABLE_TTL_S
        host.tries.pop(policy.asking, None)
        setting = opens(answer)
        if setting and not policy.has(setting):
            host.close(reason, until, to=setting)
        else:
            host.close(reason, until, asking=policy.asking)
        self._frontier.ledger.robots(host, HostRobots(round(time.time()), answer.http or 0, reason[:MAX_RULE]))


# Sends the Sitemap lines of a robots.txt to parse.

TOLD_HOSTS = 100_000  # Hosts whose sitemaps were sent, about 20 MB; at this number all of them are forgotten


class Sitemaps:
    """Sends each host's sitemaps to parse, once for each job in a worker's life.

    A restart, or two tasks at a time, send them again; parse ignores known ones.
    """

    def __init__(self, producer: "Producer", topic: str, pressure: "Pressure") -> None:
        self._producer = producer
        self._topic = topic
        self._pressure = pressure
        self._told: set[tuple[str, int, str]] = set()

    async def told(self, task: "Task") -> None:
        """Send the sitemaps of this URL's host if its job wants them; returns once the log has them."""
        rules, spec = task.host.rules, task.job.spec
        if not spec.sitemaps or not task.policy.rules.robots or rules is None or not rules.sitemaps:
            return
        key = (task.job.name, task.epoch, task.host.key)
        if key in self._told:
            return
        url = serialise(f"{task.host.key}/robots.txt")
        meta = pg.PageMeta(
            url, task.job.name, rev=spec.rev, epoch=task.epoch, http=200, fetched_at=time.time(), kind="robots"
        )
        await self._sent(task, meta, "\n".join(rules.sitemaps).encode("utf-8", "replace"))
        if len(self._told) >= TOLD_HOSTS:
            self._told.clear()
        self._told.add(key)

    async def _sent(self, task: "Task", meta: pg.PageMeta, lines: bytes) -> None:
        in_log: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acknowledged(partition: int, offset: int) -> None:
            self._pressure.wrote(partition, offset, len(lines))
            if not in_log.done():
                in_log.set_result(None)

        self._producer.send(
            self._topic,
            lines,
            key=task.domain.encode(),
            partition=task.partition.fold.partition,
            headers=[(pg.HEADER, pg.encode(meta))],
            on_delivery=acknowledged,
        )
        await in_log
