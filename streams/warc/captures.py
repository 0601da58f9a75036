"""A page of crawl.pages as WARC 1.1 records, one gzip member each. Pure.

    304, of an older page ──────────► revisit (server-not-modified) ──────┐
    a body that the archive has ────► revisit (identical-payload-digest) ─┼─ and its request
    another answer ─────────────────► response ───────────────────────────┘
    rendered, or no headers kept ───► resource: the body alone
    no answer, or neither headers nor body ─► nothing

A body lies in crawl.pages as it came, without the coding of its transfer; one that a browser was to see is plain.
Headers that are no longer true are named `X-Orig-…`, as Browsertrix does.
"""

import re
from base64 import b32encode
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha1
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from crawlog.schemas.pages import PageMeta

if TYPE_CHECKING:
    from crawlog.streams.cluster import LogIdentity

PROFILE = "http://netpreserve.org/warc/1.1/revisit/"

# Values of WARC-Truncated, by the first word of an error.
_TRUNCATED = {
    "too_large": "length",
    "timeout": "time",
    "chunk_timeout": "time",
    "disconnected": "disconnect",
    "connection_reset": "disconnect",
    "bad_body": "disconnect",
}

_PLAIN = re.compile(r"[^\x00-\x20\x7f]+")  # What may stand in a line of a record
_LINE = re.compile(r"[^\r\n\0]*")
_STATUS = re.compile(r"(HTTP/\d\.\d) (\d{3} [^\r\n\0]*)")


class PageRecord(NamedTuple):
    """A record of crawl.pages.

    Attributes:
        coding: Of its body; empty for a plain one.
    """

    partition: int
    offset: int
    meta: PageMeta
    body: bytes
    coding: str

    @property
    def place(self) -> str:
        return f"{self.partition}:{self.offset}"

    @property
    def kind(self) -> str:
        """The type of its record, before it is known whether the archive has its body; empty for none."""
        meta = self.meta
        if meta.http is None or meta.kind == "robots":
            return ""
        if meta.rendered or not meta.status_line:
            return "resource" if self.body else ""
        return "revisit" if meta.same_as is not None else "response"


class Capture(NamedTuple):
    """A response in the archive that revisits may refer to.

    Attributes:
        place: Of its page in crawl.pages, as `PageRecord.place` has it.
        date: `WARC-Date`.
    """

    place: str
    url: str
    date: str
    digest: str

    @classmethod
    def of(cls, page: PageRecord) -> "Capture":
        """That of a page. Raises: ValueError: its time is none."""
        return cls(page.place, page.meta.url, date_of(page.meta), digest_of(page.body))


class Member(NamedTuple):
    """One record.

    Attributes:
        content: Its gzip member.
        fields: Of its line in the index; None for a request, which is not looked up.
    """

    content: bytes
    fields: dict[str, str] | None


def digest_of(body: bytes) -> str:
    """`WARC-Payload-Digest`."""
    return f"sha1:{b32encode(sha1(body, usedforsecurity=False).digest()).decode()}"


def date_of(meta: PageMeta) -> str:
    """`WARC-Date`, whole seconds: a line of the index has no more. Raises: ValueError: there is no such time."""
    try:
        return datetime.fromtimestamp(meta.fetched_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError) as error:
        raise ValueError(f"fetched_at {meta.fetched_at}: {error}") from None


def id_of(log: "LogIdentity", place: str, kind: str = "") -> UUID:
    """The id of a record: the same when the page is read again, so nobody counts it twice."""
    return uuid5(NAMESPACE_URL, "/".join(("crawlog:", *log, *place.split(":"), kind)))


def info_member(log: "LogIdentity", name: str, fields: dict[str, str]) -> bytes:
    """The record that begins a file."""
    text = "".join(f"{key}: {value}\r\n" for key, value in fields.items()).encode()
    headers = {"WARC-Record-ID": f"<urn:uuid:{id_of(log, name)}>", "WARC-Filename": name}
    return _member("", "warcinfo", text, headers)


