"""What pages in the browser ask for: fetched by the worker itself, under the rules for pages, one host at a time.

The browser has no network, so each request of a page comes here. It meets the operator's commands, the host's
robots.txt, its rest (the dispatcher's own, where the host is ours), the egress guard at each hop of a redirect, and the
page's budget. What is the same for all pages, such as scripts, is remembered.

Login and cookies go only with what a document asks of its own origin: a sandboxed frame has none, and a request that
comes back by way of another origin is that one's (Fetch 4.4). What another origin answered, at any hop, a page gets as
a browser would give it: for its scripts to read only if that origin's headers let it (CORS). Playwright would have
every answer pass, so that is decided here. A page from a public address gets nothing from a private one, also where
`network.allow_private` lets the crawl go there.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakValueDictionary

from crawlog.streams.canonical import InvalidUrl, serialise
from crawlog.streams.domain import Place
from crawlog.streams.frontier import Frontier, Host
from crawlog.streams.outbound import origin_of
from crawlog.streams.rendering import CACHED, Cors, Wish, forwarded, refusal

from .http import REDIRECTS, Answer, Asker, Client
from .room import Room

if TYPE_CHECKING:
    from crawlog.streams.frontier import Owned
    from crawlog.streams.settings import Settings

HOPS = 10
"""Redirects of one request that are followed."""

BUSY_S = 0.05
"""Between two looks at a host that is busy with its pages."""

FOREIGN_HOSTS = 1_000
"""Hosts of other workers' partitions that are remembered, those asked last."""


ENTRY_BYTES = 1_000
"""Of memory for each answer that is remembered, beside its body and its URL."""


class Budget:
    """What one page may still ask for.

    Attributes:
        job: Whose cookies are sent to a document's own origin, and whose scripts are remembered.
        is_inside: The page came from a private address, and may ask others.
    """

    def __init__(self, job: str, requests: int, size_bytes: int, *, is_inside: bool) -> None:
        self.job = job
        self.is_inside = is_inside
        self.requests = requests
        self.size_bytes = size_bytes


class _Elsewhere:
    """Stands for the partitions of others: their hosts are asked beside the queue only, and nothing of them is kept.

    Attributes:
        hosts: None is the dispatcher's, so it sends none to sleep.
    """

    hosts: Mapping[str, Host] = {}

    def cache(self, key: bytes, value: bytes) -> None:
        """A host remembers its rules itself."""

    def cached(self, _key: bytes) -> None:
        """Nothing is kept."""


