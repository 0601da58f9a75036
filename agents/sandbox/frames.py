"""Frames between a worker and a spider's child: a kind, a text and a body, each frame with its lengths in front.

    worker: load, page, next, call ─► child ─► one answer each, in the same order: done, failed, ended
                                          ├──► more, at any time: the call that runs gives outputs
                                          ├──► items, requests: of a large answer, before it (answers.py)
                                          └──► fetch, at any time ─► worker ─► fetched: what the user's code downloads

A body lies in a frame as it is, so it is neither encoded nor escaped. The texts are JSON, because items already are.
"""

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from crawlog.streams.spiders import CallResult

LOAD: Final = 1  # Load the spider: the text is a `LoadRequest`
PAGE: Final = 2  # Run the spider for a page: the text is a `PageMeta`, the body the page's
WHOLE: Final = 8  # Like `PAGE`; all requests are given whole, see `RequestOut.is_known`
NEXT: Final = 3  # Give the next part of `Runner.start`; the text is what may be asked of one that waits
CALL: Final = 4  # Call another method: the text is its name, the body its argument

DONE: Final = 5  # The answer: a `SpiderFacts`, a `CallResult`, or the body of a call
FAILED: Final = 6  # The spider cannot be loaded, or a call failed: the text is a `Fault`
ENDED: Final = 7  # `Runner.start` has ended
MORE: Final = 9  # No answer: the call that runs has given more outputs

ITEMS: Final = 10  # Items of the answer that follows: the body has one on each line
REQUESTS: Final = 11  # Its requests, each a `RequestOut`

FETCH: Final = 12  # No answer: the text is a `DownloadAsk`
FETCHED: Final = 13  # To the child: the text is a `Downloaded`, the body its page's

HEAD: Final = struct.Struct(">BII")  # Kind, length of the text, length of the body

ROOM: Final = 1 << 17  # Bytes of a new buffer, and least free space for a read


class SpiderFrame(NamedTuple):
    """One message.

    Attributes:
        outputs: Those of an answer that came before it, already read; they do not travel in this frame.
    """

    kind: int
    text: bytes = b""
    body: bytes = b""
    outputs: "CallResult | None" = None

    def parts(self) -> tuple[bytes, ...]:
        """The bytes to write, in order; the body is not copied."""
        head = HEAD.pack(self.kind, len(self.text), len(self.body)) + self.text
        return (head, self.body) if self.body else (head,)


class TooLong(Exception):
    """A frame is longer than allowed, or no frame at all."""


class FrameReader:
    """Cuts a stream of bytes into frames. Write into `space`, tell `filled` how much, then `take` until None.

    Args:
        most_bytes: Longest body.
        most_text: Longest text; None for as long as a body.
    """

    def __init__(self, most_bytes: int, most_text: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._most_text = most_bytes if most_text is None else most_text
        self._buffer = bytearray(ROOM)
        self._begin = self._end = 0
        self._needed = HEAD.size

    def space(self) -> memoryview:
        """The free part of the buffer, never empty. The frame that is arriving fits in."""
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._buffer) > ROOM and self._needed <= ROOM:
                self._buffer = bytearray(ROOM)  # after a large frame
        missing = self._needed - (self._end - self._begin)
        if len(self._buffer) - self._end < max(missing, ROOM // 4):
            rest = self._buffer[self._begin : self._end]
            self._begin, self._end = 0, len(rest)
            if len(self._buffer) < self._needed:
                self._buffer = bytearray(self._needed + ROOM)
            self._buffer[: len(rest)] = rest
        return memoryview(self._buffer)[self._end :]

    def filled(self, count: int) -> None:
        """So many bytes were written into `space`."""
        self._end += count

    def take(self) -> SpiderFrame | None:
        """The next whole frame; None if it is not here yet. Raises: TooLong."""
        here = self._end - self._begin
        if here < self._needed:
            return None
        kind, text_size, body_size = HEAD.unpack_from(self._buffer, self._begin)
        if text_size > self._most_text or body_size > self._most_bytes or not LOAD <= kind <= FETCHED:
            raise TooLong(f"a frame of {text_size + body_size:,} bytes")
        size = HEAD.size + text_size + body_size
        if here < size:
            self._needed = size
            return None
        text_at = self._begin + HEAD.size
        body_at = text_at + text_size
        with memoryview(self._buffer) as whole:
            frame = SpiderFrame(kind, bytes(whole[text_at:body_at]), bytes(whole[body_at : body_at + body_size]))
        self._begin += size
        self._needed = HEAD.size
        return frame
