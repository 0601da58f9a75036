"""Requests that the code of spiders and pipelines makes by itself: `crawler.engine.download(request)`.

    child ─ DownloadAsk ─► Downloads.got ─► turn of the host ─► robots.txt ─► client, behind the egress guard
      ▲                                        │ job or host paused: wait; blocked: refused      │ another attempt
      └─────────── the answer as a page ◄──────┴───────────────────────────────────────────────◄─┘

They are no part of the log: a page or an item that is handled again after a kill asks again. The job's own rules hold
for them: headers, attempts, times, robots.txt, proxies. Between two requests of this worker to one host lies the job's
delay, or the longer one that robots.txt or a command wants; the fetch stage, which owns the host, knows nothing of
them. So a host gets at most one more stream of requests from each worker that runs such code.
"""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog
from msgspec import structs

from crawlog import __version__
from crawlog.schemas.control import Command, Control, JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import CanonicalRules, JobSpec
from crawlog.streams.fetch import Retrying, outcome, robots_answer
from crawlog.streams.frontier import crawl_delay_s
from crawlog.streams.http import Answer
from crawlog.streams.job_spec import limits_of, own_policy
from crawlog.streams.jobs import Commands
from crawlog.streams.requests import RequestPolicy, policy_for, policy_of
from crawlog.streams.robots import MAX_BYTES, RobotsRules
from crawlog.streams.url import Canonicaliser, InvalidUrl, Places

from .client import Client, HttpRequest

if TYPE_CHECKING:
    from crawlog.streams.downloads import DownloadAsk
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

MOST_AT_ONCE = 16  # Requests in flight of one worker, as Scrapy's CONCURRENT_REQUESTS

MOST_WAIT_S = 60.0  # Longest wait for another attempt: an answer that asks for a longer one is final

MOST_REDIRECTS = 5  # Of a robots.txt (RFC 9309 2.3.1.2)

MOST_HOSTS = 10_000  # Hosts that are remembered

LOOK_S = 0.5  # Time between two looks whether a pause has ended

_canonical = Canonicaliser(CanonicalRules(verbatim=True)).canonical
_place = Places(1).of
_jitter = random.random  # spreads retries, no secret


class _ReadRobots(NamedTuple):
    """A robots.txt, or why there is none; asked for again at `until`, UTC epoch seconds."""

    rules: RobotsRules | None
    reason: str
    until: float


class _Host:
    """One host: its requests begin one after the other, in the order of asking.

    Attributes:
        ready_s: When the next request may begin. The first waits for one delay, too: this worker may follow a dead one.
        robots: By the way of asking.
    """

    def __init__(self, key: str, delay_s: float) -> None:
        self.key = key
        self.line = asyncio.Lock()
        self.freed = asyncio.Event()
        self.in_flight = 0
        self.ready_s = time.monotonic() + delay_s
        self.robots: dict[bytes, _ReadRobots] = {}

    def rest(self, delay_s: float) -> None:
        self.ready_s = max(self.ready_s, time.monotonic() + delay_s)


