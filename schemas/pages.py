"""crawl.pages: every final result of a fetch, with its body; keyed by registrable domain.

The value is the body as bytes (empty for failures). A body that came in a content coding is kept as it came, and the
header `content-encoding` names the coding; without that header the body is plain. The metadata is JSON in the header
`crawlog`. Pages, redirects, HTTP errors and failures are all records of this topic, so parse sees every result once.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from .codec import decoded, version_1
from .requests import RequestRecord, check_identity

VERSION = 1

HEADER = "crawlog"  # Name of the record header that holds the metadata

# Name of the record header that holds the codings of the body, in the order in which they were applied.
CODING = "content-encoding"


class ActionResult(msgspec.Struct, omit_defaults=True, frozen=True):
    """What an action in the browser returned; nothing, for most.

    Attributes:
        json: A value, as text.
        data: The bytes of a screenshot.
    """

    json: str = ""
    data: bytes = b""

    @property
    def value(self) -> Any:
        """Raises: ValueError, RecursionError: the text is no JSON."""
        return self.data or (msgspec.json.decode(self.json) if self.json else None)


class Was(msgspec.Struct, omit_defaults=True, frozen=True):
    """What was known of a page when it was asked for; of the newest `PageChange`.

    Attributes:
        digest: 0 if it was not parsed before.
        item: (partition, offset) in crawl.items of the record that had its items first; None if it had none.
    """

    digest: int = 0
    item: tuple[int, int] | None = None


class PageMeta(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """All data of a response except its body.

    Attributes:
        url: Canonical, as queued and as sent.
        rev: The job revision that it was fetched under; parse holds the page until it knows that revision.
        depth, hops, via, seed: As in the found that queued it; `seed` is true for a seed and what a seed redirects to.
        http: Status code, None when there was no response.
        error: Why there was no whole response, else empty. One of these words, some with a reason after `: `:

            - No address: `dns`. No connection: `connection_refused`, `connect: …` (no route, …), `connect_timeout`.
            - TLS: `tls: …`, `tls_certificate: …`.
            - Silence: `first_byte_timeout`, `chunk_timeout` (within the body, `http` is set), `timeout` (in all).
            - Broken off: `disconnected`, `connection_reset`; within the body `bad_body: …` (`http` is set).
            - The proxy: `proxy` (no answer, or it broke off), `proxy_login` (407), `bad_proxy: …` (refused).
            - No HTTP: `bad_http: …` (the bad line), `header_too_large: …`, `too_many_headers: …`.
            - A response whose body is not kept (`http` is set): `too_large`, `bad_encoding`.
            - Never sent: `robots`, `robots_unreachable: …` (a word of this list, or `http_503`), `private_address: …`,
              `bad_port: …`, `bad_method: …`, `bad_url`, `login_failed: …`, `crash_loop`, `interrupted`.
            - A redirect that is not followed, as its row or its errback has it: `scope: …`, `bad_url`,
              `redirect_undone: …` (the job's canonical rules make the target the URL itself), `redirect_circle: …` (it
              leads back to a URL that led here, or to itself).
            - In the browser: `action: …` (number, name and selector of the action, and why it failed; `http` is set).
            - Ours: `answer_broken: …`; any other word is the name of an exception.

            A status code alone, such as 404, is no error.
        location: Target of a redirect as sent, joined with `url` by the reader; else empty. A rendered page that went
            to another URL by itself is a redirect too, with any status code.
        content_type: The header, as sent; of several types the one that counts.
        fetched_at: UTC epoch seconds when the response was complete.
        took_s: Seconds from the request to then.
        sniffed: The type of the body by its bytes, if the header has none or another one; else empty.
        link, x_robots: The response's Link and X-Robots-Tag headers, one value each, cut to what is useful.
        refresh: Its header Refresh.
        kind: A sitemap gives links and no row; `robots` has the Sitemap lines of a robots.txt, one per line.
        rendered: Why a browser rendered the body: `request`, `rule`, `always`, or what was empty; empty if it was not
            rendered.
        render_error: Why the browser stopped early (`rendered` is set) or failed (`rendered` is empty).
        shown_url: URL of the document that the browser showed after the request's actions, if it is not `url`.
        results: What the request's actions returned, one each.
        kept: Whether the body was kept (content type accepted); False gives a row from the headers alone.
        limit: Most bytes of a body in a coding, decoded. A larger one counts as not kept: `too_large`.
        same_as: (partition, offset) of the older page with the same body: the server answered 304 (not modified).
        id: Identity of its request; 0 for a plain GET.
        request: All of the request but its URL; None for a plain GET.
        attempt: Number of the attempt that it answers.
        headers: All headers of the response in order, Latin-1, where the job has a spider, keeps cookies or all
            headers, or the page has a request.
        sent, status_line: Headers of the request as sent, without logins, and the response's first line; both only
            where the job keeps all headers.
        row, priority: Of the queue row that it answers, as in its done; a page whose done is lost gets another one by
            them. None for a robots.txt.
        rest_s: Rest of the whole host from then on, as in its done, seconds; 0 if only the crawl delay.
        worker, exit: Names of the worker that asked for it, and of the exit by which it did; `exit` is empty where it
            has none.
        leads_back: Whether it redirects back to a URL that redirected here, and that would now get cookies that it was
            not sent before.
        was: Of a job whose URLs are due again; None in other jobs.
    """

    url: str
    job: str
    rev: int = 1
    epoch: int = 0
    depth: int = 0
    hops: int = 0
    seed: bool = False
    http: int | None = None
    error: str = ""
    location: str = ""
    content_type: str = ""
    fetched_at: float = 0.0
    took_s: float = 0.0
    kept: bool = True
    limit: int = 0
    sniffed: str = ""
    link: tuple[str, ...] = ()
    x_robots: tuple[str, ...] = ()
    refresh: str = ""
    kind: Literal["page", "sitemap", "robots"] = "page"
    rendered: str = ""
    render_error: str = ""
    shown_url: str = ""
    results: tuple[ActionResult, ...] = ()
    same_as: tuple[int, int] | None = None
    leads_back: bool = False
    id: int = 0
    request: RequestRecord | None = None
    attempt: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    sent: tuple[tuple[str, str], ...] = ()
    status_line: str = ""
    row: int | None = None
    priority: int = 0
    rest_s: float = 0.0
    worker: str = ""
    exit: str = ""
    via: bytes = b""
    was: Was | None = None

    @property
    def is_refused(self) -> bool:
        """Whether robots.txt refused the request: only its errback gets this page, and it counts as none."""
        return self.http is None and self.error == "robots"


_decoder = msgspec.json.Decoder(PageMeta)
_encoder = msgspec.json.Encoder()


def with_body(meta: PageMeta, old: PageMeta) -> PageMeta:
    """A page that was not modified, with the older page's fields about the body.

    The headers of a 304 count in place of the older page's (RFC 9111 3.2).
    """
    told = {name.lower() for name, _ in meta.headers}
    return msgspec.structs.replace(
        meta,
        headers=(*(line for line in old.headers if line[0].lower() not in told), *meta.headers),
        content_type=old.content_type,
        sniffed=old.sniffed,
        link=meta.link or old.link,
        x_robots=meta.x_robots or old.x_robots,
        refresh=meta.refresh or old.refresh,
        kept=True,
    )


def headers(meta: PageMeta, coding: str = "") -> list[tuple[str, bytes]]:
    """The headers of a page's record.

    Args:
        coding: Of its body; empty for a plain one.
    """
    named = [(HEADER, encode(meta))]
    return [*named, (CODING, coding.encode())] if coding else named


def encode(meta: PageMeta) -> bytes:
    return _encoder.encode(meta)


def decode(header: bytes | None) -> PageMeta:
    """The metadata of a page.

    Raises: ValueError: no such header, not JSON, or of another version.
    """
    if header is None:
        raise ValueError(f"no header {HEADER!r}")
    meta = decoded(_decoder, version_1(header))
    check_identity(meta.id)
    if meta.request is not None:
        meta.request.check()
    return meta


def header_in(headers: Iterable[tuple[str, Any]] | None) -> bytes | None:
    """The header that holds the metadata; None if there is none, or one without a value. Of several the first counts.

    Args:
        headers: Of a record, as either client gives them.
    """
    return next((value for name, value in headers or () if name == HEADER), None)


def meta_in(headers: Iterable[tuple[str, Any]] | None) -> PageMeta:
    """The metadata in a record's headers. Args: as `header_in`. Raises: ValueError: as `decode`."""
    return decode(header_in(headers))
