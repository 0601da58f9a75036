"""crawl.progress: reports of each worker, every second and when it becomes idle; compacted by worker and partition.

Key `WORKER/STAGE/PARTITION`. Readers take the last report per (stage, partition) in the order of the topic, from any
worker, because a partition has one owner. `at` is for people only: clocks jump. A worker that owns no partition reports
itself, as of partition -1.
"""

from typing import Annotated

import msgspec

from .codec import decoded

VERSION = 1

MAX_PARSED = 1_000  # Jobs for which a worker counts parsed pages, at most

MAX_PARSED_TOLD = 50  # Jobs that a report names, at most: those with the latest parsed pages

MAX_ROWS_TOLD = 200  # Jobs whose rows a report names, at most: half of them those written last, and others in turns

MAX_WAITING = 100  # Outputs that a report names as behind, at most

MAX_EXITS = 200  # Exits that a report names, at most

MAX_STUCK = 100  # Jobs that a report names as stuck, at most; with more, no job's outputs count as written


# Upper bounds of the durations of requests that `Progress.took` counts, seconds.
TOOK_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

SUPERVISOR = "CRAWLOG_SUPERVISOR"  # Environment variable that tells a worker `Progress.supervisor`

# `Progress.stage` of a worker that owns no partition, or is still restoring its own. So no reader takes its report for
# one of a partition.
IDLE = "idle"

FLEET = "fleet"  # `Progress.sink` of a sink worker that writes the outputs of all jobs


# A number in a report. Any client may have written it, and one of hundreds of digits fits in no float.
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class JobCounts(msgspec.Struct, omit_defaults=True):
    """Counts of one job in one partition; all are folds of the log except `in_flight`.

    Attributes:
        folded: Records of this job folded so far.
        queued: URLs with a queue row, waiting ones included; a report leaves out those that are held.
        again: URLs that are done and due again later; a report counts those that are due now as queued.
        held: In a report, URLs with a queue row for which no run waits: of a blocked host, or of a job that is stopped.
        paused: Queued URLs that a command keeps waiting.
        needs: In a report, queued URLs that their owner may not fetch, by the setting that a worker needs.
        in_flight: URLs being fetched, or done and not folded yet.
        fetched, redirected, failed, refused: Final results folded (not_modified counts as fetched).
        retried: Failed attempts that will be tried again.
        bytes: Of the bodies of these pages in crawl.pages, as they came.
        seen: Offered URLs that were known.
        statuses: Final answers by status code; an answer that was lost and is asked for again counts each time.
        no_page: Final results without a page, beside those with an error status: by the error's word, or by the type of
            a body that was not kept.
        dropped: Links that a rule dropped at the owner or in parse, by rule; a link counts each time it is met.
        bad: Entries that could not be read.
        page_end: The offset after the last page that a done names; set to 0 when a lost page is fetched again.
        page_back: Dones since then that name a page before `page_end`: crawl.pages was cut in between.
        epoch: In a report, the epoch of the job that the counts are of.
    """

    folded: Whole = 0
    queued: Whole = 0
    again: Whole = 0
    held: Whole = 0
    paused: Whole = 0
    in_flight: Whole = 0
    fetched: Whole = 0
    redirected: Whole = 0
    failed: Whole = 0
    refused: Whole = 0
    retried: Whole = 0
    seen: Whole = 0
    bad: Whole = 0
    statuses: dict[str, Whole] = {}
    no_page: dict[str, Whole] = {}
    dropped: dict[str, Whole] = {}
    bytes: Whole = 0
    page_end: Whole = 0
    page_back: Whole = 0
    needs: dict[str, Whole] = {}
    epoch: Whole = 0


class JobRemarks(msgspec.Struct, omit_defaults=True, frozen=True):
    """What came of the pages of a job, as one parse worker has seen since its start; a page that is parsed again counts
    again.

    Attributes:
        rows: Items of these pages.
        rowless: Pages with an answer to parse from which the job's spider made no item.
        first_rowless: The URL of the first one.
        lost_cookie: The URL of the first form whose answer set a cookie while the job keeps none.
    """

    epoch: Whole = 0
    rowless: Whole = 0
    first_rowless: str = ""
    lost_cookie: str = ""
    rows: Whole = 0


class ExitFigures(msgspec.Struct, omit_defaults=True):
    """What the requests by one exit of a fetch worker came to, since the worker's start.

    Attributes:
        requests: With or without an answer; pages, robots.txt, logins and what pages load in the browser.
        in_flight: Requests that have not ended.
        bans: Answers by which a site turned the exit away.
        failures: Requests that it did not let through, or that nobody answered.
        bytes: Of the bodies of answers.
        median_s: Median duration of the last requests, seconds.
        rests_s: Seconds that it rests for all hosts.
        rests_at: Hosts for which it rests.
    """

    requests: Whole = 0
    in_flight: Whole = 0
    bans: Whole = 0
    failures: Whole = 0
    bytes: Whole = 0
    median_s: float = 0.0
    rests_s: float = 0.0
    rests_at: Whole = 0


class ExitOffer(msgspec.Struct, frozen=True):
    """An address that a worker of the stage `exit` lends.

    Attributes:
        name: The exit's name.
        address: `HOST:PORT`, at which the fleet reaches it.
        nonce: What tickets for it must sign (`streams/exits/tickets.py`); no secret.
        tunnels: Open now.
    """

    name: str
    address: str
    nonce: str
    tunnels: Whole = 0