def members(page: PageRecord, log: "LogIdentity", original: Capture | None) -> Iterator[Member]:
    """The records of a page.

    Args:
        log: Identity of crawl.pages.
        original: What a revisit refers to: the page of a 304, or one with the same body.

    Raises: ValueError: any client may write records, and this one would forge others.
    """
    meta, kind = page.meta, page.kind
    if not kind:
        return
    if not _PLAIN.fullmatch(meta.url):
        raise ValueError(f"{meta.url!r:.200} is not a URL")
    headers = {"WARC-Record-ID": f"<urn:uuid:{id_of(log, page.place)}>", "WARC-Date": date_of(meta)}
    fields = {"url": meta.url}
    if kind == "resource":
        mime = meta.content_type if _LINE.fullmatch(meta.content_type) else ""
        fields |= {"mime": _essence(mime)} | {"digest": digest_of(page.body)}
        headers["WARC-Payload-Digest"] = fields["digest"]
        yield Member(_member(meta.url, kind, page.body, headers, mime or "application/octet-stream"), _set(fields))
        return
    http = _http_head(page)
    response_id = headers["WARC-Record-ID"]
    profile = "server-not-modified" if kind == "revisit" else "identical-payload-digest"
    if kind == "revisit" or original is not None:
        kind = "revisit"
        headers["WARC-Profile"] = PROFILE + profile
        headers |= _refers(log, page, original)
    else:
        headers["WARC-Payload-Digest"] = digest_of(page.body)
        headers |= {"WARC-Truncated": why} if (why := _truncated(page)) else {}
    mime = "warc/revisit" if kind == "revisit" else _essence(http.get_header("content-type", ""))
    fields |= {"mime": mime, "status": str(meta.http), "digest": headers.get("WARC-Payload-Digest", "")}
    body = page.body if kind == "response" else b""
    yield Member(_member(meta.url, kind, body, headers, http=http), _set(fields))
    asked = {"WARC-Record-ID": f"<urn:uuid:{id_of(log, page.place, 'request')}>", "WARC-Concurrent-To": response_id}
    sent = meta.request.body if meta.request is not None else b""
    asked["WARC-Date"] = headers["WARC-Date"]
    yield Member(_member(meta.url, "request", sent, asked, http=_request_head(meta)), None)


def _set(fields: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value}


def _essence(content_type: str) -> str:
    return re.split(r"[;\s]", content_type, maxsplit=1)[0]


def _refers(log: "LogIdentity", page: PageRecord, original: Capture | None) -> dict[str, str]:
    """What a revisit says of its original; of one that the log no longer has, only which it is."""
    place = original.place if original is not None else "{}:{}".format(*(page.meta.same_as or ()))
    found = {"WARC-Refers-To": f"<urn:uuid:{id_of(log, place)}>"}
    found["WARC-Refers-To-Target-URI"] = original.url if original is not None else page.meta.url
    if original is not None:
        found |= {"WARC-Refers-To-Date": original.date, "WARC-Payload-Digest": original.digest}
    return found


def _truncated(page: PageRecord) -> str:
    """Why a body is not here that the server would have sent; empty if there was none, or it is here."""
    meta = page.meta
    has_none = meta.http in (204, 304) or (meta.request is not None and meta.request.method.upper() == "HEAD")
    length = next((value for name, value in meta.headers if name.lower() == "content-length"), "")
    if meta.kept or has_none or length.strip() == "0":
        return ""
    return _TRUNCATED.get(meta.error.partition(":")[0], "unspecified")


def _http_head(page: PageRecord) -> Any:
    status = _STATUS.fullmatch(page.meta.status_line)
    if status is None or status[2][:3] != str(page.meta.http):
        raise ValueError(f"{page.meta.status_line!r:.100} is not the first line of an answer {page.meta.http}")
    return _head(status[2], [*_true_headers(page)], status[1])


def _true_headers(page: PageRecord) -> Iterator[tuple[str, str]]:
    for name, value in page.meta.headers:
        about = name.lower()
        is_decoded = about == "content-encoding" and not page.coding
        is_other_length = about == "content-length" and value.strip() != str(len(page.body))
        is_gone = about == "transfer-encoding" or (bool(page.body) and (is_decoded or is_other_length))
        yield f"X-Orig-{name}" if is_gone else name, value


def _request_head(meta: PageMeta) -> Any:
    method = meta.request.method.upper() if meta.request is not None else "GET"
    target = meta.url[meta.url.index("/", 8) :]
    return _head(f"{target} HTTP/1.1", meta.sent, method)


def _head(line: str, headers: Any, first: str) -> Any:
    """The head of a message, for warcio. Raises: ValueError: a line of it would be several."""
    from warcio.statusandheaders import StatusAndHeaders

    if not all(_LINE.fullmatch(text) for text in (first, line, *(text for one in headers for text in one))):
        raise ValueError("a line break in a header")
    head = StatusAndHeaders(line, list(headers), first)
    head.headers_buff = head.to_str().encode("latin-1") + b"\r\n"
    head.compute_headers_buffer = lambda _: None  # warcio's own escapes what is not ASCII
    return head


def _member(url: str, kind: str, body: bytes, headers: dict[str, str], mime: str = "", http: Any = None) -> bytes:
    from warcio.warcwriter import WARCWriter

    out = BytesIO()
    writer = WARCWriter(out, gzip=True, warc_version="1.1")
    payload = BytesIO(body) if body or kind != "revisit" else None
    record = writer.create_warc_record(
        url,
        kind,
        payload=payload,
        length=len(body),
        warc_content_type=mime,
        warc_headers_dict=headers,
        http_headers=http,
    )
    writer.write_record(record)
    return out.getvalue()
