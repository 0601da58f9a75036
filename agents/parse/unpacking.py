"""Unpacks the body of a page, once and under the guard: each page in a content coding comes through here.

record as it was read ─► unpacked within the page's limit ─┬─► a plain record, as any other from here on
                                                           └─► too large or broken: the record as it was read,
                                                               which counts as without a body, and why
"""

from crawlog.schemas.pages import PageMeta
from crawlog.streams.http import coding_in, page_of
from crawlog.streams.parse import Message, plain

from .guard import Guard


def unpacked(guard: Guard, key: str, message: Message, meta: PageMeta) -> tuple[Message, PageMeta]:
    """A page with its plain body; a record that cannot be unpacked stays packed, so that its dead letter is the page.

    Args:
        key: Of the page, for the guard's notes.
    Raises: BaseException: it took too long, or memory is short.
    """
    headers = message.headers
    if not coding_in(headers):
        return message, meta
    guard.notes.touch(key)
    try:
        meta, body = guard.clock.call(page_of, meta, message.value, headers, guard.bounds.size_bytes)
    finally:
        guard.notes.lift(key)
    return plain(message, body) if body else message, meta


def plain_body(message: Message) -> bytes:
    """The body of a record that `unpacked` returned; empty if it cannot be unpacked."""
    return b"" if coding_in(message.headers) else message.value or b""
