"""Answers the requests of pages in the browser: the worker fetches them, under the same rules as pages.

The browser has no network, so each request of a page comes here. It is subject to the operator's commands, the host's
robots.txt and rest (the dispatcher's own rest, if the host is ours), the egress guard at each hop of a redirect, and
the page's budget. Scripts and similar answers, which are the same for all pages, are cached.

Login and cookies are sent only with a document's requests to its own origin. A sandboxed frame has no origin, and a
request redirected through another origin counts as cross-origin (Fetch 4.4). If another origin answers at any hop, the
page's scripts may read the answer only if that origin's headers allow it (CORS). Playwright would let every answer
pass, so CORS is checked here. A page from a public address gets no answer from a private one, even if
`network.allow_private` allows private addresses to the crawl.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from crawlog.agents.client import Asker, BodyBudget, Client, HttpRequest, Transport
from crawlog.agents.frontier import HostHeld, Hosts
from crawlog.schemas.requests import Action, RequestRecord
from crawlog.streams.fetch import CONTROL
from crawlog.streams.frontier import Host
from crawlog.streams.http import REDIRECTS, Answer
from crawlog.streams.job_spec import own_policy
from crawlog.streams.rendering import CACHED, NAVIGATION, Cors, Reach, Wish, forwarded, refusal
from crawlog.streams.requests import RequestPolicy, origin_of
from crawlog.streams.url import plain

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

HOPS = 10  # Most redirects followed for one request

MOST_REST_S = 5.0  # Rest of a host that failed, up to which a page waits for what it loads there

ENTRY_BYTES = 1_000  # Memory of a cached answer besides body and URL


class JobPage(NamedTuple):
    """What decides about the requests of a page of a job.

    Attributes:
        job: The job whose cookies and cached scripts are used.
        epoch: The job's; scripts of an earlier one are not used.
        reach: The hosts that the job's scope allows; None for all.
        policy: How its job asks; None for the worker's own policy.
        record: The page's request, whose jar of cookies counts; None for a plain GET.
    """

    job: str
    epoch: int = 0
    reach: Reach | None = None
    policy: RequestPolicy | None = None
    record: RequestRecord | None = None

    @property
    def actions(self) -> tuple[Action, ...]:
        """Those of its request; a page with any is driven."""
        return self.record.actions if self.record is not None else ()


class Budget:
    """The requests and bytes that one page may still fetch.

    Attributes:
        is_inside: The page came from a private address, and may reach other private addresses.
    """

    def __init__(self, page: JobPage, requests: int, size_bytes: int, *, is_inside: bool) -> None:
        self.page = page
        self.is_inside = is_inside
        self.requests = requests
        self.size_bytes = size_bytes


class _Scripts:
    """Cached answers that are the same for every page of a job's epoch: the most recently used, up to `most_bytes`.

    Answers to requests with a login or a cookie are kept apart from public ones.
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
        if answer.http != 200 or not answer.kept or answer.forbids_store:
            return
        if size > self._most or asked in self._known:
            return
        self._known[asked] = answer
        self._size += size
        while self._size > self._most:
            self._size -= _size_of(*self._known.popitem(last=False))


class _Asked(NamedTuple):
    """A request, as the key of cached answers."""

    job: str
    url: str
    anonymous: bool
    origin: str = ""
    is_inside: bool = False
    epoch: int = 0
    jar: str | None = ""


def _size_of(asked: _Asked, answer: Answer) -> int:
    """Approximate bytes of an answer in memory; an empty answer takes some too."""
    return len(answer.body) + len(asked.url) + ENTRY_BYTES