class Progress(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True):
    """One worker's report on one partition of its input.

    Attributes:
        worker: Its name; empty where `crawlog replay` says to which place it has moved parse.
        stage: `fetch` (input crawl.urls), `parse` (crawl.pages), `sink` (crawl.items); or `IDLE`.
        offset: Everything before it is folded (fetch) or acknowledged (parse, sink).
        checkpoint: Offset of the state on disk (fetch), of the last commit elsewhere.
        jobs: By job name (fetch): jobs whose counts changed since the last report, and others in turns. Jobs that ended
            long ago and have nothing left to do are left out.
        pages, bytes: Totals since the worker started, over all its partitions.
        parsed: By job, the pages of `pages` (parse); at most the last `MAX_PARSED_TOLD` of the first `MAX_PARSED` jobs.
            For other jobs, earlier reports of this process are still true.
        remarks: By job, of those in `parsed`.
        rows: By job, its epoch and the rows that count in its output of this partition (sink): the fold of crawl.items,
            so a restart or a page that is parsed again changes nothing. At most `MAX_ROWS_TOLD` jobs.
        hosts: Slowest host queues: (host, queued, seconds until its next request), the worst first.
        exits: By name, those of the worker with the most requests (fetch); at most `MAX_EXITS`.
            Only in one of the reports that a worker sends together.
        barred: Those of a partition's hosts that wait because all their exits rest (fetch), as in `hosts`.
        naming: Hosts whose names wait for DNS (fetch).
        unanswered: Requests in flight to hosts that have not answered yet, or not lately (fetch).
        paused: Whether a command keeps the stage from working.
        trouble: An error that it retries, such as a failed write of its file; empty without errors.
        note: Why its state begins again, or which records are missing; empty if all is well.
        cut: The offset at which this worker wanted to continue, if its input ended before it; else 0.
        sink: Id of the sink (sink): each sink is its own consumer group, with its own offset in a partition.
            `FLEET` for a sink worker of a fleet.
        passed: Of a sink worker of a fleet: by partition of crawl.items, the offset that all its outputs have passed
            that belong to this partition. Output number k belongs to partition k modulo their count.
        stuck: Jobs whose required outputs of this partition are tried again after an error; `passed` leaves these out.
        unmade: Of a sink worker of a fleet: by partition of crawl.pages, the first page that parse must parse again,
            because crawl.items lost the records of its rows.
        waiting: Of a sink worker of a fleet: by job and output, the records that were read for an output and are not in
            it yet; outputs of this partition that have all are left out, and so are the least behind of very many.
        supervisor: The command that keeps the worker alive, `up` or `run`; empty for a worker without one. A fleet has
            a worker of another kind than `run`.
        host: Name of its machine.
        version: Of crawlog.
        started: UTC epoch seconds of the process's start.
        cpu_s: CPU seconds of the process since its start, with its child processes.
        rss: Resident memory of the process, bytes.
        took: Counts of requests by duration since the start (fetch): number k took at most TOOK_S[k] seconds, the last
            one longer.
        took_s: Sum of these durations, seconds.
        is_partial: Whether `jobs` leaves out jobs whose counts are as in an earlier report of this process.
        piece, pieces: Number of this record, from 0, among those of the report; very many jobs take several records.
        gone: Jobs that earlier reports of this process named and that further ones do not: they ended long ago.
        idle_stage: The stage of a worker that owns no partition; `stage` is `IDLE` then, and `partition` -1. That of
            `crawlog worker start` is `start`, that of `crawlog worker exit` is `exit`.
        offers: The addresses that an exit worker lends; empty while it ends.
        ticket_key: The public key by which a fetch worker's tickets for exits are checked.
        ended: In the last report of a process, why it ends; its supervisor writes one after an unplanned end.
    """

    worker: str
    stage: str
    partition: Whole
    at: float
    offset: Whole = 0
    checkpoint: Whole = 0
    pid: Whole = 0
    jobs: dict[str, JobCounts] = {}
    pages: Whole = 0
    bytes: Whole = 0
    parsed: dict[str, Whole] = {}
    remarks: dict[str, JobRemarks] = {}
    rows: dict[str, tuple[Whole, Whole]] = {}
    hosts: list[tuple[str, Whole, float]] = []
    exits: dict[str, ExitFigures] = {}
    barred: list[tuple[str, Whole, float]] = []
    naming: Whole = 0
    unanswered: Whole = 0
    paused: bool = False
    trouble: str = ""
    note: str = ""
    cut: Whole = 0
    sink: str = ""
    passed: list[Whole] = []
    stuck: list[str] = []
    unmade: dict[int, Whole] = {}
    waiting: dict[str, dict[str, Whole]] = {}
    supervisor: str = ""
    host: str = ""
    version: str = ""
    started: float = 0.0
    cpu_s: float = 0.0
    rss: Whole = 0
    took: list[Whole] = []
    took_s: float = 0.0
    is_partial: bool = False
    piece: Whole = 0
    pieces: Whole = 1
    gone: list[str] = []
    idle_stage: str = ""
    offers: list[ExitOffer] = []
    ticket_key: str = ""
    ended: str = ""


_decoder = msgspec.json.Decoder(Progress)
_encoder = msgspec.json.Encoder()


def stage_of(report: Progress) -> str:
    return report.idle_stage or report.stage


def key(report: Progress) -> bytes:
    return f"{report.worker}/{stage_of(report)}/{report.partition}".encode()


def encode(report: Progress) -> bytes:
    return _encoder.encode(report)


def decode(value: bytes | None) -> Progress | None:
    """The report; None for a tombstone or what is not one."""
    if not value:
        return None
    try:
        report = decoded(_decoder, value)
    except ValueError:
        return None
    return report if report.partition >= 0 or report.stage == IDLE else None
