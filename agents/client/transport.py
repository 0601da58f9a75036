"""One request as a value, and the protocol that answers it: the seam between the crawl and the web.

    fetch, robots.txt, logins, a page in the browser ─► Transport.get(HttpRequest) ─► Answer

`Client` is the transport that reaches the web. A transport that wraps another one is a middleware. Tests pass a
transport of their own.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.exits import Exit
from crawlog.streams.http import Answer
from crawlog.streams.requests import RequestPolicy
from crawlog.streams.session import Form

from .body import BodyBudget


class Asker(NamedTuple):
    """The caller of a request.

    Attributes:
        is_anonymous: Neither login nor cookies are sent, and none are kept.
        is_public: The caller is a page from a public address, and may never reach private ones.
        wants_place: Whether the answer must say if it came from a private address.
        bodies: A separate budget for its body, for requests whose caller already holds some of `fetch.bodies_mb`.
    """

    is_anonymous: bool = False
    is_public: bool = False
    wants_place: bool = False
    bodies: BodyBudget | None = None


THE_CRAWL = Asker()


class HttpRequest(NamedTuple):
    """One request.

    Attributes:
        url: Canonical.
        any_type: Keep the body whatever its type (robots.txt).
        max_bytes: Keep so many bytes and drop the rest; None for the job's limit, above which no body is kept.
        job: The job whose cookies are sent; empty for no cookies.
        headers: Further headers; those of its job and of logins override them.
        policy: Of the job that the request is for; None for the worker's own requests.
        asker: The caller.
        within_s: Time limit of the whole answer, if it is shorter than the job's.
        form: The form posted to the URL; None for a GET.
        record: Method, headers, body and proxy of a request that is no plain GET. Its headers override those of its
            job. Redirects are never followed here, and every status is an answer.
        all_headers: Whether the answer has all headers of the response.
        as_came: Whether a coded body stays as it came; `Answer.coding` then names its codings. A transport that looks
            at bodies asks for plain ones.
        exit: The exit it goes by; None to pick one, and the next one if that fails.
    """

    url: str
    any_type: bool = False
    max_bytes: int | None = None
    job: str = ""
    headers: Mapping[str, str] | None = None
    policy: RequestPolicy | None = None
    asker: Asker = THE_CRAWL
    within_s: float | None = None
    form: Form | None = None
    record: RequestRecord | None = None
    all_headers: bool = False
    as_came: bool = False
    exit: Exit | None = None


class Transport(Protocol):
    """Answers requests."""

    async def get(self, request: HttpRequest, /) -> Answer:
        """The answer; every failure is an answer too.

        Returns: The caller must return `Answer.held` when it no longer needs the body: other requests may wait for it.
        Raises: LeaseLost: nothing was sent, or it failed after the lease was lost. That is no answer.
        """
