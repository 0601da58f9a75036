"""The dead letters of a log: which are open, which are handled, and how often each record was tried. Pure.

A fold of crawl.dead: a letter opens, a mark closes. A redriven record has a new place. If it fails again, the new
letter names that place. The mark names both places, so tries are counted here, and no stage has to count them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import xxhash

from crawlog.schemas import pages
from crawlog.schemas.codec import decoded
from crawlog.schemas.dead import Mark, by_name, decode_mark, from_headers, is_mark, place_of, without_item

_NUMBER = re.compile(r"\d+")

FOLD = "frontier"  # The stage that writes the same letter again when the log is folded again

Headers = list[tuple[str, bytes]]


class Letter(msgspec.Struct):
    """A dead letter without its record.

    Attributes:
        offset, at: Its offset and time in crawl.dead.
        place: Topic, partition and offset of the failed record.
        url: The URL of the record; empty where it names none.
        size_bytes: Of the record's value; None where only its place was kept.
        tries: How often the record failed, redrives included.
        handled: `redriven`, `dropped`, or empty while it is open.
    """

    offset: int
    at: float
    stage: str
    job: str
    place: tuple[str, int, int]
    error: str
    url: str = ""
    size_bytes: int | None = None
    tries: int = 1
    handled: str = ""

    @property
    def kind(self) -> str:
        """Names the letter's stage and error; numbers in an error may differ."""
        return xxhash.xxh64_hexdigest(f"{self.stage}\n{_NUMBER.sub('0', self.error)}".encode())


class LetterChoice(msgspec.Struct, frozen=True):
    """A filter of letters; empty fields match all.

    Attributes:
        reason: Part of the error's text; upper and lower case are equal.
        offsets: In crawl.dead.
        since: Leaves out older letters; UTC epoch seconds.
        upto: The last offset; None for no limit.
        kind: As `Letter.kind` has it.
    """

    stage: str = ""
    job: str = ""
    reason: str = ""
    offsets: frozenset[int] = frozenset()
    since: float = 0.0
    upto: int | None = None
    kind: str = ""

    def takes(self, letter: Letter) -> bool:
        return (
            (not self.stage or letter.stage == self.stage)
            and (not self.job or letter.job == self.job)
            and self.reason.lower() in letter.error.lower()
            and (not self.offsets or letter.offset in self.offsets)
            and self.kind in ("", letter.kind)
            and letter.at >= self.since
            and (self.upto is None or letter.offset <= self.upto)
        )


class Letters:
    """All letters so far, by offset."""

    def __init__(self) -> None:
        self.all: dict[int, Letter] = {}
        self._tries: dict[tuple[str, int, int], int] = {}
        self._newest: dict[tuple[str, int, int], Letter] = {}
        self._folded: set[tuple[tuple[str, int, int], str, int]] = set()

    def take(self, offset: int, at: float, headers: Headers, value: bytes | None) -> None:
        """Fold one record of crawl.dead; it may be garbage of another client."""
        if is_mark(headers):
            self._close(value)
            return
        named = by_name(headers)
        found = from_headers(named, None, None)
        place = (found.topic, found.partition, found.offset)
        if found.stage == FOLD and self._is_told(place, found.error, value):
            return
        size_bytes = None if value is None else len(value)
        tries = self._tries.get(place, 1)
        url = _url(named.get(pages.HEADER), value)
        letter = Letter(offset, at, found.stage, found.job, place, found.error, url, size_bytes, tries)
        self.all[offset] = self._newest[place] = letter

    def _is_told(self, place: tuple[str, int, int], error: str, value: bytes | None) -> bool:
        """Whether the same letter of the fold came before: a log that is folded again gives its letters again."""
        said = place, error, hash(value)
        was_told = said in self._folded
        self._folded.add(said)
        return was_told

    def _close(self, value: bytes | None) -> None:
        try:
            mark = decode_mark(value)
        except ValueError:
            return  # garbage of another client
        for index, offset in enumerate(mark.handled):
            letter = self.all.get(offset)
            if letter is None:
                continue
            letter.handled = mark.how
            if index < len(mark.to):
                partition, to = mark.to[index]
                place = (letter.place[0], partition, to)
                self._tries[place] = max(self._tries.get(place, 1), letter.tries + 1)
                if (again := self._newest.get(place)) is not None:  # it failed before the mark was written
                    again.tries = self._tries[place]

    def chosen(self, choice: LetterChoice, *, handled: bool = False) -> list[Letter]:
        """The letters that match, oldest first; handled ones only on request."""
        return [one for one in self.all.values() if (handled or not one.handled) and choice.takes(one)]


