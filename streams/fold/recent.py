"""Fingerprints that were known or marked lately, for domains with more pages than memory holds.

Links repeat those of the web pages before, and the fingerprints of a few hundred lie in as many pages of the seen
table. A page in memory takes 2,500 bytes, an entry here 16: a link that comes again is known without its page.
"""

from array import array

PER_CACHED_PAGE = 32
"""Entries for each page that may be held: 512 bytes."""


class RecentMarks:
    """A table in which a fingerprint has one place, and a newer one takes it.

    Args:
        pages: Pages that may be held in memory.
    """

    __slots__ = ("_marks", "_mask", "_owners")

    def __init__(self, pages: int) -> None:
        size = 1 << (pages * PER_CACHED_PAGE).bit_length() - 1
        self._mask = size - 1
        self._marks = array("Q", bytes(8 * size))
        self._owners = array("Q", bytes(8 * size))

    def has(self, owner: int, mark: int) -> bool:
        """Whether a domain's fingerprint was noted; a domain has a number of its own, 1 at least."""
        at = (mark >> 20) & self._mask
        return self._marks[at] == mark and self._owners[at] == owner

    def note(self, owner: int, mark: int) -> None:
        """Remember that a domain has a fingerprint."""
        at = (mark >> 20) & self._mask
        self._marks[at] = mark
        self._owners[at] = owner
