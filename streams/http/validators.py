"""The ETag and Last-Modified of a page, for conditional requests in a later epoch (RFC 9110 8.8, 13.1).

A row of the state's cache column for each page that has one, 60–210 bytes: losing it costs a whole body. It is written
once crawl.pages has acknowledged the page that it points to. In a later epoch the request carries it; on 304 the new
page has no body but points to the old one, which parse reads. An epoch does this once for each URL: the row then has
the epoch's number, so that a URL whose old page turns out to be gone is fetched whole. A job that asks in another way,
such as for another language, may get another representation: it fetches the page whole (RFC 9111 4.1).

    key:   b"v" + <xxh3_64 of the job's name> + <fingerprint of the URL>, 8 bytes each, big endian
    value: MessagePack [ETag, Last-Modified, offset in crawl.pages, epoch, is_whole, way of asking]; the
           partition is the state's own
"""

import re

import msgspec
import xxhash

from crawlog.streams.url import fingerprint

MAX_ETAG = 120
MAX_DATE = 40  # Longer ones are not kept, characters

UNWRITTEN = -1  # Offset of a page that is not in the log yet

_sendable = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*")


class Validators(msgspec.Struct, frozen=True, array_like=True):
    """The validators of a page, as sent: weak tags and odd dates are for the server to judge.

    Attributes:
        is_whole: Its HTML was examined, and needs no browser.
        selected_by: The `RequestPolicy.selecting` that the page was asked for with.
    """

    etag: str
    modified: str
    offset: int
    epoch: int
    is_whole: bool = False
    selected_by: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        both = {"If-None-Match": self.etag, "If-Modified-Since": self.modified}
        return {name: value for name, value in both.items() if value}


def of_headers(etag: str | None, modified: str | None) -> Validators | None:
    """The validators of a response, of no page yet; None when it has none that can be kept."""
    if etag is None and modified is None:
        return None
    is_any = etag is not None and "*" in (tag.strip() for tag in etag.split(","))  # asked so, any page is the same
    found = Validators("" if is_any else _kept(etag, MAX_ETAG), _kept(modified, MAX_DATE), UNWRITTEN, 0)
    return found if found.etag or found.modified else None


def _kept(value: str | None, most: int) -> str:
    return value if value and len(value) <= most and _sendable.fullmatch(value) else ""


def key(job: str, url: str) -> bytes:
    return b"v" + xxhash.xxh3_64_digest(job.encode()) + fingerprint(url).to_bytes(8, "big")


def may_ask(known: Validators, after: int, before: int, low: int, verdict: str) -> bool:
    """Whether they may be sent: the job's own older page is still in crawl.pages, and its body would do.

    Args:
        after: Epoch of the deleted job that had the job's name; -1 without one.
        before: Epoch that the page must be older than: the job's, or the next one for a URL that is due again.
        low: Where the partition of crawl.pages begins, as far as is known.
        verdict: Whether its job wants it rendered; the stored body is not rendered, but may need no browser.
    """
    is_body = not verdict or (verdict == "auto" and known.is_whole)
    return is_body and after < known.epoch < before and known.offset >= low


pack = msgspec.msgpack.Encoder().encode
read = msgspec.msgpack.Decoder(Validators).decode