class Downloads:
    """Makes the requests of all children of one worker."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._usual, self._limits = own_policy(settings), limits_of(settings)
        self._most_bytes = settings.pipelines.max_file_mb << 20
        self._specs: dict[str, JobSpec] = {}
        self._commands = Commands()
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._access = robots_answer.Access(settings.robots)
        self._retrying = Retrying(_jitter)
        self._client: Client | None = None

    def heard(self, record: Control) -> None:
        """Take the next record of crawl.control."""
        if isinstance(record, JobCopy):
            self._specs[record.job] = record.spec
        elif isinstance(record, Command):
            self._commands.take(record)

    async def run(self) -> None:
        """Close the connections when this is cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._client is not None:
                await self._client.close()

    @asynccontextmanager
    async def got(self, job: str, ask: "DownloadAsk") -> AsyncIterator[tuple[PageMeta, bytes]]:
        """The answer, whose body is held in memory until the context ends. Any failure is an answer."""
        answer = Answer(None)
        try:
            answer = await self._final(job, ask)
        except Exception as error:
            log.exception("download_broken", job=job, url=ask.url)
            answer.error = f"broken: {type(error).__name__}: {error}"
        try:
            yield outcome.asked(ask.url, job, answer, ask.request, time.time()), answer.body
        finally:
            answer.held.give()

    async def _final(self, job: str, ask: "DownloadAsk") -> Answer:
        """The answer after all attempts."""
        try:
            url = _canonical(ask.url)
        except InvalidUrl as error:
            return Answer(None, f"bad_url: {error}")
        policy = self._policy(job, ask)
        host, attempt = self._host(_place(url).host, policy), 0
        while True:
            attempt += 1
            answer = await self._turn(host, job, url, policy, ask)
            if isinstance(answer, str):
                return Answer(None, answer)
            least_s = self._retrying.asked_s(answer, time.time(), policy)
            host.rest(least_s)
            again = self._retrying.again(answer, attempt, least_s, policy, ask.request)
            if again is None or again.wait_s > MOST_WAIT_S:
                return answer
            answer.held.give()
            await asyncio.sleep(again.wait_s)

    def _policy(self, job: str, ask: "DownloadAsk") -> RequestPolicy:
        spec = self._specs.get(job)
        policy = self._usual if spec is None else policy_of(spec, self._usual, self._limits)
        policy = policy_for(ask.request, policy, self._limits)
        most = min(ask.max_bytes or self._most_bytes, self._most_bytes)
        return policy._replace(rules=structs.replace(policy.rules, max_body_bytes=most))

    def _host(self, key: str, policy: RequestPolicy) -> _Host:
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = _Host(key, policy.rules.delay_s)
            if len(self._hosts) > MOST_HOSTS:
                self._hosts.popitem(last=False)
        self._hosts.move_to_end(key)
        return host

    async def _turn(self, host: _Host, job: str, url: str, policy: RequestPolicy, ask: "DownloadAsk") -> Answer | str:
        """The answer to one attempt, in the host's turn; or why there is none."""
        async with host.line:
            if refusal := await self._held(host, job) or await self._robots_refusal(host, url, policy):
                return refusal
            while host.in_flight >= policy.rules.per_host:
                host.freed.clear()
                await host.freed.wait()
            await self._rested(host)
            host.in_flight += 1
            host.rest(self._delay_s(host, job, policy))
        try:
            return await self._get(HttpRequest(url, True, None, job, policy=policy, record=ask.request), policy)
        finally:
            host.in_flight -= 1
            host.rest(self._delay_s(host, job, policy))
            host.freed.set()

    async def _held(self, host: _Host, job: str) -> str:
        """Wait while a command pauses the job or the host. Returns: Why nothing is asked; empty if it may be."""
        while True:
            spec, orders = self._specs.get(job), self._commands.of_host(host.key)
            if orders.stopped:
                return "control: a command blocks the host"
            if spec is not None and spec.state in ("cancelled", "deleted"):
                return f"control: the job is {spec.state}"
            if not (orders.paused or self._commands.of_job(job).paused or (spec and spec.state == "paused")):
                return ""
            await asyncio.sleep(LOOK_S)

    @staticmethod
    async def _rested(host: _Host) -> None:
        while (wait_s := host.ready_s - time.monotonic()) > 0:  # noqa: ASYNC110  # an answer that comes meanwhile may ask for more
            await asyncio.sleep(wait_s)

    def _delay_s(self, host: _Host, job: str, policy: RequestPolicy) -> float:
        read, rules = host.robots.get(policy.asking), policy.rules
        wish_s = read.rules.crawl_delay_s(policy.token) if read is not None and read.rules is not None else None
        slow_s = max(self._commands.of_host(host.key).slow_s, self._commands.of_job(job).slow_s)
        return max(crawl_delay_s(rules.delay_s, wish_s, rules.max_delay_s), slow_s)

    async def _get(self, request: HttpRequest, policy: RequestPolicy) -> Answer:
        if self._client is None:
            self._client = Client(self._settings, f"crawlog/{__version__}", lambda: True)
        client = self._client
        async with self._at_once:
            ask = partial(client.get, request._replace(all_headers=True))
            return await client.addresses.in_turn(request.url, ask, policy.rules)

    # robots.txt.

    async def _robots_refusal(self, host: _Host, url: str, policy: RequestPolicy) -> str:
        """Why robots.txt lets the job not ask for a URL; empty if it does."""
        if not policy.rules.robots:
            return ""
        read = host.robots.get(policy.asking)
        if read is None or read.until < time.time():
            read = host.robots[policy.asking] = await self._read_robots(host, policy)
        if read.rules is None:
            return f"robots_unreachable: {read.reason}"
        allowed, rule = read.rules.allowed(url, policy.token)
        return "" if allowed else f"robots: {rule}"

    async def _read_robots(self, host: _Host, policy: RequestPolicy) -> _ReadRobots:
        began_s, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            answer = await self._robots_answer(host, policy)
            is_last = self._access.is_last(attempt, time.monotonic() - began_s)
            meant = self._access.judged(answer, time.time(), attempt, _jitter(), policy, is_last=is_last)
            if isinstance(meant, robots_answer.Counts):
                return _ReadRobots(RobotsRules.parse(meant.body), "", time.time() + self._access.ttl_s)
            if isinstance(meant, robots_answer.Unreachable):
                return _ReadRobots(None, meant.reason, time.time() + robots_answer.UNREACHABLE_TTL_S)
            host.rest(meant.wait_s)

    async def _robots_answer(self, host: _Host, policy: RequestPolicy) -> Answer:
        """The answer after redirects."""
        url = f"{host.key}/robots.txt"
        for _ in range(MOST_REDIRECTS + 1):
            await self._rested(host)
            answer = await self._get(HttpRequest(url, True, MAX_BYTES, policy=policy), policy)
            answer.held.give()  # it is read at once
            host.rest(policy.rules.delay_s)
            if not (target := answer.target(url)):
                break
            url = target
        return answer
