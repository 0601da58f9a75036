"""The scope of a job. Parse asks before it sends a link, and the fold asks again at the owner: the answers are equal.

`crawlog why` shows the name of a rule, and counters are kept by it.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

from crawlog.schemas.urls import JobSpec, TrapRules

from .patterns import MAX_URL_LENGTH, any_of
from .place import Place, hashed

RULES = frozenset({"url_length", "depth", "redirects", "scope", "exclude", "include", "trap_params", "trap_path"})
"""Names of all rules that `Scope.refusal` knows."""

_NAMES_CACHED = 65_536
_DEFAULT_PORTS = ("80", "443")
_SLASHES_BEFORE_PATH = 2
_FRESH = 1024


class Names:
    """Scope names, by their hashes: eight bytes each, where a set of a million names takes 110 MB.

    Most hashes are in a sorted array, the latest ones in a set. With a million names, one foreign name in 2e13 is taken
    for one of them.
    """

    def __init__(self) -> None:
        self._sorted = array("Q")
        self._fresh: set[int] = set()

    def __contains__(self, name: object) -> bool:
        return self._has(hashed(str(name)))

    def __len__(self) -> int:
        return len(self._sorted) + len(self._fresh)

    def add(self, name: str) -> None:
        """Add a name."""
        self.update((name,))

    def update(self, names: Iterable[str]) -> None:
        """Add names."""
        self._fresh.update(mark for mark in map(hashed, names) if not self._has(mark))
        if len(self._fresh) > max(len(self._sorted) // 4, _FRESH):
            self._sorted = array("Q", sorted([*self._sorted, *self._fresh]))
            self._fresh = set()

    def _has(self, mark: int) -> bool:
        at = bisect_left(self._sorted, mark)
        return (at < len(self._sorted) and self._sorted[at] == mark) or mark in self._fresh


def scope_name(kind: str, place: Place) -> str:
    """The name a place has in a scope: its domain, or its host name and port.

    The default ports of http and https are left out, so that both schemes of a host have one name.
    """
    if kind in ("domain", "any"):
        return place.domain
    name, _, port = place.host.partition("://")[2].rpartition(":")
    return name if port in _DEFAULT_PORTS else f"{name}:{port}"


class Scope:
    """The rules of one revision of a job.

    Attributes:
        names: Scope names that the job's record lists.

    Raises: Misconfigured: an expression in `include` or `exclude` is not RE2 syntax, or too costly.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._kind = spec.scope.kind
        self._longest = min(spec.max_url_length, MAX_URL_LENGTH)
        self.names = frozenset(spec.scope.names)
        self._include = any_of("scope.include", spec.scope.include)
        self._exclude = any_of("scope.exclude", spec.scope.exclude)
        self._name_by_host: dict[str, str] = {}

    def refusal(self, url: str, place: Place, depth: int, hops: int, joined: Container[str]) -> str | None:
        """The rule that drops a canonical URL, or None when it is accepted.

        Args:
            joined: Scope names that joined the job while it ran.
        """
        return (
            self._limit(url, depth, hops)
            or self._place(place, joined)
            or self._expression(url)
            or trap(url, self._spec.traps)
        )

    def is_foreign(self, origin: str, joined: Container[str]) -> bool:
        """Whether `refusal` drops every URL of an origin for its host, found without the public suffix list.

        Args:
            origin: Of a canonical URL.
            joined: As in `refusal`.
        """
        if self._kind == "any":
            return False
        name, colon, port = origin[origin.index("/") + 2 :].rpartition(":")
        if not colon or port.endswith("]"):
            name, port = f"{name}{colon}{port}", "80"
        if name.endswith("."):  # a final dot is left out, two are not
            return False
        if self._kind != "domain":
            name = name if port in _DEFAULT_PORTS else f"{name}:{port}"
            return name not in self.names and name not in joined
        while True:  # a registrable domain is the end of its names
            if name in self.names or name in joined:
                return False
            dot = name.find(".")
            if dot < 0:
                return True
            name = name[dot + 1 :]

    def foreign_rules(self, urls: Sequence[str], depth: int) -> Iterator[tuple[str, int]]:
        """The rules by which `refusal` drops links that are foreign, with their counts."""
        long = sum(len(url) > self._longest for url in urls)
        if long:
            yield "url_length", long
        if len(urls) > long:
            is_deep = self._spec.max_depth is not None and depth > self._spec.max_depth
            yield "depth" if is_deep else "scope", len(urls) - long

    def _limit(self, url: str, depth: int, hops: int) -> str | None:
        spec = self._spec
        if len(url) > self._longest:
            return "url_length"
        if spec.max_depth is not None and depth > spec.max_depth:
            return "depth"
        return "redirects" if hops > spec.max_redirects else None

    def _place(self, place: Place, joined: Container[str]) -> str | None:
        if self._kind == "any":
            return None
        name = place.domain if self._kind == "domain" else self._host_name(place)
        return None if name in self.names or name in joined else "scope"

    def _expression(self, url: str) -> str | None:
        if self._exclude is not None and self._exclude.search(url):
            return "exclude"
        return "include" if self._include is not None and not self._include.search(url) else None

    def _host_name(self, place: Place) -> str:
        name = self._name_by_host.get(place.host)
        if name is None:
            if len(self._name_by_host) >= _NAMES_CACHED:
                self._name_by_host.clear()
            name = self._name_by_host[place.host] = scope_name(self._kind, place)
        return name


def trap(url: str, rules: TrapRules) -> str | None:
    """The rule by which a URL alone looks like a trap; None if it may be honest."""
    path, _, query = url.partition("?")
    if query and query.count("&") >= rules.max_params:
        return "trap_params"
    segments = path.count("/") - _SLASHES_BEFORE_PATH
    if segments <= rules.max_repeats:
        return None
    if segments > rules.max_segments:
        return "trap_path"
    parts = path.split("/")[_SLASHES_BEFORE_PATH + 1 :]
    if len(parts) - len(set(parts)) >= rules.max_repeats and max(Counter(parts).values()) > rules.max_repeats:
        return "trap_path"
    return None
