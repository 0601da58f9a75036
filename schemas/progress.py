"""crawl.progress: where each worker is, once a second and when it falls idle; compacted by worker and partition.

Key `WORKER/STAGE/PARTITION`. Readers take the last report per (stage, partition) in the order of the topic, whoever
wrote it: a partition has one owner. `at` is for people; clocks jump.
"""

import msgspec

from .codec import decoded

VERSION = 1

MAX_PARSED = 1_000
"""Jobs whose parsed pages a worker counts."""

MAX_PARSED_TOLD = 50
"""Of these the ones that a report names: those of which it parsed a page last."""


class JobCounts(msgspec.Struct, omit_defaults=True):
    """Counts of one job in one partition; all are folds of the log but `in_flight`.

    Attributes:
        folded: Records of this job folded so far.
        queued: URLs with a queue row, waiting ones included; in a report without those that are held.
        held: In a report, URLs with a queue row that no run waits for: of blocked hosts, or of a job that does not run.
        paused: Of those queued, how many a command keeps waiting.
        needs: In a report, how many of those queued their owner may not ask for, by the setting that a worker needs.
        in_flight: URLs being fetched, or done and not folded yet.
        fetched, redirected, failed, refused: Final results folded (not_modified counts as fetched).
        retried: Failed attempts that will be tried again.
        seen: Offered URLs that were known.
        dropped: Links that a rule dropped, by rule: at the owner, or in parse, each as often as it was met there.
        bad: Entries that could not be understood.
        page_end: The offset behind the last page that a done names; 0 again when a lost page is asked for.
        page_back: Dones since then that name no later page than one before them: crawl.pages was cut in between.
    """

    folded: int = 0
    queued: int = 0
    held: int = 0
    paused: int = 0
    in_flight: int = 0
    fetched: int = 0
    redirected: int = 0
    failed: int = 0
    refused: int = 0
    retried: int = 0
    seen: int = 0
    bad: int = 0
    dropped: dict[str, int] = {}
    page_end: int = 0
    page_back: int = 0
    needs: dict[str, int] = {}


class Progress(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True):
    """One worker's report on one partition of its input.

    Attributes:
        stage: `fetch` (input crawl.urls), `parse` (crawl.pages), `sink` (crawl.items).
        offset: Everything before it is folded (fetch) or acknowledged (parse, sink).
        checkpoint: Offset of the state on disk (fetch), of the last commit elsewhere.
        jobs: By job name (fetch): all but those that ended long ago, of which nothing is to do.
        pages, bytes: Since the worker started, over all its partitions.
        parsed: By job, the pages of `pages` (parse); no more than the last `MAX_PARSED_TOLD` of the first `MAX_PARSED`
            jobs. What an earlier report of this process told of another job still holds.
        hosts: Slowest host queues: (host, queued, seconds until it may be asked), the worst first.
        naming: Hosts whose names wait for DNS (fetch).
        unanswered: Requests under way to hosts that have not answered yet, or not lately (fetch).
        paused: Whether a command keeps the stage from working.
        trouble: What it cannot do and tries again, such as to write its file; empty when all goes well.
        note: Why its state begins again, or which records it lacks; empty when all is well.
        cut: The offset at which this worker wanted to go on, where its input ended before it; 0 where it never did.
        sink: Id of the sink (sink): each is a group of its own, with an offset of its own for a partition.
    """

    worker: str
    stage: str
    partition: int
    at: float
    offset: int = 0
    checkpoint: int = 0
    pid: int = 0
    jobs: dict[str, JobCounts] = {}
    pages: int = 0
    bytes: int = 0
    parsed: dict[str, int] = {}
    hosts: list[tuple[str, int, float]] = []
    naming: int = 0
    unanswered: int = 0
    paused: bool = False
    trouble: str = ""
    note: str = ""
    cut: int = 0
    sink: str = ""


_decoder = msgspec.json.Decoder(Progress)
_encoder = msgspec.json.Encoder()


def key(report: Progress) -> bytes:
    """The compaction key."""
    return f"{report.worker}/{report.stage}/{report.partition}".encode()


def encode(report: Progress) -> bytes:
    """The report as JSON."""
    return _encoder.encode(report)


def decode(value: bytes | None) -> Progress | None:
    """The report; None for a tombstone or what is not one."""
    if not value:
        return None
    try:
        return decoded(_decoder, value)
    except ValueError:
        return None
