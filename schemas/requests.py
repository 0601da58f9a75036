"""A request with all that belongs to it, as it travels: found → queue row → page.

A plain GET has none: its URL says everything. A request is written where it is made (parse, `start`, a seed) and never
changed on its way, so its page repeats it and a replay needs nothing else. `meta` and `kwargs` are tagged values:
`crawlog.streams.spiders.values` has their forms.
"""

from typing import Annotated, Any

import msgspec

MAX_REQUEST_BYTES = 64 * 1024  # Encoded size of one request, at most


MAX_JAR_BYTES = 256  # Longest name of a cookie jar, bytes

MAX_ACTIONS = 100  # Actions of one request, at most

MAX_NESTING = 100  # Levels of lists and dicts in `kwargs`, `meta` and the arguments of an action, at most


class CookieGiven(msgspec.Struct, omit_defaults=True, frozen=True):
    """A cookie that a request brings along; it joins the jar.

    Attributes:
        domain, path: Empty for those of the request's URL.
    """

    name: str
    value: str
    domain: str = ""
    path: str = ""
    secure: bool = False


class Action(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What is done in the browser with a page: `["click", {"selector": "a.next"}]`.

    Attributes:
        do: Name of a method of Playwright's page; `crawlog.streams.page_actions` has those that there are.
        args: Its arguments by name, JSON values.
    """

    do: str
    args: dict[str, Any] = {}


class RequestRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """All of a request but its URL, its identity, its depth and its priority.

    Attributes:
        url: As the spider wrote it, if the queue holds another spelling: one without the fragment, with a path.
        headers: Names as the user wrote them. Host and framing headers are refused where the request is made.
        without: Names of headers of the job that this request is sent without (Scrapy's `headers={"X-A": None}`).
        body: Base64 in JSON.
        cookies: Join the jar before the request is sent.
        jar: Name of the cookie jar; empty for the job's own.
        keeps_cookies: Whether the jar's cookies are sent and the answer's are kept (Scrapy's `dont_merge_cookies`).
        callback, errback: Names of methods of the spider; empty for `parse` and for none.
        kwargs: Keyword arguments of the callback: tagged values.
        meta: Tagged values.
        unfiltered: Whether it was sent although its fingerprint may be known (Scrapy's `dont_filter`).
        once: Whether it is never sent twice: a kill ends it as failed (`interrupted`).
        attempts: Attempts, the first one included; 0 for the job's.
        timeout_s: Total time; 0 for the job's.
        proxy: URL of its proxy; empty for the job's.
        render: Whether a browser renders it; None for the job's rules.
        actions: What is done with the page in the browser, in order.
        kind: Import path of its class if it is not the plain one, e.g. Scrapy's FormRequest.
        flags: Scrapy's flags.
        answers: Status codes whose answers go to the callback; None for those of the job and the spider.
        all_answers: Whether the answer goes to the callback whatever its status.
        follows: Whether a redirect is followed; else the callback gets it.
    """

    method: str = "GET"
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    without: tuple[str, ...] = ()
    body: bytes = b""
    cookies: tuple[CookieGiven, ...] = ()
    jar: str = ""
    keeps_cookies: bool = True
    callback: str = ""
    errback: str = ""
    kwargs: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    unfiltered: bool = False
    once: bool = False
    attempts: Annotated[int, msgspec.Meta(ge=0)] = 0
    timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    proxy: str = ""
    render: bool | None = None
    actions: tuple[Action, ...] = ()
    kind: str = ""
    flags: tuple[str, ...] = ()
    answers: tuple[int, ...] | None = None
    all_answers: bool = False
    follows: bool = True

    def check(self) -> None:
        """Check what the types cannot say, so that no reader fails later.

        Raises: ValueError: it is too large or nested too deeply, or has a number that msgpack cannot hold.
        """
        size_bytes = len(_encode(self))
        if size_bytes > MAX_REQUEST_BYTES:
            raise ValueError(f"a request of {size_bytes:,} bytes; the limit is {MAX_REQUEST_BYTES:,}")
        if len(self.jar.encode()) > MAX_JAR_BYTES:
            raise ValueError(f"a cookie jar whose name has more than {MAX_JAR_BYTES} bytes")
        if len(self.actions) > MAX_ACTIONS:
            raise ValueError(f"a request with {len(self.actions)} actions; it has at most {MAX_ACTIONS}")
        for values in (self.kwargs, self.meta, *(action.args for action in self.actions)):
            _check_values(values)


def check_identity(identity: int) -> None:
    """Check that an identity has 64 bits. Raises: ValueError."""
    if not 0 <= identity < 1 << 64:
        raise ValueError(f"an identity has 64 bits, not {identity:.3g}")


def _check_values(values: dict[str, Any]) -> None:
    left: list[tuple[Any, int]] = [(values, 1)]
    while left:
        value, depth = left.pop()
        if depth > MAX_NESTING:
            raise ValueError(f"a request whose values are nested more than {MAX_NESTING} levels deep")
        if isinstance(value, dict | list):
            left += [(one, depth + 1) for one in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise ValueError("a request with a number of more than 64 bits")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RequestRecord).decode


def packed(request: RequestRecord | None) -> bytes:
    """The request as a queue row keeps it: JSON; empty for a plain GET."""
    return _encode(request) if request is not None else b""


def unpacked(stored: bytes) -> RequestRecord | None:
    """The request of a queue row; None for a plain GET."""
    return _decode(stored) if stored else None
