"""Pages that parse has taken and that wait: for a revision of their job, a trial, or smaller ones to go first.

Each holds back the commit of its partition, so all that wait are few; and of what they hold only so much stays in
memory. A body that was let go lies in crawl.pages, and is read again when the page's turn comes.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.record import Record

from .in_order import Page

WAITING_BYTES = 8 << 20
"""Bodies of the pages in one line that stay in memory, bytes, beyond the first one's."""

HELD_LOOKS = 8
"""Looks at held pages until they wait no more. A job's record is in crawl.control before its first seed is sent, and a
revision moments after it counts; a leader of crawl.control that is away is back, or replaced, before that. Looks, not
seconds: a process that was stopped, a clock that jumps prove nothing. Together they are shorter than the watchdog's
patience (`watchdog.STUCK_S`): a worker that is ended meanwhile begins to count anew."""


class Message(Record, Protocol):
    """What parse needs of a record of crawl.pages."""

    @property
    def headers(self) -> Any:
        """With the metadata."""


class KeptRecord(NamedTuple):
    """A record of crawl.pages, with nothing else alive but its parts."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any


class Waiting(NamedTuple):
    """A page in a line.

    Attributes:
        message: Without its body, as that may be another record's.
        body: None where it was let go.
    """

    message: KeptRecord
    meta: PageMeta
    page: Page
    body: bytes | None

    @property
    def of_log(self) -> PageMeta:
        """Its metadata as that of a page whose body lies where this one's does."""
        at = self.meta.same_as or (self.message.partition, self.message.offset)
        return msgspec.structs.replace(self.meta, same_as=at)

    def whole(self, body: bytes) -> KeptRecord:
        """Its record as it was read; the body is left to its own record where it is another one's."""
        return self.message if self.meta.same_as is not None else self.message._replace(value=body)


class PageLine:
    """Pages that wait for their turn, in the order of coming.

    Args:
        most_bytes: Of their bodies that stay in memory, beyond the first one's.

    Attributes:
        size_bytes: Of the bodies that do.
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
        """The page that has its turn next."""
        return self._pages[0] if self._pages else None

    def add(self, message: Message, meta: PageMeta, page: Page, body: bytes) -> None:
        """A page waits, with its body where there is room."""
        is_room = not self._pages or self.size_bytes + len(body) <= self._most_bytes
        self.size_bytes += len(body) if is_room else 0
        kept = KeptRecord(message.partition, message.offset, message.key, None, message.headers)
        self._pages.append(Waiting(kept, meta, page, body if is_room else None))

    def pop(self) -> Waiting:
        """The first one has its turn. Raises: IndexError: no page waits."""
        first = self._pages.popleft()
        self.size_bytes -= len(first.body or b"")
        return first

    def clear(self) -> None:
        """Forget all of them."""
        self._pages.clear()
        self.size_bytes = 0


HeldPage = tuple[Message, PageMeta, Page]


class Held:
    """Pages of jobs that are not known yet, or not at the revision that they came with.

    Attributes:
        count: Pages held.
        size_bytes: Of their bodies.
    """

    def __init__(self) -> None:
        self._pages: dict[str, list[HeldPage]] = {}
        self._looks: dict[str, int] = {}
        self.count = self.size_bytes = 0

    def add(self, message: Message, meta: PageMeta, page: Page) -> None:
        """Hold a page."""
        self._pages.setdefault(meta.job, []).append((message, meta, page))
        self.count += 1
        self.size_bytes += len(message.value or b"")

    def look(self) -> list[str]:
        """Look at those held; the jobs for which that is one look too many."""
        self._looks = {name: self._looks.get(name, 0) + 1 for name in self._pages}
        return [name for name, looks in self._looks.items() if looks >= HELD_LOOKS]

    def let_go(self, job: str) -> list[HeldPage]:
        """All pages of a job, in the order of coming; it is held no more."""
        held = self._pages.pop(job, [])
        self._looks.pop(job, None)
        self.count -= len(held)
        self.size_bytes -= sum(len(message.value or b"") for message, _, _ in held)
        return held

    def clear(self) -> None:
        """Forget all of them."""
        self._pages.clear()
        self._looks.clear()
        self.count = self.size_bytes = 0
