"""What an answer means for its URL and its host: the end or another attempt, and how long the host rests.

A host that turns requests away or is silent rests longer each time, and at least as long as Retry-After asks for.
Requests in flight that fail together are one time. A URL is tried again if another attempt may end otherwise, not
before the time that Retry-After of any answer asks for. A failure of the proxy makes no host rest.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from crawlog.streams.frontier import TURNED_AWAY, backoff_s, retry_after_s
from crawlog.streams.http import NOT_MODIFIED, PRECONDITION_FAILED, RETRY_STATUSES
from crawlog.streams.requests import IDEMPOTENT

if TYPE_CHECKING:
    from crawlog.schemas.requests import RequestRecord
    from crawlog.schemas.urls import RequestRules
    from crawlog.streams.frontier import Host
    from crawlog.streams.http import Answer
    from crawlog.streams.requests import RequestPolicy

MOST_S = 3600.0  # Longest backoff between two attempts at a URL; Retry-After may ask for more

# Errors that another attempt at the same server would meet again, unless its status is tried again anyway.
_FOR_GOOD = frozenset({"too_large", "bad_encoding", "header_too_large", "too_many_headers"})

# Errors of an answer that came and cannot be read: its host is not silent.
_UNREAD = frozenset({"bad_http", "header_too_large", "too_many_headers"})

_CONDITIONS = frozenset({"if-none-match", "if-modified-since"})  # Headers that ask for a 304 (RFC 9110 13.1)

# Errors before the server received anything of the request.
UNSENT = frozenset({"dns", "connection_refused", "connect", "connect_timeout", "tls", "tls_certificate", "proxy_login"})


def is_sent_once(request: "RequestRecord | None", rules: "RequestRules") -> bool:
    """Whether a request that a server may have received is not sent again."""
    if request is None or request.method.upper() in IDEMPOTENT:
        return request is not None and request.once
    return request.once or not rules.repeat_posts


def may_pass(answer: "Answer", statuses: Collection[int] = RETRY_STATUSES) -> bool:
    """Whether another attempt may end otherwise. It may for a page that broke off: the next one may be whole.

    Args:
        statuses: Those that another attempt may change.
    """
    if answer.is_cookie_check:
        return True
    is_for_good = answer.error in _FOR_GOOD and answer.http not in statuses  # such an answer is not the page's
    if answer.private or is_for_good:
        return False
    if answer.http is None or answer.http in statuses or _mistakes_condition(answer):
        return True
    return bool(answer.error) and 200 <= answer.http < 300


def _mistakes_condition(answer: "Answer") -> bool:
    """Whether the server misread the condition: a 304 for no page of ours, or a 412 for a GET (RFC 9110 13.1)."""
    if answer.http == NOT_MODIFIED:
        return answer.same_as is None
    return answer.http == PRECONDITION_FAILED and answer.is_conditional


class Again(NamedTuple):
    """Another attempt at a URL.

    Attributes:
        reason: Why there is another attempt, in a word.
        wait_s: Seconds before it.
    """

    reason: str
    wait_s: float


class Retrying:
    """Decides on attempts and rests by the rules of jobs.

    Args:
        jitter: Draws from [0, 1), to spread waits.
    """

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter

    def rest_s(self, host: "Host", answer: "Answer", now: float, policy: "RequestPolicy", in_round: int) -> float:
        """How long the whole host must rest beside its crawl delay; counts its failures in a row.

        Args:
            now: UTC epoch seconds.
            policy: The policy of the job that asked.
            in_round: The host's round when the request was dispatched.
        """
        if answer.by_proxy:
            return 0.0
        is_silent = answer.http is None and not answer.private and answer.error not in _UNREAD
        if answer.http not in TURNED_AWAY and not is_silent:
            host.failures = 0
            return 0.0
        host.failed(in_round)
        most_s = policy.rules.max_delay_s
        backoff = backoff_s(host.failures, policy.rules.retry_delay_s, most_s, self._jitter())
        return max(self.asked_s(answer, now, policy), min(backoff, most_s))

    @staticmethod
    def asked_s(answer: "Answer", now: float, policy: "RequestPolicy") -> float:
        """How long the answer asks to wait before another attempt, within the limit; it may do so with any status."""
        return min(retry_after_s(answer.retry_after, now) or 0.0, policy.rules.max_delay_s)

    def again(
        self,
        answer: "Answer",
        attempt: int,
        least_s: float,
        policy: "RequestPolicy",
        request: "RequestRecord | None" = None,
    ) -> Again | None:
        """The next attempt; None when this answer is final.

        Args:
            attempt: Number of the attempt that this answer ended, >= 1.
            least_s: Least wait: the rest of the host, and what the answer asks for.
            request: What was sent, if it was no plain GET.
        """
        rules = policy.rules
        if attempt >= rules.attempts or not may_pass(answer, rules.retry_statuses):
            return None
        if request is not None and not _may_repeat(answer, request, rules):
            return None
        if answer.is_cookie_check:
            return Again("cookie_check", max(least_s, answer.again_s))
        backoff = backoff_s(attempt, rules.retry_delay_s, MOST_S, self._jitter())
        return Again(answer.reason or f"http_{answer.http}", max(backoff, least_s, answer.again_s))


def _may_repeat(answer: "Answer", request: "RequestRecord", rules: "RequestRules") -> bool:
    """Whether a request may be sent again after an answer that another attempt may change."""
    if answer.is_cookie_check and not request.follows:
        return False  # its callback wants the redirect
    if answer.http == NOT_MODIFIED and any(name.lower() in _CONDITIONS for name, _ in request.headers):
        return False  # its own condition holds
    is_unsent = answer.http is None and answer.error in UNSENT
    return is_unsent or not is_sent_once(request, rules)
