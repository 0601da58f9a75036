"""Unpacks the body of a page, once and under the guard: each page in a content coding comes through here.

record as it was read ─► unpacked within the page's limit ─┬─► a plain record, as any other from here on
                                                           ├─► too large or broken: the record as it was read,
                                                           │   which counts as without a body, and why
                                                           └─► too large for this worker alone: a dead letter
"""

from crawlog.schemas.pages import PageMeta
from crawlog.streams.coded_pages import coding_in, lacks_room, page_of
from crawlog.streams.errors import PoisonRecord
from crawlog.streams.parse import Message, plain
from crawlog.streams.settings import MAX_BODY_BYTES, RECORD_HEADROOM

from .guard import Guard


def unpacked(guard: Guard, key: str, message: Message, meta: PageMeta) -> tuple[Message, PageMeta]:
    """A page with its plain body; a record that cannot be unpacked stays packed, so that its dead letter is the page.

    Args:
        key: Of the page, for the guard's notes.
    Raises:
        PoisonRecord: It may have a larger body than this worker unpacks.
        BaseException: It took too long, or memory is short.
    """
    headers = message.headers
    if not coding_in(headers):
        return message, meta
    room = guard.bounds.size_bytes
    guard.notes.touch(key)
    try:
        found, body = guard.clock.call(page_of, meta, message.value, headers, room)
    finally:
        guard.notes.lift(key)
    if lacks_room(meta, found, room):
        raise no_room(meta, room)
    return plain(message, body) if body else message, found


def no_room(meta: PageMeta, room: int) -> PoisonRecord:
    """The error of a page whose body this worker does not unpack; a row without it would replace a good one.

    Args:
        room: Largest body that this worker unpacks.
    """
    need = min(meta.limit, MAX_BODY_BYTES) + RECORD_HEADROOM
    return PoisonRecord(
        f"its body was fetched under a limit of {meta.limit} bytes, and has more than the {room} that this worker"
        f" unpacks; set kafka.max_record_bytes to {need} for parse, then send it back with `crawlog dead redrive`"
    )


def plain_body(message: Message) -> bytes:
    """The body of a record that `unpacked` returned; empty if it cannot be unpacked."""
    return b"" if coding_in(message.headers) else message.value or b""
