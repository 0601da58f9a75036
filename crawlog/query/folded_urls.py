"""The URLs in the queues of crawl.urls: what its fold has at the log's end. Results of URLs are a kept table.

Scope, depth, budgets and traps decide what is queued, so only the fold knows. A worker's checkpoint in this data folder
is copied, by links, and folded to the log's end. Without one, as on another machine, the query keeps a fold of its own.
"""

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.streams.cluster import LogIdentity, log_bounds, log_identity
from crawlog.streams.errors import NotCopied
from crawlog.streams.files import write
from crawlog.streams.fold import rows as r
from crawlog.streams.log import Topics
from crawlog.streams.state import Partition, Restorer, States, bounding, copy_database

from .kept_table import CHUNK_ROWS, VERSION, Row, locked, remove_left, write_file
from .tables import place, queued_row, results_table

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

KINDS = {b"q": "queued", b"w": "waiting"}  # Rows of the state, and their state in the table


class Queues(msgspec.Struct):
    """The files with all queued URLs at these ends of crawl.urls.

    Attributes:
        skipped: Ranges of places in crawl.urls that rewinds cancelled, and the epoch that each began: results of
            earlier epochs there do not count.
    """

    log: LogIdentity
    ends: dict[int, int]
    version: int = VERSION
    files: list[str] = []
    skipped: list[tuple[int, int, int]] = []


def queues(settings: "Settings", folder: Path, partitions: int) -> Queues:
    """The queues at the log's end.

    Raises: EngineError: the log cannot be read.
    """
    topic = Topics(settings.kafka.prefix).urls
    with locked(folder):
        ends = {at: end for at, (_, end) in log_bounds(settings, topic, list(range(partitions))).items()}
        now = Queues(log_identity(settings, topic), ends)
        with suppress(OSError, ValueError):
            kept = msgspec.json.decode((folder / "queues.json").read_bytes(), type=Queues)
            if (kept.log, kept.ends, kept.version) == (now.log, now.ends, now.version):
                return kept
        own = settings.model_copy(update={"run": settings.run.model_copy(update={"data": folder})})
        with ExitStack() as opened:
            states = [opened.enter_context(closing(one)) for one in _opened(own, settings.run.data / "state", ends)]
            Restorer(own, topic).restore(states, lambda *_: None, bounding(own.state.checkpoint_changes, states))
            for one in states:
                one.checkpoint()
            now.ends = {one.number: one.offset for one in states}
            now.skipped = [
                (place(one.number, skip.start), place(one.number, skip.end), skip.epoch)
                for one in states
                for skip in one.fold.skipped
            ]
            now.files = [write_file(folder, results_table(rows)).name for rows in _chunks(states)]
        write(folder / "queues.json", msgspec.json.encode(now))
        remove_left(folder, now.files)
    return now


def _opened(own: "Settings", of_workers: Path, ends: Mapping[int, int]) -> Iterator[Partition]:
    states = States(own, Topics(own.kafka.prefix).urls)
    states.ask()
    for number in ends:
        if (of_workers / str(number) / "CURRENT").exists():
            folder = own.run.data / "state" / str(number)
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            with suppress(NotCopied):
                copy_database(of_workers / str(number), folder)
        yield states.open(number, threading.Event())


def _chunks(states: list[Partition]) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for one in states:
        jobs = {r.job_of(key): r.read_job(value).name for key, value in _scan(one, b"j")}
        for kind, state in KINDS.items():
            for key, value in _scan(one, kind):
                if (job := jobs.get(r.job_of(key))) is not None:
                    rows.append(queued_row(job, r.read_queued(value), state))
                if len(rows) >= CHUNK_ROWS:
                    yield rows
                    rows = []
    yield rows


def _scan(state: Partition, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in state.db.scan(kind):
        if not key.startswith(kind):
            return
        yield key, value
