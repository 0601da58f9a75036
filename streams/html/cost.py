"""Which pages may cost the HTML parser far more than their size suggests, and how long a trial of them may take.

The parser is C and cannot be interrupted, and what it does is not linear: it looks through all open elements at each
block, and makes formatting elements that were left open anew in each, so that a few kilobytes become millions of them.
Only parsing shows whether a page does that. So there are bounds, each dearer than the one before: by the count of `<`,
which settles half of real pages, by formatting elements, by those that are not closed at once, by elements that nest.
Pages beyond all bounds are tried in another process, with limits.

A trial may take the *fair* time of its page: several times the time of other pages of its size. Beyond that each
domain has one allowance: its first odd pages may take long, later ones only the fair time. The allowance shrinks with
the time that failed trials took so far: the trials of d domains together take a time in the order of √d, not of d. If
more of a domain's pages failed than passed, its fair time is little more than that of other pages.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .tree import HARMLESS, NOT_NESTING, ends_of, starts_of, tags_of

if TYPE_CHECKING:
    import re2

# Start and end tags; the worst page that has no more takes 0.1 s and 110 MB (half of them formatting elements).
FEW_TAGS = 1000

MANY_TAGS = 4000  # The worst page with fewer, none of them formatting elements, takes 0.08 s: lists in lists

MOST_TAGS = 16_000  # Beyond these no look is worth its time

_MOST_MADE = 250_000  # Elements that the parser may make anew of a page's formatting elements: 0.1 s and 110 MB

# Formatting elements without attributes that are made anew: three alike of each of 12 names (HTML 13.2.4.3).
_PLAIN = 36

_NAMES = b"b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u"

# Formatting elements that may have attributes, all but `a`: of that there is one at a time.
_FORMATTING = starts_of(_NAMES, rb"[\t\n\f\r /]")

_ANY_FORMATTING = starts_of(_NAMES, rb"[\t\n\f\r />]")

# A formatting element that the next tag closes: then it is open no more, whatever stands around it. Its quotes are all
# behind a `=`, and hold no end of a tag, so that nobody reads its tags otherwise.
_CLOSED = re.compile(
    rb"<(" + _NAMES + rb")(?=[\t\n\f\r />])"
    rb"(?>[^<>\"'=]+|=[\t\n\f\r ]*(?>\"[^\"<>]*\"|'[^'<>]*'|(?![\"'])))*+>[^<]*+</\1[\t\n\f\r ]*>",
    re.IGNORECASE,
)

_NAME = re.compile(rb"<([a-zA-Z][^\t\n\f\r />]*)")
_OFTEN = (b"<a ", b"<li>")  # How those elements start that pages have most of and that do not nest

_FOREIGN = starts_of(b"svg|math")  # In drawings and formulas every element nests

_ENCODED = (b"\0", b"\x1b")  # In UTF-16 and ISO-2022-JP, where a tag's letters do not stand side by side

BYTE_S, TAG_S = 10e-9, 0.5e-6  # CPU seconds that pages take: 173 real ones took 5 to 40 ns a byte in all

GENEROUS = 4  # Fair time, in multiples of what other pages of the size take

BASE_S = 0.05  # Fair time of any page, in addition

# A page is costly from this multiple of the fair time on; its links, its hash and its spider count too.
COSTLY_TIMES = 3

# As `GENEROUS` and `BASE_S`, for a domain with at least `FAILURES` failed trials, and more failed than passed.
SEVERE, SEVERE_BASE_S = 1.5, 0.01

FAILURES = 3

SHARE = 0.25  # Most time of a trial, as a share of `parse.timeout_s`: a page that passed is parsed twice more at most

ODD_SHARE = 0.03  # A domain's allowance before any trial failed, as a share of `parse.timeout_s`

DOMAINS = 10_000  # Domains whose trials are remembered; about 2 MB


def is_simple(body: bytes) -> bool:
    """Whether parsing a body, in whatever encoding, costs at most 0.1 s and 120 MB for its tags."""
    if len(body) < 3 * FEW_TAGS:
        return True
    tags = tags_of(body)
    if tags <= FEW_TAGS:
        return True
    if tags > MOST_TAGS or any(sign in body for sign in _ENCODED):
        return False
    if tags * tags > HARMLESS and tags * (tags - 2 * ends_of(body)) > HARMLESS:
        return False  # it will be flattened, which may join what was no tag
    formatting = sum(1 for _ in _FORMATTING.finditer(body))  # `findall` asks for the groups of each
    if (formatting + _PLAIN) * (tags - formatting) > _MOST_MADE:
        most = _MOST_MADE // tags - 1  # an `a` may be open besides
        if _left_open(body, _FORMATTING) + _PLAIN > most and _left_open(body, _ANY_FORMATTING) > most:
            return False
    return tags <= MANY_TAGS or any(bound * tags <= HARMLESS for bound in _nesting_bounds(body, tags))


def _left_open(body: bytes, formatting: "re2._Regexp[bytes]") -> int:
    """How many formatting elements of a page its next tag does not close."""
    return sum(_CLOSED.match(body, found.start()) is None for found in formatting.finditer(body))


def _nesting_bounds(body: bytes, tags: int) -> Iterator[int]:
    """How many elements may be open at one time, but for those that close themselves; each closer and dearer."""
    if _FOREIGN.search(body):
        yield tags
        return
    starts = tags - ends_of(body)
    yield starts
    for sign in _OFTEN:
        starts -= body.count(sign)
        yield starts
    names = Counter(_NAME.findall(body))
    yield sum(count for name, count in names.items() if name.lower() not in NOT_NESTING)


def fair_s(html: bytes, times: float = GENEROUS, base_s: float = BASE_S) -> float:
    """CPU seconds that any page of this size and as many tags may take."""
    return base_s + times * (BYTE_S * len(html) + TAG_S * tags_of(html))


def is_costly(html: bytes, used_s: float) -> bool:
    """Whether a page that looked simple took so much CPU that similar pages should be tried."""
    return used_s > COSTLY_TIMES * BASE_S and used_s > COSTLY_TIMES * fair_s(html)


class TrialLimits(NamedTuple):
    """What a trial may take.

    Attributes:
        cpu_s: Above 0.
        memory_bytes: Of the process, data and heap.
    """

    cpu_s: float
    memory_bytes: int


class TrialOutcome(NamedTuple):
    """The outcome of a trial.

    Attributes:
        domain: Registrable.
        used_s: CPU seconds.
        excess_s: CPU seconds beyond the fair time.
        passed: Whether the page may be parsed.
    """

    domain: str
    used_s: float
    excess_s: float
    passed: bool


@dataclass(slots=True)
class _Domain:
    """The trials of a domain: time beyond the fair one, and how they ended."""

    spent_s: float = 0.0
    passed: int = 0
    failed: int = 0


class Allowances:
    """The remaining allowances of domains.

    Args:
        timeout_s: CPU seconds for parsing a page.
        memory_mb: Of a parse worker; a page may take an eighth.
    """

    def __init__(self, timeout_s: float, memory_mb: int) -> None:
        self._timeout_s = timeout_s
        self._memory_bytes = memory_mb << 17
        self._wasted_s = 0.0
        self._domains: OrderedDict[str, _Domain] = OrderedDict()

    def limits(self, domain: str, html: bytes) -> TrialLimits:
        """The limits of the next trial of a page of a registrable domain."""
        allowance_s = ODD_SHARE * self._timeout_s / (1 + self._wasted_s / self._timeout_s)
        cpu_s = max(self._fair_s(domain, html), allowance_s - self._of(domain).spent_s)
        return TrialLimits(min(SHARE * self._timeout_s, cpu_s), self._memory_bytes)

    def spent(self, domain: str, html: bytes, used_s: float, *, passed: bool) -> TrialOutcome:
        """Record a trial; its fair time costs the domain nothing."""
        outcome = TrialOutcome(domain, used_s, max(used_s - self._fair_s(domain, html), 0.0), passed)
        self.count(outcome)
        return outcome

    def count(self, outcome: TrialOutcome) -> None:
        """Count a trial, perhaps one of an earlier life of this worker."""
        self._wasted_s += 0.0 if outcome.passed else outcome.used_s
        known = self._of(outcome.domain)
        if outcome.passed:
            known.passed += 1
        else:
            known.failed += 1
        known.spent_s += outcome.excess_s
        self._domains[outcome.domain] = known
        self._domains.move_to_end(outcome.domain)
        if len(self._domains) > DOMAINS:
            self._domains.popitem(last=False)

    def is_odd(self, domain: str) -> bool:
        """Whether most of a domain's pages failed their trial, and more than a few."""
        known = self._of(domain)
        return known.failed >= FAILURES and known.failed > known.passed

    def _of(self, domain: str) -> _Domain:
        return self._domains.get(domain) or _Domain()

    def _fair_s(self, domain: str, html: bytes) -> float:
        return fair_s(html, SEVERE, SEVERE_BASE_S) if self.is_odd(domain) else fair_s(html)