class _Scripts:
    """Answers that are the same for every page of a job, the newest `most_bytes` of them.

    What was answered to a login or a cookie is kept apart from what anybody is answered.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._size = 0
        self._known: OrderedDict[_Asked, Answer] = OrderedDict()

    def get(self, asked: "_Asked") -> Answer | None:
        answer = self._known.get(asked)
        if answer is not None:
            self._known.move_to_end(asked)
        return answer

    def keep(self, asked: "_Asked", answer: Answer) -> None:
        size = _size_of(asked, answer)
        if answer.http != 200 or not answer.kept or size > self._most or asked in self._known:
            return
        self._known[asked] = answer
        self._size += size
        while self._size > self._most:
            self._size -= _size_of(*self._known.popitem(last=False))


class _Asked(NamedTuple):
    """A request for a script or its like."""

    job: str
    url: str
    anonymous: bool
    origin: str = ""
    is_inside: bool = False


def _size_of(asked: _Asked, answer: Answer) -> int:
    """Bytes that an answer takes in memory, about; an empty one takes some too."""
    return len(answer.body) + len(asked.url) + ENTRY_BYTES


class Resources:
    """Fetches what pages in the browser ask for.

    Args:
        place: Where a URL belongs.
        ask_rules: Gives a host its rules; the request for them counts among the host's in flight, and it ends that.
        rest_of: How long a host must rest after an answer, beside its delay.
    """

    def __init__(
        self,
        settings: "Settings",
        client: Client,
        frontier: Frontier,
        place: Callable[[str], Place],
        ask_rules: Callable[[Host], Awaitable[None]],
        rest_of: Callable[[Host, Answer, float], float],
    ) -> None:
        self._settings = settings
        self._client = client
        self._frontier = frontier
        self._ask_rules = ask_rules
        self._rest_of = rest_of
        self._place = place
        self._scripts = _Scripts(settings.render.cache_bytes)
        self._room = Room(settings.render.max_bytes)
        self._foreign: OrderedDict[str, Host] = OrderedDict()
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._visited: Counter[str] = Counter()

    @contextmanager
    def visiting(self, url: str) -> Iterator[None]:
        """A page is in the browser: it holds its host's place, and is no request under way."""
        host = self._host(url)
        host.rest(time.monotonic() + host.delay_s)
        self._visited[host.key] += 1
        try:
            yield
        finally:
            self._visited[host.key] -= 1
            if not self._visited[host.key]:
                del self._visited[host.key]

    async def get(self, wish: Wish, headers: Mapping[str, str], budget: Budget) -> Answer:
        """What a page asks for, or an answer whose error says why not.

        Raises: LeaseLost: the worker may not ask.
        """
        refused = refusal(wish, self._settings.render.block)
        if refused:
            return Answer(None, refused)
        url, cors = wish.url.partition("#")[0], Cors(wish)
        for _ in range(HOPS + 1):
            is_anonymous = origin_of(url) != wish.origin or cors.origin != ""
            asked = _Asked(budget.job, url, is_anonymous, cors.origin, budget.is_inside)
            answer = await self._hop(asked, wish.kind in CACHED, headers, budget)
            if answer.http is not None and not cors.permits(answer.allow_origin):
                return Answer(None, "cors")
            if answer.http not in REDIRECTS or not answer.location:
                return answer
            try:
                url = serialise(answer.location, url).partition("#")[0]
            except InvalidUrl:
                return Answer(None, "bad_url")
            if not cors.follows(url):
                return Answer(None, "cors")
        return Answer(None, "redirects")

    async def _hop(self, asked: _Asked, is_static: bool, headers: Mapping[str, str], budget: Budget) -> Answer:
        host = self._host(asked.url)
        gate = self._gates.get(host.key)
        if gate is None:
            gate = self._gates[host.key] = asyncio.Lock()
        async with gate:
            known = self._scripts.get(asked) if is_static else None
            if known is not None:
                return known
            refused = "" if asked.is_inside else await self._client.closed_to_public(asked.url)
            refused = refused or await self._refusal(asked.url)
            if not refused and (budget.requests <= 0 or budget.size_bytes <= 0):
                refused = "budget"
            if refused:
                return Answer(None, refused)
            budget.requests -= 1
            answer = await self._answer(asked, headers)
        budget.size_bytes -= len(answer.body)
        if is_static:
            self._scripts.keep(asked, answer)
        return answer

    async def _refusal(self, url: str) -> str:
        """Why a host is not asked; empty when it may be."""
        host = self._host(url)
        if host.orders.blocked or host.orders.paused:
            return "control"
        if not self._settings.robots.obey:
            return ""
        if host.rules is None or time.monotonic() >= host.rules_until:
            host = await self._turn(url)
            host.in_flight += 1
            await self._ask_rules(host)
        if host.rules is None:
            return "robots_unreachable"
        return "" if host.rules.allowed(url, self._settings.robots.token)[0] else host.unreachable or "robots"

    async def _answer(self, asked: _Asked, headers: Mapping[str, str]) -> Answer:
        """What the host answers, once its turn is also one of its address, which is not held while the host rests."""
        answer = None
        while answer is None:
            await self._turn(asked.url)
            answer = await self._client.addresses.in_turn(asked.url, partial(self._asked, asked, headers))
        return answer

    async def _asked(self, asked: _Asked, headers: Mapping[str, str]) -> Answer | None:
        """What the host answers; None where it was asked by others meanwhile."""
        host = self._host(asked.url)
        if self._wait_s(host) > 0:
            return None
        host.in_flight += 1
        host.rest(time.monotonic() + host.delay_s)
        rest_s = 0.0
        try:
            sent = forwarded(headers) | ({"Origin": asked.origin} if asked.origin else {})
            answer = await self._client.get(
                asked.url,
                any_type=True,
                job=asked.job,
                headers=sent,
                asker=Asker(asked.anonymous, is_public=not asked.is_inside, room=self._room),
            )
            answer.held.give()  # a page's budget bounds what its browser is given
            rest_s = self._rest_of(host, answer, time.time())
        finally:
            self._frontier.finished(host, rest_s)
        return answer

    async def _turn(self, url: str) -> Host:
        """The host, once it may be asked: it has rested, and as many requests as allowed are not under way.

        Its entry is looked up each time: the dispatcher may let it go meanwhile.
        """
        while True:
            host = self._host(url)
            wait_s = self._wait_s(host)
            if wait_s <= 0:
                return host
            await asyncio.sleep(wait_s)

    def _wait_s(self, host: Host) -> float:
        """Seconds until the next look at a host is worth it; 0 where it may be asked now."""
        is_busy = host.in_flight - self._visited[host.key] >= self._settings.politeness.per_host
        return max(host.next_at - time.monotonic(), BUSY_S if is_busy else 0.0)

    def _host(self, url: str) -> Host:
        """The dispatcher's own entry where the host's partition is ours; else one that this worker alone keeps."""
        place = self._place(url)
        host = self._frontier.lend(place)
        if host is not None:
            return host
        host = self._foreign.get(place.host)
        if host is None:
            elsewhere = cast("Owned", _Elsewhere())  # such a host has no queue: only its cache is asked
            host = Host(place.host, place.domain, elsewhere, self._settings.politeness.delay_s)
            self._forget()
            self._foreign[place.host] = host
        self._foreign.move_to_end(place.host)
        self._frontier.order(host)
        return host

    def _forget(self) -> None:
        """Let go of the hosts asked longest ago that need no rest."""
        if len(self._foreign) < FOREIGN_HOSTS:
            return
        now = time.monotonic()
        for key in [key for key, host in self._foreign.items() if not host.in_flight and host.next_at <= now][:100]:
            if len(self._foreign) >= FOREIGN_HOSTS:
                del self._foreign[key]
