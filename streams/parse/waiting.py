"""Pages that parse has taken and that wait: for a revision of their job, for a trial, or until smaller pages are done.

Pages of unknown jobs wait as they came. All other bodies are unpacked, and count so.

Each waiting page holds back the commit of its partition, so their number is bounded. So is the memory of their bodies:
a body beyond the limit is dropped, and read again from crawl.pages at the page's turn.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from crawlog.schemas.codec import Record
from crawlog.schemas.pages import PageMeta
from crawlog.streams.coded_pages import plain_headers

from .ack_order import Page

WAITING_BYTES = 8 << 20  # Bodies of one line that stay in memory, bytes; the first page's body always stays

# Looks at held pages after which their wait ends.
#
# A job's record is in crawl.control before its first seed is sent, and a revision is there moments after it takes
# effect. A missing leader of crawl.control is back or replaced within these looks. The unit is looks, not seconds,
# because a stopped process or a clock that jumps proves nothing. All looks together take less than the watchdog's limit
# (`watchdog.STUCK_S`), because a restarted worker counts from zero.
HELD_LOOKS = 8


class Message(Record, Protocol):
    """The part of a crawl.pages record that parse uses."""

    @property
    def headers(self) -> Any:
        """The headers; one has the metadata."""


class KeptRecord(NamedTuple):
    """A copy of a crawl.pages record, so that the original can be freed."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any


def plain(message: Message, body: bytes) -> KeptRecord:
    """A record with its body unpacked."""
    return KeptRecord(message.partition, message.offset, message.key, body, plain_headers(message.headers))


class Waiting(NamedTuple):
    """A page in a line.

    Attributes:
        message: Without its body; `body` has it, which may be from another record.
        body: None if it was dropped.
    """

    message: KeptRecord
    meta: PageMeta
    page: Page
    body: bytes | None

    @property
    def of_log(self) -> PageMeta:
        """Its metadata, with `same_as` pointing to the record that has its body."""
        at = self.meta.same_as or (self.message.partition, self.message.offset)
        return msgspec.structs.replace(self.meta, same_as=at)

    def whole(self, body: bytes) -> KeptRecord:
        """Its record: with the body, unless that is from another record."""
        return self.message if self.meta.same_as is not None else self.message._replace(value=body)


class PageLine:
    """Pages that wait for their turn, first come, first served.

    Args:
        most_bytes: Limit of bodies in memory; the first page's body always stays.

    Attributes:
        size_bytes: Bodies in memory.
    """

    def __init__(self, most_bytes: int = WAITING_BYTES) -> None:
        self._most_bytes = most_bytes
        self._pages: deque[Waiting] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._pages)

    @property
    def first(self) -> Waiting | None:
        return self._pages[0] if self._pages else None

    def add(self, message: Message, meta: PageMeta, page: Page, body: bytes) -> None:
        """Add a page, with its body if there is room."""
        is_room = not self._pages or self.size_bytes + len(body) <= self._most_bytes
        self.size_bytes += len(body) if is_room else 0
        kept = KeptRecord(message.partition, message.offset, message.key, None, message.headers)
        self._pages.append(Waiting(kept, meta, page, body if is_room else None))

    def pop(self) -> Waiting:
        """Remove and return the first page. Raises: IndexError: no page waits."""
        first = self._pages.popleft()
        self.size_bytes -= len(first.body or b"")
        return first

    def clear(self) -> None:
        self._pages.clear()
        self.size_bytes = 0


class TakenPage(NamedTuple):
    """A page that waits, or is parsed by another process."""

    message: Message
    meta: PageMeta
    page: Page


class Held:
    """Pages whose job, or whose revision of it, is not known yet.

    Attributes:
        count: Pages held.
        size_bytes: Of their bodies.
    """

    def __init__(self) -> None:
        self._pages: dict[str, list[TakenPage]] = {}
        self._looks: dict[str, int] = {}
        self.count = self.size_bytes = 0

    def add(self, message: Message, meta: PageMeta, page: Page) -> None:
        """Hold a page."""
        self._pages.setdefault(meta.job, []).append(TakenPage(message, meta, page))
        self.count += 1
        self.size_bytes += len(message.value or b"")

    def look(self) -> list[str]:
        """Count one look for each job; returns the jobs whose pages waited `HELD_LOOKS` looks."""
        self._looks = {name: self._looks.get(name, 0) + 1 for name in self._pages}
        return [name for name, looks in self._looks.items() if looks >= HELD_LOOKS]

    def let_go(self, job: str) -> list[TakenPage]:
        """Remove and return all pages of a job, in the order of arrival."""
        held = self._pages.pop(job, [])
        self._looks.pop(job, None)
        self.count -= len(held)
        self.size_bytes -= sum(len(message.value or b"") for message, _, _ in held)
        return held

    def clear(self) -> None:
        self._pages.clear()
        self._looks.clear()
        self.count = self.size_bytes = 0
