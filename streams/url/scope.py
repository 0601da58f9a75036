"""The scope of a job. Parse asks before it sends a link, and the fold asks again at the owner: the answers are equal.

`crawlog why` shows the name of a rule, and counters are kept by it.
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

import re2

from crawlog.schemas.urls import JobSpec, TrapRules
from crawlog.streams.errors import Misconfigured

from .place import Place, hashed

# Names of all rules that `Scope.refusal` knows.
RULES = frozenset({"url_length", "depth", "redirects", "scope", "exclude", "include", "trap_params", "trap_path"})

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
        self.update((name,))

    def update(self, names: Iterable[str]) -> None:
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

    def refusal_of_queued(self, url: str, depth: int, hops: int) -> str | None:
        """The rule that drops a URL which was queued before the job's limits and expressions changed; None for none."""
        return self._limit(url, depth, hops) or self._expression(url)

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


# Expressions of a job's scope and of its rendering: RE2, with a bound on the work that one URL can cost.

# Instructions of all expressions of one setting. A character of an expression is one as a rule, `.` is 8, and
# `.{1,200}` 1,803. The worst ones of this size took 40 to 110 ms for a URL of 2,083 characters, of 90,000 1.5 s.
MAX_PROGRAM = 2000

MAX_URL_LENGTH = 8192  # Longest URL that a job can take, characters. RFC 9110 4.1 asks for 8,000 at least.

_HOSTS_HEAD, _HOSTS_TAIL = r"^https?://(?:[^/?#]*\.)?(?:", r")(?::\d+)?(?:[/?#]|$)"


def domains_pattern(domains: Iterable[str]) -> str:
    """The expression for URLs of some hosts and their sub-domains (`scope.include`); the same for equal sets."""
    ordered = (
        sorted(domains) if isinstance(domains, set | frozenset) else domains
    )  # each process has another order of a set
    return _HOSTS_HEAD + "|".join(re.escape(name.lower().strip(".")) for name in ordered) + _HOSTS_TAIL


def any_of(setting: str, expressions: tuple[str, ...]) -> "re2._Regexp[str] | None":
    """One expression that matches if any of them matches; None if there are none.

    Args:
        setting: The name of the setting, for the error.

    Raises: Misconfigured: one of them is not RE2 syntax, or their program is too large.
    """
    try:
        return compiled(expressions)
    except ValueError as error:
        raise Misconfigured(f"{setting}: {error}") from None


def compiled(expressions: tuple[str, ...]) -> "re2._Regexp[str] | None":
    """As `any_of`. Raises: ValueError: one of them is not RE2 syntax, or their program is too large."""
    if not expressions:
        return None
    options = re2.Options()
    options.log_errors = False  # RE2 writes to standard error by itself
    options.never_capture = True  # groups would have the match searched a second time
    size = 0
    for expression in expressions:
        try:
            program = re2.compile(expression, options)
        except re2.error as error:
            raise ValueError(f"{expression!r:.200} is not an RE2 expression: {_text(error)}") from None
        size += 0 if _is_list_of_hosts(expression) else program.programsize
        if size > MAX_PROGRAM:
            raise ValueError(
                f"too costly: with {expression!r:.200} the expressions have {size:,} instructions, more than "
                f"{MAX_PROGRAM:,}.\nA counted repetition such as {{1000}} has as many copies: use + or * there."
            )
    try:
        return re2.compile("|".join(f"(?:{expression})" for expression in expressions), options)
    except re2.error as error:  # long lists of hosts
        raise ValueError(f"the expressions together are too large: {_text(error)}") from None


def _is_list_of_hosts(expression: str) -> bool:
    """Whether this is a `domains_pattern`: of its thousands of instructions a URL is at a few at a time."""
    names = expression.removeprefix(_HOSTS_HEAD).removesuffix(_HOSTS_TAIL)
    return expression == domains_pattern(name.replace("\\", "") for name in names.split("|"))


def _text(error: Exception) -> str:
    """An error of RE2, which holds bytes."""
    cause = error.args[0] if error.args else ""
    return cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