class Resources:
    """Fetches the resources that pages in the browser request.

    Args:
        hosts: Shared with the fetch service, so that both keep the same rests.
        transport: Answers the requests; None for the client itself.
        ask_rules: Gives a host its rules. The caller counts the request as in flight; `ask_rules` ends that.
    """

    def __init__(
        self,
        settings: "Settings",
        client: Client,
        hosts: Hosts,
        ask_rules: Callable[[Host, RequestPolicy], Awaitable[None]],
        transport: Transport | None = None,
    ) -> None:
        self._settings = settings
        self._usual = own_policy(settings)
        self._client = client
        self._transport = transport or client
        self._ask_rules = ask_rules
        self._hosts = hosts
        self._scripts = _Scripts(settings.render.cache_bytes)
        self._bodies = BodyBudget(settings.render.max_bytes)
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.visiting = hosts.visiting

    async def document(self, method: str, url: str, body: bytes, headers: Mapping[str, str], budget: Budget) -> Answer:
        """The answer to a navigation of a driven page: one hop. Its address decides what the next document may reach.

        Raises: LeaseLost: as `get`.
        """
        asked = self._asked(plain(url.partition("#")[0]), "", budget, is_anonymous=False)
        answer = await self._hop(asked, NAVIGATION, headers, budget, (method, body))
        budget.is_inside = budget.is_inside and answer.is_inside
        return answer

    @staticmethod
    def _asked(url: str, origin: str, budget: Budget, *, is_anonymous: bool) -> "_Asked":
        record = budget.page.record
        jar = "" if record is None else record.jar if record.keeps_cookies else None
        return _Asked(budget.page.job, url, is_anonymous, origin, budget.is_inside, budget.page.epoch, jar)

    async def get(self, wish: Wish, headers: Mapping[str, str], budget: Budget, body: bytes = b"") -> Answer:
        """The answer to a page's request, or one whose error says why it was refused.

        Raises: LeaseLost: the worker may no longer send requests.
        """
        refused = refusal(
            wish, (budget.page.policy or self._usual).rules.render_block, is_driven=bool(budget.page.actions)
        )
        if refused:
            return Answer(None, refused)
        url, cors = plain(wish.url.partition("#")[0]), Cors(wish)
        for _ in range(HOPS + 1):
            is_anonymous = origin_of(url) != wish.origin or cors.origin != ""
            asked = self._asked(url, cors.origin, budget, is_anonymous=is_anonymous)
            answer = await self._hop(asked, wish.kind, headers, budget, (wish.method, body))
            if is_anonymous:
                answer.headers = ()  # another origin's, which no script may read
            if answer.http is not None and not cors.permits(answer.allow_origin):
                return Answer(None, "cors")
            if answer.http not in REDIRECTS or not answer.location:
                return answer
            url = answer.target(url)
            if not url:
                return Answer(None, "bad_url")
            if not cors.follows(url):
                return Answer(None, "cors")
        return Answer(None, "redirects")

    async def _hop(
        self, asked: _Asked, kind: str, headers: Mapping[str, str], budget: Budget, sent: tuple[str, bytes]
    ) -> Answer:
        if budget.page.reach is not None and not budget.page.reach.holds(kind, self._hosts.place(asked.url)):
            return Answer(None, "scope")
        policy = budget.page.policy or self._usual
        is_static = kind in CACHED
        host = self._hosts.of(asked.url)
        gate = self._gates.get(host.key)
        if gate is None:
            gate = self._gates[host.key] = asyncio.Lock()
        async with gate:
            known = self._scripts.get(asked) if is_static else None
            if known is not None:
                return known
            refused = "" if asked.is_inside else await self._client.closed_to_public(asked.url)
            try:
                refused = refused or await self._refusal(asked.url, policy, kind)
                if not refused and (budget.requests <= 0 or budget.size_bytes <= 0):
                    refused = "budget"
                if refused:
                    return Answer(None, refused)
                budget.requests -= 1
                request = self._request(asked, kind, headers, budget, sent)
                answer = await self._answer(request, policy)
            except HostHeld:
                return Answer(None, CONTROL)
        budget.size_bytes -= len(answer.body)
        if is_static:
            self._scripts.keep(asked, answer)
        return answer

    def _request(
        self, asked: _Asked, kind: str, headers: Mapping[str, str], budget: Budget, sent: tuple[str, bytes]
    ) -> HttpRequest:
        own = forwarded(headers, is_driven=bool(budget.page.actions) and not asked.anonymous)
        own |= {"Origin": asked.origin} if asked.origin else {}
        is_page = kind == NAVIGATION
        return HttpRequest(
            asked.url,
            any_type=True,
            job=asked.job,
            headers=own,
            policy=budget.page.policy or self._usual,
            asker=Asker(asked.anonymous, is_public=not asked.is_inside, wants_place=is_page, bodies=self._bodies),
            record=_record_of(asked, sent),
            all_headers=kind not in CACHED,
        )

    async def _refusal(self, url: str, policy: RequestPolicy, kind: str) -> str:
        """Why a request to a host is refused; empty if it is allowed."""
        host = self._hosts.of(url)
        if kind != NAVIGATION and host.failures and host.next_at - time.monotonic() > MOST_REST_S:
            return "host_rests"
        if not policy.rules.robots:
            return ""
        if not host.knows_rules(time.monotonic(), policy) and host.closed_to(policy, time.monotonic()) is None:
            host = await self._hosts.turn(url)
            host.in_flight += 1
            await self._ask_rules(host, policy)
        rules = host.rules
        if rules is None or not host.has_rules(policy) or host.closed_to(policy, time.monotonic()) is not None:
            return "robots_unreachable"
        return "" if rules.allowed(url, policy.token)[0] else "robots"

    async def _answer(self, request: HttpRequest, policy: RequestPolicy) -> Answer:
        """The host's answer, requested when both host and address have a turn; a resting host blocks no address."""
        url, answer = request.url, None
        ask = partial(self._hosts.ask, url, partial(self._get, request), policy)
        while answer is None:
            await self._hosts.turn(url)
            answer = await self._client.addresses.in_turn(url, ask, policy.rules)
        return answer

    async def _get(self, request: HttpRequest) -> Answer:
        answer = await self._transport.get(request)
        answer.held.give()  # from here on the page's budget bounds its answers
        return answer


def _record_of(asked: _Asked, sent: tuple[str, bytes]) -> RequestRecord | None:
    """What is sent, if it is no plain GET with the job's own cookies."""
    method, body = sent
    if method == "GET" and asked.jar == "":
        return None
    return RequestRecord(method, body=body, jar=asked.jar or "", keeps_cookies=asked.jar is not None)
