"""The exits of one worker: which one a request takes, and which of them rest."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import xxhash

from crawlog.schemas.urls import RequestRules
from crawlog.streams.requests import Proxy

from .ways import Exit, Policy, read_policy

FAILURES = 3  # Failures in a row after which an exit rests for all hosts

REST_S = 30.0
MOST_REST_S = 600.0  # Seconds that a failed exit rests for all hosts: the first time, doubled each time, and at most

FAILED_S = 2.0  # Seconds that it rests for the host at which it failed: the first time, doubled each time

MOST_HOSTS = 50_000  # Hosts whose use of exits is remembered, those asked last

NEVER = float("-inf")

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
        rests: Rests of exits for this host alone, by name.
    """

    __slots__ = ("asked", "current", "requests", "rests", "since", "used")

    def __init__(self) -> None:
        self.current = ""
        self.used = 0
        self.since = NEVER
        self.requests = 0
        self.asked: dict[str, int] = {}
        self.rests: dict[str, _Rest] = {}


class _State:
    """How an exit has served, whatever the host.

    Attributes:
        failures: In a row; at most one of them for each host that was silent behind it.
        silent: These hosts.
    """

    __slots__ = ("failures", "rest", "silent")

    def __init__(self) -> None:
        self.works()

    def works(self) -> None:
        self.failures = 0
        self.silent: set[str] = set()
        self.rest = _Rest()


class Exits:
    """Exits, and what their requests came to.

    If all rest, a request waits for the one that wakes first: where there are exits, none is ever sent without one. All
    is forgotten with the process.

    Args:
        groups: Patterns of names, by the group's name.

    Attributes:
        names: Host names of proxies. They may have private addresses, because the operator named them.
        places: Hosts and ports of proxies; the same.
        tells_names: Whether a proxy resolves names, so that they are not resolved here.
    """

    def __init__(self, exits: Iterable[Exit] = (), groups: Mapping[str, Sequence[str]] | None = None) -> None:
        self._patterns = groups or {}
        self._states: dict[str, _State] = {}
        self._members: dict[str, tuple[Exit, ...]] = {}
        self._hosts: OrderedDict[str, _AtHost] = OrderedDict()
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
        urls = [urlsplit(each.proxy.url) for each in pool if each.proxy is not None]
        self.names = frozenset(url.hostname or "" for url in urls)
        self.places = frozenset((url.hostname, url.port) for url in urls)
        self.tells_names = any(each.proxy is not None and each.proxy.resolves for each in pool)

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

    def pick(
        self, host: str, rules: RequestRules, now: float, *, session: str = "", but: Collection[str] = ()
    ) -> Exit | float:
        """The exit of the next request to a host, or the time until which no exit serves it.

        Args:
            host: Its origin.
            session: Names what must keep its exit, such as a jar of cookies; empty where the policy decides.
            but: Names of exits that just failed.
        """
        at = self._hosts.get(host)
        pool = [way for way in self.of_group(rules.exit_group) if way.name not in but]
        awake = [way for way in pool if self._rests_until(way.name, at) <= now]
        if not awake:
            return min((self._rests_until(way.name, at) for way in pool), default=now + REST_S)
        policy = _policy(rules.exit_policy)
        if session or policy == Policy():
            return max(awake, key=lambda way: _rank(session or host, way))
        at = at or self._at(host)
        picked = self._in_turn(host, at, policy, awake, now)
        at.used += 1
        at.requests += 1
        at.asked[picked.name] = at.requests
        return picked

    def _in_turn(self, host: str, at: _AtHost, policy: Policy, awake: list[Exit], now: float) -> Exit:
        """The host's present exit, or the next one: that by which it was asked longest ago."""
        is_over = at.used >= policy.requests if policy.requests else now - at.since >= policy.seconds
        present = next((way for way in awake if way.name == at.current), None)
        if present is not None and not is_over:
            return present
        picked = min(awake, key=lambda way: (at.asked.get(way.name, 0), _rank(host, way)))
        at.current, at.used, at.since = picked.name, 0, now
        return picked

    def _rests_until(self, name: str, at: _AtHost | None) -> float:
        state = self._states.get(name)
        everywhere = state.rest.until if state is not None else NEVER
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
        if state is not None and (state.failures or state.rest.times):
            state.works()

    def failed(self, host: str, way: Exit, began: float, now: float, *, is_sure: bool = True) -> bool:
        """Note that an exit did not let a request through; True if it rests for all hosts from now on.

        It rests for the host at once.

        Args:
            began: When the exit was picked.
            is_sure: Whether the exit failed, and not perhaps the site behind it.
        """
        at = self._at(host)
        at.rests[way.name] = at.rests.get(way.name, _Rest()).longer(began, now, FAILED_S, MOST_REST_S)
        state = self._states.get(way.name)
        if state is None or began < state.rest.until or (not is_sure and host in state.silent):
            return False
        state.failures += 1
        if not is_sure:
            state.silent.add(host)
        if state.failures < FAILURES:
            return False
        state.rest = state.rest.longer(began, now, REST_S, MOST_REST_S)
        return True

    def wakes_in_s(self, host: str, rules: RequestRules, now: float) -> float:
        """Seconds until an exit serves a host; 0 if one does now."""
        at = self._hosts.get(host)
        pool = self.of_group(rules.exit_group)
        return max(min((self._rests_until(way.name, at) for way in pool), default=now + REST_S) - now, 0.0)


def _rank(key: str, way: Exit) -> int:
    """By rendezvous hashing: only the hosts of an exit that is gone move."""
    return xxhash.xxh3_64_intdigest(f"{key} {way.name}".encode())
