"""Crash points: named instants, between any two writes, at which a test may end the process.

    CRAWLOG_CRASH="/tmp/spent fetch.page.acknowledged:3 sink.rows.written:1"

A process that reaches `fetch.page.acknowledged` for the third time, or `sink.rows.written` for the first time, kills
itself with SIGKILL: no handler runs, no buffer is flushed. Just before that it creates a file of the point's name in
the folder. While the file exists, no other process dies at this point. Without the variable `point` does nothing.

`coordinator.ordering:1:stop` stops the process there instead (SIGSTOP): a zombie, once it is sent SIGCONT.
"""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .errors import Misconfigured

VARIABLE = "CRAWLOG_CRASH"

# State of the log and of the disk at each point.
POINTS = {
    "job.sending": "before a job's record goes to the first partition",
    "job.acknowledged": "a job's record is in every partition, its copy is not in crawl.control",
    "job.copied": "the copy is there, no seed is",
    "order.sending": "before an order for a job",
    "order.acknowledged": "the order is in the log, its writer does not know whether it was taken",
    "delete.removing": "a job is deleted, before the next of its notes is removed from crawl.control",
    "rewind.noted": "crawl.control says that a rewind has begun, no partition does",
    "rewind.sending": "before the epoch record goes to a partition",
    "rewind.acknowledged": "it is in every partition, no job record of the epoch is",
    "rewind.founds.sending": "before founds of pages that are not fetched again are sent once more",
    "rewind.complete": "all of a rewind is in the log, the command has not gone on",
    "code.chunks": "the chunks of a deployed project are in the log, its manifest is not",
    "replay.announced": "jobs wait for the rows of a replay, what it leaves out is noted, parse has not moved",
    "redrive.acknowledged": "records of dead letters are in their topics again, no mark says so",
    "seeds.sending": "before a batch of seeds",
    "seeds.acknowledged": "all seeds are in the log, the command has not gone on",
    "start.sending": "before requests of a spider's start are sent",
    "start.item.sending": "before items of a spider's start are sent",
    "start.noting": "all that a spider's start gave is in the log, crawl.control does not say so",
    "start.noted": "crawl.control says that it has ended, the command has not gone on",
    "fold.taken": "a record is folded in memory, nothing is on disk",
    "forward.sending": "before a found that landed wrong, or a dead letter of the frontier, is sent",
    "forward.acknowledged": "it is in the log, no checkpoint says so",
    "checkpoint.writing": "before the batch of rows and offset",
    "checkpoint.written": "the rows are on disk, nobody was told",
    "coordinator.ordering": "a job is due to end, no order says so",
    "coordinator.ordered": "the order is in the log, not folded",
    "coordinator.copying": "an order is folded, before the job's record goes to another partition",
    "coordinator.copied": "every partition has the record, crawl.control does not",
    "coordinator.told": "the copy is sent to crawl.control, the end is not",
    "coordinator.ending": "before the end of a job is sent to crawl.control",
    "coordinator.ended": "it is sent, perhaps not acknowledged",
    "schedule.planning": "a schedule's time has come, crawl.control does not say so",
    "schedule.planned": "crawl.control says so, no job of the run is in the log",
    "schedule.created": "the jobs and their seeds are in the log, crawl.control does not say so",
    "hook.calling": "before a call at the end of a job",
    "hook.called": "it was made, crawl.control does not say so",
    "restore.opened": "the databases are open, nothing is read",
    "restore.batch": "amid the reading of a restore",
    "restore.checkpointed": "after a checkpoint within a restore",
    "restore.forward.sending": "before a found that landed wrong, or a dead letter, is sent that a restore has met",
    "restore.dones.sending": "before dones are sent that are made of pages without one",
    "restore.dones.acknowledged": "they are in the log, not folded",
    "restore.live": "restored, nothing dispatched",
    "fetch.began.sending": "before it is written that a request begins which is never sent twice",
    "fetch.began.acknowledged": "it is in the log, nothing was sent to the site",
    "fetch.answered": "the response is here, no record was written",
    "fetch.page.sending": "before the page is sent",
    "fetch.page.acknowledged": "the page is in the log, its done is not",
    "fetch.done.sending": "before a batch of dones",
    "fetch.done.acknowledged": "the done is in the log, not folded",
    "revoke.started": "before requests in flight are drained",
    "revoke.drained": "they are, no checkpoint was written",
    "revoke.checkpointed": "the last checkpoints are written, the databases are open",
    "revoke.closed": "all is closed, the group does not know",
    "commit.sending": "before offsets are committed",
    "commit.acknowledged": "the broker has them, we do not know",
    "parse.taken": "a page is read, nothing was written",
    "parse.item.sending": "before a page's items",
    "parse.founds.sending": "before a batch of founds",
    "parse.founds.acknowledged": "the founds are in the log, the page is not done",
    "parse.changes.sending": "a page's items are in the log, before the state learns of their change",
    "parse.changes.acknowledged": "it is in the log, the page is not done",
    "parse.page.done": "all outputs of a page are in the log, its offset is not committed",
    "parse.again.noting": "stored pages are parsed again and their outputs in the log, crawl.control does not say so",
    "parse.again.noted": "crawl.control says so, the worker has not gone on",
    "parse.dead.sending": "before a page goes to crawl.dead",
    "sink.rows.writing": "before rows are appended to the file",
    "sink.rows.written": "they are in the file, the state does not say so",
    "sink.state.written": "state and file agree, nothing is committed",
    "store.writing": "before a store gets rows",
    "store.written": "a store has them, the worker does not know that yet",
    "pipelines.rows.written": "rows that pipelines made are in the file, the state does not say so",
    "pipelines.state.written": "the state says so, the next items are not given to them",
    "pipelines.closed": "pipelines were closed, the state does not say so",
    "warc.pages.written": "pages are in a WARC file, its manifest does not say so",
    "warc.manifest.written": "the manifest says so, the worker has not gone on",
    "finish.noted": "what FILE will be is on record, it has not its name yet",
    "finish.renamed": "FILE is complete, the job is not on record as finished",
    "copy.written": "another output has the rows that pipelines made, crawl.control does not say so",
    "output.made": "FILE of a job's output on a fleet is made, crawl.control does not say so",
    "output.noted": "crawl.control says so, the worker has not gone on",
}


_POINT = re.compile(r"([a-z.]+):([1-9][0-9]*)(:stop)?")


class _End(NamedTuple):
    """The end of a process: the signal that it sends itself when it reaches a point for the `visits`-th time."""

    visits: int
    sends: signal.Signals


def _nothing(_name: str) -> None:
    pass


def _armed(spec: str) -> Callable[[str], None]:
    folder, left = _read(spec)

    def point(name: str) -> None:
        if name not in left:
            return
        visits, sends = left.pop(name)
        if visits > 1:
            left[name] = _End(visits - 1, sends)
            return
        try:
            os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), sends)

    return point


def _read(spec: str) -> tuple[Path, dict[str, _End]]:
    folder, *points = spec.split()
    found = [one for point in points if (one := _POINT.fullmatch(point)) and one[1] in POINTS]
    if not found or len(found) < len(points) or not Path(folder).is_dir():
        raise Misconfigured(
            f'{VARIABLE}={spec!r}: it is "FOLDER POINT:COUNT …" or "POINT:COUNT:stop", with points of '
            f"{', '.join(POINTS)}. Unset it for a crawl."
        )
    return Path(folder), {one[1]: _End(int(one[2]), signal.SIGSTOP if one[3] else signal.SIGKILL) for one in found}


# Called with the name of the point that this process has reached.
point: Callable[[str], None] = _armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _nothing
