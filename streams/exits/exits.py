"""The exits of one worker: which one a request takes, and which of them rest."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from typing import NamedTuple
from urllib.parse import urlsplit

import xxhash
from msgspec.structs import replace

from crawlog.schemas.progress import ExitFigures
from crawlog.schemas.urls import RequestRules
from crawlog.streams.requests import Proxy

from .refusals import Refusal
from .ways import Exit, Policy, read_policy

FAILURES = 3  # Failures in a row after which an exit rests for all hosts

REST_S = 30.0
MOST_REST_S = 600.0  # Seconds that a failed exit rests for all hosts: the first time, doubled each time, and at most

FAILED_S = 2.0  # Seconds that it rests for the host at which it failed: the first time, doubled each time

REFUSALS = 2  # Refusals in a row after which an exit rests for a host, where one alone may be the page's own

MOST_BAN_S = 3600.0  # Longest rest of an exit for a host that refuses it, seconds, unless the host asks for more

MEDIAN_OF = 101  # Requests that a median is of, the last ones

MOST_REFUSED = 10_000  # URLs remembered that exits did not serve

MOST_HOSTS = 50_000  # Hosts whose use of exits is remembered, those asked last

NEVER = float("-inf")

STICKY = Policy()

_policy: Callable[[str], Policy] = lru_cache(64)(read_policy)


class _Rest(NamedTuple):
    """A rest of one exit, for one host or for all.

    Attributes:
        times: Rests in a row, this one included.
    """

    until: float = NEVER
    times: int = 0

    def longer(self, began: float, now: float, base_s: float, most_s: float) -> "_Rest":
        """The rest after one more failure; the same one if the failed request began before its end.

        So requests in flight that fail together are one rest.
        """
        if began < self.until:
            return self
        return _Rest(now + min(base_s * 2 ** min(self.times, 20), most_s), self.times + 1)


class _AtHost:
    """How one host has been asked.

    Attributes:
        current: Name of its exit, for policies that change it; `used` requests went by it, since the time `since`.
        requests: Asked of it in all; `asked` has the number of the last one, by the exit's name.
        times: When it was asked last by each exit, for jobs that count delays by exit.
        rests: Rests of exits for this host alone, by name.
        refusals: In a row, by name.
    """

    __slots__ = ("asked", "current", "refusals", "requests", "rests", "since", "times", "used")

    def __init__(self) -> None:
        self.current = ""
        self.used = 0
        self.since = NEVER
        self.requests = 0
        self.asked: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self.rests: dict[str, _Rest] = {}
        self.refusals: Counter[str] = Counter()


class _State:
    """How an exit has served, whatever the host.

    Attributes:
        failures: In a row; at most one of them for each host that was silent behind it.
        silent: These hosts.
        worked: Number of the last request that it let through, over all exits.
        held_until: Until then no request may go by it: it is redialed.
    """

    __slots__ = ("failures", "figures", "held_until", "rest", "silent", "took", "worked")

    def __init__(self) -> None:
        self.works()
        self.worked = 0
        self.held_until = NEVER
        self.figures = ExitFigures()
        self.took: deque[float] = deque(maxlen=MEDIAN_OF)

    def works(self) -> None:
        self.failures = 0
        self.silent: set[str] = set()
        self.rest = _Rest()


class ExitWish(NamedTuple):
    """What decides about an exit beside the policy of its job.

    Attributes:
        session: Names what must keep its exit, such as a jar of cookies; empty where the policy decides.
        but: Names of exits that did not serve the request.
        may_repeat: Whether one of these serves again, where no other is awake.
        busy: Names of exits by which the host has as many requests in flight as it may, for jobs that count by exit.
        delay_s: Least time between two requests to the host by one exit, for such jobs.
    """

    session: str = ""
    but: Collection[str] = ()
    may_repeat: bool = False
    busy: Collection[str] = ()
    delay_s: float = 0.0


NO_WISH = ExitWish()


class Exits:  # long: each event of a request, and each question of the frontier, is a method of a few lines
    """Exits, and what their requests came to.

    If all rest, a request waits for the one that wakes first: where there are exits, none is ever sent without one.
    Rests and refusals end with the process: the next one finds them again.

    Args:
        groups: Patterns of names, by the group's name.

    Attributes:
        names: Host names of proxies. They may have private addresses, because the operator named them.
        places: Hosts and ports of proxies; the same.
        tells_names: Whether a proxy resolves names, so that they are not resolved here.
        logged_in: Origins with a login, whose requests keep their exit.
    """

    def __init__(self, exits: Iterable[Exit] = (), groups: Mapping[str, Sequence[str]] | None = None) -> None:
        self._patterns = groups or {}
        self._states: dict[str, _State] = {}
        self._members: dict[str, tuple[Exit, ...]] = {}
        self._hosts: OrderedDict[str, _AtHost] = OrderedDict()
        self._ordered: Mapping[str, float] = {}
        self._refused_by: OrderedDict[Hashable, list[str]] = OrderedDict()
        self.logged_in: frozenset[str] = frozenset()
        self._worked = 0
        self.change(exits)

    def change(self, exits: Iterable[Exit]) -> None:
        """These are the exits from now on; those that stay keep their state. Of two with one name the first counts."""
        named: dict[str, Exit] = {}
        for each in exits:
            named.setdefault(each.name, each)
        pool = tuple(named.values())
        self._states = {name: self._states.get(name) or _State() for name in named}
        self._members = {
            group: tuple(each for each in pool if any(fnmatchcase(each.name, pattern) for pattern in patterns))
            for group, patterns in self._patterns.items()
        }
        self._members[""] = pool
        proxies = [each.proxy for each in pool if each.proxy is not None and each.kind == "proxy"]
        urls = [urlsplit(proxy.url) for proxy in proxies]
        self.names = frozenset(url.hostname or "" for url in urls)
        self.places = frozenset((url.hostname, url.port) for url in urls)
        self.tells_names = any(proxy.resolves for proxy in proxies)

    def __bool__(self) -> bool:
        return bool(self._states)

    def __iter__(self) -> Iterator[Exit]:
        return iter(self._members[""])

    def proxy_at(self, url: str) -> Proxy | None:
        """The proxy of the exit that has this address, without a login; None if no exit has it."""
        return next((way.proxy for way in self if way.proxy is not None and way.proxy.url == url), None)

    def of_group(self, group: str) -> tuple[Exit, ...]:
        """The exits of a group; all of them for no name, none for an unknown one."""
        return self._members.get(group, ())

    # ------------------------------------------------------------------ the choice

    def pick(self, host: str, rules: RequestRules, now: float, wish: ExitWish = NO_WISH) -> Exit | float:
        """The exit of the next request to a host, or the time until which no exit serves it.

        Args:
            host: Its origin.
            wish: What else decides, beside the job's policy.
        """
        at = self._hosts.get(host)
        pool = self.of_group(rules.exit_group)
        awake = [one for one in pool if self._rests_until(one.name, at) <= now]
        if wish.but:
            awake = [one for one in awake if one.name not in wish.but] or (awake if wish.may_repeat else [])
        if not awake:
            rests = (self._rests_until(one.name, at) for one in pool)
            return min((until for until in rests if until > now), default=now + REST_S)
        policy = STICKY if wish.session else _policy(rules.exit_policy)
        if policy == STICKY and not rules.per_exit:
            return max(awake, key=lambda one: _rank(wish.session or host, one))
        at = at or self._at(host)
        free_at = {one: self._free_at(one.name, at, wish) for one in awake} if rules.per_exit else {}
        picked = self._in_turn(wish.session or host, at, policy, awake, free_at, now)
        if free_at.get(picked, NEVER) > now:
            return free_at[picked]
        at.used += 1
        at.requests += 1
        at.asked[picked.name] = at.requests
        if rules.per_exit:
            at.times[picked.name] = now
        return picked

    @staticmethod
    def _in_turn(
        key: str, at: _AtHost, policy: Policy, awake: list[Exit], free_at: Mapping[Exit, float], now: float
    ) -> Exit:
        """The host's present exit, or the next one: that by which it was asked longest ago."""
        if policy == STICKY:
            return max(awake, key=lambda one: _rank(key, one))
        is_over = at.used >= policy.requests if policy.requests else now - at.since >= policy.seconds
        present = next((one for one in awake if one.name == at.current), None)
        if present is not None and not is_over:
            return present

        def turn(one: Exit) -> tuple[float, int, int]:
            return max(free_at.get(one, NEVER), now), at.asked.get(one.name, 0), _rank(key, one)

        picked = min(awake, key=turn)
        if free_at.get(picked, NEVER) <= now:
            at.current, at.used, at.since = picked.name, 0, now
        return picked

    @staticmethod
    def _free_at(name: str, at: _AtHost, wish: ExitWish) -> float:
        return inf if name in wish.busy else at.times.get(name, NEVER) + wish.delay_s

    def _rests_until(self, name: str, at: _AtHost | None) -> float:
        state = self._states.get(name)
        everywhere = max(state.rest.until, state.held_until) if state is not None else NEVER
        if self._ordered:
            everywhere = max(everywhere, self._ordered.get(name, NEVER))
        here = at.rests.get(name) if at is not None and at.rests else None
        return max(everywhere, here.until) if here is not None else everywhere

    def _at(self, host: str) -> _AtHost:
        at = self._hosts.get(host)
        if at is None:
            at = self._hosts[host] = _AtHost()
            if len(self._hosts) > MOST_HOSTS:
                self._hosts.popitem(last=False)
        else:
            self._hosts.move_to_end(host)
        return at

    # ------------------------------------------------------------------ what came of it

    def worked(self, way: Exit) -> None:
        """Note that an exit let a request through: it ends its rest for all hosts."""
        state = self._states.get(way.name)
        if state is None:
            return
        self._worked += 1
        state.worked = self._worked
        if state.failures or state.rest.times:
            state.works()

    def failed(self, host: str, way: Exit, began: float, now: float, *, is_sure: bool = True) -> bool:
        """Note that an exit did not let a request through; True if it rests for all hosts from now on.

        It rests for the host at once.

        Args:
            began: When the exit was picked.
            is_sure: Whether the exit failed, and not perhaps the site behind it.
        """
        at = self._at(host)
        base_s = FAILED_S if is_sure else REST_S  # an attempt at a silent one costs its whole time limit
        at.rests[way.name] = at.rests.get(way.name, _Rest()).longer(began, now, base_s, MOST_REST_S)
        state = self._states.get(way.name)
        if state is not None:
            state.figures.failures += 1
        if state is None or began < state.rest.until or (not is_sure and host in state.silent):
            return False
        state.failures += 1
        if not is_sure:
            state.silent.add(host)
        if state.failures < FAILURES or not (is_sure or self._has_better(state)):
            return False
        state.rest = state.rest.longer(began, now, REST_S, MOST_REST_S)
        return True

    def _has_better(self, state: _State) -> bool:
        """Whether another exit has worked since this one did: else the sites may be silent, and not the exit."""
        return any(other.worked > state.worked for other in self._states.values())

    def refused(self, host: str, way: Exit, refusal: Refusal, began: float, now: float) -> None:
        """Note that a host refused an exit: it rests for the host, at once or after `REFUSALS` in a row."""
        at = self._at(host)
        at.refusals[way.name] += 1
        if (state := self._states.get(way.name)) is not None:
            state.figures.bans += 1
        if refusal.is_sure or at.refusals[way.name] >= REFUSALS:
            rest = at.rests.get(way.name, _Rest())
            at.rests[way.name] = rest.longer(began, now, refusal.rest_s, max(MOST_BAN_S, refusal.rest_s))

    def served(self, host: str, way: Exit, now: float) -> None:
        """Note that a host served an exit: its next rest there is a first one."""
        at = self._hosts.get(host)
        if at is not None:
            del at.refusals[way.name]
            rest = at.rests.get(way.name)
            if rest is not None and rest.until <= now:
                del at.rests[way.name]

    def asked(self, host: str, way: Exit, now: float) -> None:
        """Note that a request to a host by an exit has ended: its delay counts from now on."""
        self._at(host).times[way.name] = now

    def wakes_in_s(self, host: str, rules: RequestRules, now: float) -> float:
        """Seconds until an exit serves a host; 0 if one does now."""
        at = self._hosts.get(host)
        pool = self.of_group(rules.exit_group)
        return max(min((self._rests_until(one.name, at) for one in pool), default=now + REST_S) - now, 0.0)

    # ------------------------------------------------------------------ commands and redials

    def obey(self, rests: Mapping[str, float]) -> None:
        """Commands keep these exits, by name, from serving until then; no others."""
        self._ordered = rests

    def forgive(self, host: str) -> None:
        """Forget what exits have met at a host."""
        self._hosts.pop(host, None)

    def hold(self, name: str, until: float) -> None:
        """Let no request go by an exit until then."""
        if (state := self._states.get(name)) is not None:
            state.held_until = until

    def held_s(self, name: str, now: float) -> float:
        """Seconds for which an exit is held; 0 if it is not."""
        return max(state.held_until - now, 0.0) if (state := self._states.get(name)) is not None else 0.0

    def is_busy(self, name: str) -> bool:
        """Whether a request is in flight by an exit."""
        return (state := self._states.get(name)) is not None and state.figures.in_flight > 0

    def renew(self, name: str) -> None:
        """Forget what hosts have against an exit: it has a new address."""
        if (state := self._states.get(name)) is not None:
            state.works()
        for at in self._hosts.values():
            at.rests.pop(name, None)
            del at.refusals[name]

    # ------------------------------------------------------------------ URLs that are sent again

    def again(self, url: Hashable, way: Exit, rules: RequestRules) -> bool:
        """Whether a URL is sent again by another exit after this one did not serve it, and is no attempt the worse.

        Not after `exits.most_refusals` times: then the answer counts as the site's own.
        """
        names = self._refused_by.setdefault(url, [])
        names.append(way.name)
        if len(self._refused_by) > MOST_REFUSED:
            self._refused_by.popitem(last=False)
        return len(names) < rules.exit_refusals and len(self.of_group(rules.exit_group)) > 1

    def refused_by(self, url: Hashable) -> Sequence[str]:
        """Names of the exits that did not serve a URL."""
        return self._refused_by.get(url, ()) if self._refused_by else ()

    def settled(self, url: Hashable) -> None:
        """Forget that exits did not serve a URL: it has its result."""
        self._refused_by.pop(url, None)

    # ------------------------------------------------------------------ figures

    def sent(self, way: Exit) -> None:
        """Note that a request begins."""
        if (state := self._states.get(way.name)) is not None:
            state.figures.in_flight += 1

    def ended(self, way: Exit, size_bytes: int, took_s: float) -> None:
        """Note that a request has ended, with or without an answer."""
        if (state := self._states.get(way.name)) is not None:
            state.figures.in_flight -= 1
            state.figures.requests += 1
            state.figures.bytes += size_bytes
            state.took.append(took_s)

    def figures(self, now: float) -> dict[str, ExitFigures]:
        """The figures of each exit, by name."""
        resting = Counter(name for at in self._hosts.values() for name, rest in at.rests.items() if rest.until > now)
        return {
            name: replace(
                state.figures,
                median_s=round(sorted(state.took)[len(state.took) // 2], 4) if state.took else 0.0,
                rests_s=round(max(self._rests_until(name, None) - now, 0.0), 1),
                rests_at=resting[name],
            )
            for name, state in self._states.items()
        }


@lru_cache(1 << 16)
def _rank(key: str, way: Exit) -> int:
    """By rendezvous hashing: only the hosts of an exit that is gone move."""
    return xxhash.xxh3_64_intdigest(f"{key} {way.name}".encode())