class _About(msgspec.Struct):
    """The URLs of any record of crawl.urls or crawl.items."""

    url: str = ""
    urls: "list[_About]" = []
    results: "list[_About]" = []


_about = msgspec.json.Decoder(_About)


def _url(header: bytes | None, value: bytes | None) -> str:
    """The URL of a record, from a page's metadata or from its value."""
    try:
        if header is not None:
            return pages.decode(header).url
        about = decoded(_about, value or b"")
    except ValueError:
        return ""
    several = about.urls or about.results or [about]
    return several[0].url + (f" (and {len(several) - 1} more)" if len(several) > 1 else "")


def letters_by_error(letters: Iterable[Letter]) -> list[list[Letter]]:
    """Letters grouped by kind, the largest group first."""
    errors: dict[str, list[Letter]] = {}
    for letter in letters:
        errors.setdefault(letter.kind, []).append(letter)
    return sorted(errors.values(), key=lambda group: (-len(group), -group[-1].offset))


def letter_fate(letter: Letter) -> str:
    """The word for users: a dropped letter is `laid aside`, since `dropped` is a word for URLs."""
    return "laid aside" if letter.handled == "dropped" else letter.handled


class CommonestError(NamedTuple):
    """The commonest kind of error: the text of its first error, its number of records or items, where it was raised."""

    error: str
    records: int
    place: str = ""


class LetterTally:
    """Counts the failed records of one job, and the failed items of records whose pages gave items to pipelines.

    What failed several times at its place counts once.

    Attributes:
        items: Number of failed items.
    """

    def __init__(self, job: str) -> None:
        self._job = job.encode()
        self._places: set[tuple[bytes, ...]] = set()
        self._kinds: dict[str, CommonestError] = {}
        self.items = 0

    def take(self, headers: Headers) -> None:
        """Count one record of crawl.dead, by its headers."""
        named = by_name(headers)
        error, item = without_item(named.get("error", b"").decode("utf-8", "replace"))
        place = (*(named.get(name, b"") for name in ("topic", "partition", "offset")), item.encode())
        if is_mark(headers) or named.get("job") != self._job or place in self._places:
            return
        self._places.add(place)
        self.items += item != ""
        kind = error.partition(":")[0]
        place_of_code = place_of(named.get("traceback", b"").decode("utf-8", "replace"))
        first, count, where = self._kinds.get(kind, (error, 0, place_of_code))
        self._kinds[kind] = CommonestError(first, count + 1, where)

    @property
    def count(self) -> int:
        return len(self._places)

    @property
    def commonest(self) -> CommonestError | None:
        """The commonest kind, without the details that follow the first colon. None if no record failed."""
        return max(self._kinds.values(), key=lambda kind: kind.records, default=None)


def letters_by_place(letters: Iterable[Letter]) -> list[list[Letter]]:
    """Letters grouped by record: a record that was read twice, or that has two faults, has several letters."""
    places: dict[tuple[str, int, int], list[Letter]] = {}
    for letter in letters:
        places.setdefault(letter.place, []).append(letter)
    return list(places.values())


def letter_mark(groups: list[list[Letter]], how: str, to: list[tuple[int, int]], at: float) -> Mark:
    """The mark that closes groups of letters.

    Args:
        to: New partition and offset of each group's record; empty if no record was sent.
    """
    offsets = [letter.offset for group in groups for letter in group]
    places = [place for group, place in zip(groups, to, strict=True) for _ in group] if to else []
    return Mark(offsets, "redriven" if how == "redriven" else "dropped", places, at)


def redrive_refusal(letter: Letter, inputs: Mapping[str, str], partitions: int) -> str:
    """The reason why a letter's record cannot be redriven; empty when it can.

    Any client may write to crawl.dead, so a letter may name any topic. A record is redriven only to the topic that its
    stage reads. A forged letter could else write commands and jobs into crawl.control.

    Args:
        inputs: The input topic of each stage.
        partitions: Number of partitions of each of these topics.
    """
    topic, partition, offset = letter.place
    if letter.stage not in inputs:
        return f"records of the stage {letter.stage!r:.80} do not go back: it has no topic of its own to read them from"
    if topic != inputs[letter.stage]:
        return f"the stage {letter.stage} reads {inputs[letter.stage]}, and the dead letter names {topic!r:.80}"
    return "" if 0 <= partition < partitions and offset >= 0 else "it does not say where its record was"
