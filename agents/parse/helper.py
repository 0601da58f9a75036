"""The process that parses pages for a parse worker whose partition is long: pages in, what they hold out, in order.

    owner: `AskedPages`, a batch of one job ─► `Helper.answer` ─► `BatchFacts` ─► owner: outputs, commits

It knows pages and jobs, and nothing else: no log, no scope names that joined later, no links that were sent. So it
decides nothing. What a page holds does not depend on the process that parses it; all that does stays with the owner.

A page without an answer is parsed by the owner: one that is not simple (the owner has trials), cannot be unpacked, or
raises here. A link is sent to the owner once, then by its place in a table that both sides keep.
"""

import os
import signal
import socket
import struct
import sys
from array import array

import msgspec
from setproctitle import setproctitle

from crawlog.schemas import pages
from crawlog.schemas.urls import JobSpec
from crawlog.streams.coded_pages import page_of
from crawlog.streams.html import Outlink, is_simple
from crawlog.streams.kernel import collect_seldom, die_with, work_in_batch
from crawlog.streams.parse import Job
from crawlog.streams.url import Names, Places

LENGTH = struct.Struct("!I")  # Before each frame, its length

MAX_LINKS = 100_000  # Links in the table; with more, both sides empty it before the next batch

MAX_JOBS = 64  # Jobs that a helper knows; with more, it forgets all of them

NICE = 19  # A helper takes cores that are idle, and next to nothing from other workers


class AskedPages(msgspec.Struct, array_like=True, frozen=True):
    """A batch of pages.

    Attributes:
        spec: The job's record, if the helper does not know this revision.
        forgets: Whether the helper forgets the jobs it knows.
        pages: Headers and value of each record.
    """

    job: str
    spec: JobSpec | None
    forgets: bool
    pages: list[tuple[list[tuple[str, bytes]], bytes]]


class PageFacts(msgspec.Struct, array_like=True, frozen=True):
    """What a page holds.

    Attributes:
        links: Places in the table, 4 bytes each.
        foreign: URLs out of the scope that the helper knows, one a line.
        reached: As `Parsed` has it.
    """

    items: list[bytes]
    links: bytes
    foreign: str
    reached: str


class BatchFacts(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a batch.

    Attributes:
        urls: Canonical URLs that join the table, one a line.
        pages: None for a page that the owner has to parse.
    """

    urls: str
    pages: list[PageFacts | None]


class Helper:
    """Parses batches.

    Args:
        partitions: Of the topics keyed by domain.
        room: Largest body that is unpacked, bytes.
    """

    def __init__(self, partitions: int, room: int) -> None:
        self._places = Places(partitions)
        self._room = room
        self._jobs: dict[str, Job] = {}
        self._table: dict[int, int] = {}

    def answer(self, asked: AskedPages) -> BatchFacts:
        """The answer to a batch."""
        if asked.forgets:
            self._jobs.clear()
        if asked.spec is not None:
            self._jobs[asked.job] = Job(asked.job, asked.spec, self._places, Names())
        if len(self._table) >= MAX_LINKS:
            self._table.clear()
        job, urls = self._jobs[asked.job], list[str]()
        held = [self._held(job, headers, value, urls) for headers, value in asked.pages]
        return BatchFacts("\n".join(urls), held)

    def _held(self, job: Job, headers: list[tuple[str, bytes]], value: bytes, urls: list[str]) -> PageFacts | None:
        try:
            meta = pages.meta_in(headers)
            unpacked, body = page_of(meta, value, headers, self._room)
            if unpacked is not meta or not is_simple(body):
                return None
            parsed = job.parsed(meta, body)
        except Exception:  # noqa: BLE001  # the owner parses the page, and has limits and dead letters
            return None
        links = array("I", [self._place(link, urls) for link in parsed.outlinks]).tobytes()
        return PageFacts(list(map(bytes, parsed.items)), links, "\n".join(parsed.foreign), parsed.reached)

    def _place(self, link: Outlink, urls: list[str]) -> int:
        place = self._table.get(link.fingerprint)
        if place is None:
            place = self._table[link.fingerprint] = len(self._table)
            urls.append(link.url)
        return place


def serve(owner: socket.socket, partitions: int, room: int) -> None:
    """Answer batches until the owner is gone."""
    helper = Helper(partitions, room)
    asked, encode = msgspec.msgpack.Decoder(AskedPages), msgspec.msgpack.Encoder().encode
    with owner, owner.makefile("rb") as reader:
        while len(head := reader.read(LENGTH.size)) == LENGTH.size:
            answer = encode(helper.answer(asked.decode(reader.read(LENGTH.unpack(head)[0]))))
            owner.sendall(LENGTH.pack(len(answer)) + answer)


def main() -> None:
    """Arguments: the owner's pid and name, partitions, room; standard input is the socket."""
    pid, name, partitions, room = sys.argv[1:]
    die_with(int(pid))
    setproctitle(f"crawlog: {name} helper")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the owner ends first, then its helpers
    os.nice(NICE)
    work_in_batch()
    collect_seldom()
    serve(socket.socket(fileno=0), int(partitions), int(room))


if __name__ == "__main__":
    main()
