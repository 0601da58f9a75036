"""The combined reports of all workers.

A partition has one owner, so the last report per (stage, partition) is valid. On a cluster a worker of another command
may have written it. But each sink reads all partitions, so `FleetReports` takes those of one sink only.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from crawlog.schemas.progress import IDLE, JobCounts, JobRemarks, Progress

# Age of the oldest reports that show a fleet as it is, seconds: each job is named within ten reports of a worker.
RECENT_S = 22.0

TURNS = 10  # Reports of a process that together name every job of its partition


def has_answered(counts: JobCounts) -> bool | None:
    """Whether a page came, or word that it is unchanged; None if the log does not say so, as that of older versions."""
    return any(code[:1] == "2" or code == "304" for code in counts.statuses) if counts.statuses else None


def is_in_vain(counts: JobCounts, start_items: int = 0) -> bool:
    """Whether no page could be fetched: none of the answers was a 2xx or a 304. Where nothing was asked for, `start`
    may have given items all the same: by itself, or as a middleware answered its requests.
    """
    if (answered := has_answered(counts)) is not None:
        return not answered
    return not counts.fetched and bool(counts.failed or counts.refused or not start_items)


def ended(counts: JobCounts) -> int:
    """Pages that a job has in the log. A refused URL has none."""
    return counts.fetched + counts.redirected + counts.failed


class FleetReports:
    """The newest report of each partition, and their sums.

    Args:
        own: Names of this command's workers, all of whose reports arrive here. Others may have worked before.

    Attributes:
        sink: Id of the sink whose reports count; those of others are left out.
        remarks: What each process of parse says of its pages, by job.
        rows: By job and partition of sink workers, its epoch and the rows of its output; of all sinks.
        cuts: Offsets that workers wanted but that lay beyond the end of their input, by stage and partition.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self.sink = ""
        self._own = frozenset(own)
        self.cuts: dict[tuple[str, int], int] = {}
        self.newest: dict[tuple[str, int], Progress] = {}
        self._parsed: dict[tuple[str, int], dict[str, int]] = {}
        self.remarks: dict[tuple[str, int], dict[str, JobRemarks]] = {}
        self.rows: dict[str, dict[int, tuple[int, int]]] = {}
        self._parsed_before: dict[tuple[str, int], dict[str, int]] = {}
        self._pids: set[int] = set()
        self._stopped: set[tuple[str, str, int]] = set()
        self._turns: Counter[tuple[str, int]] = Counter()

    def take(self, report: Progress) -> None:
        """Adds a report. Reports must come in the order of the topic: the last one is valid.

        Times in reports do not decide: a worker whose clock was set back would be ignored. A late report of a former
        owner is valid until the owner's next one, a second later. It cannot end a job: its offset is too low.
        Reports of workers without partitions are ignored.
        """
        who = report.stage, report.worker, report.pid
        for job, rows in report.rows.items():
            self.rows.setdefault(job, {})[report.partition] = rows
        if report.stage == IDLE or who in self._stopped or (report.stage == "sink" and report.sink != self.sink):
            return
        report = self.newest[report.stage, report.partition] = self._merged(report)
        if report.cut:
            self.cuts[report.stage, report.partition] = report.cut
        self._pids.add(report.pid)
        if report.stage == "parse":
            self._note_parsed(report)

    def _merged(self, report: Progress) -> Progress:
        """The report with the counts that earlier ones of its process named: they still hold.

        Another process's reports replace them: it folds the partition now.
        """
        place = report.stage, report.partition
        before = self.newest.get(place)
        if not report.is_partial or before is None or (before.worker, before.pid) != (report.worker, report.pid):
            self._turns[place] = _turns_of(report) - (report.piece > 0)  # the pieces before it are not known
            return report
        self._turns[place] += _turns_of(report)
        before.jobs.update(report.jobs)
        for job in report.gone:
            before.jobs.pop(job, None)
        is_partial = before.is_partial and self._turns[place] < TURNS
        return msgspec.structs.replace(report, jobs=before.jobs, is_partial=is_partial)

    def _note_parsed(self, report: Progress) -> None:
        """Notes a worker's parsed pages; those that another command's worker parsed before the run do not count."""
        worker = report.worker, report.pid
        self._parsed[worker] = self._parsed.get(worker, {}) | report.parsed
        self.remarks[worker] = self.remarks.get(worker, {}) | report.remarks
        is_new = report.worker in self._own or not self._own
        self._parsed_before.setdefault(worker, {} if is_new else report.parsed)

    def counts(self, job: str, epoch: int = 0) -> JobCounts:
        """The counts of a job over all partitions; those of an epoch before this one are another job's."""
        total = JobCounts()
        for one in self.counts_of(job, epoch):
            _add(total, one)
        return total

    def counts_of(self, job: str, epoch: int) -> Iterator[JobCounts]:
        """The counts of a job in each partition, as far as these are of this epoch or a later one."""
        for report in self.of("fetch"):
            one = report.jobs.get(job)
            if one is not None and one.epoch >= epoch:
                yield one

    def paused(self, job: str) -> str:
        """Parts that commands have paused, in words; empty if there are none."""
        counts = self.counts(job)
        parts = [f"{stage} paused" for stage in ("parse", "sink") if any(report.paused for report in self.of(stage))]
        if counts.paused:
            parts.insert(0, "paused" if counts.paused >= counts.queued else f"{counts.paused:,} of them paused")
        return ", ".join(parts)

    def trouble(self, stage: str) -> str:
        """The failure that a stage is retrying; empty if there is none."""
        return next((report.trouble for report in self.of(stage) if report.trouble), "")

    def notes(self) -> set[str]:
        """Reasons why states begin again, for the user."""
        return {report.note for report in self.newest.values() if report.note}

    def forget(self, stage: str) -> None:
        """Forgets the reports of a stage whose own workers were stopped, and ignores late reports of these.

        Workers of other commands go on, and report again.
        """
        for report in list(self.of(stage)):
            if report.worker in self._own:
                self._stopped.add((stage, report.worker, report.pid))
            del self.newest[stage, report.partition]

    def jobs(self) -> set[str]:
        """Names of the jobs that were reported."""
        return {name for report in self.of("fetch") for name in report.jobs}

    def of(self, stage: str) -> Iterator[Progress]:
        """The newest reports of a stage."""
        return (report for (name, _), report in self.newest.items() if name == stage)

    def parsed(self, job: str) -> int:
        """Pages of a job parsed since the first report, also by workers that have died."""
        before = sum(counts.get(job, 0) for counts in self._parsed_before.values())
        return sum(counts.get(job, 0) for counts in self._parsed.values()) - before

    def rows_of(self, job: str, epoch: int) -> int | None:
        """Rows of a job in its outputs; None if no output has reported any."""
        return max((rows for of, rows in self.rows.get(job, {}).values() if of == epoch), default=None)

    def remarks_of(self, job: str, epoch: int) -> JobRemarks:
        """What all parse workers say of a job's pages in an epoch; what they say of other epochs is left out."""
        each = [one for of in self.remarks.values() if (one := of.get(job)) is not None and one.epoch == epoch]
        return JobRemarks(
            epoch,
            sum(one.rowless for one in each),
            next((one.first_rowless for one in each if one.first_rowless), ""),
            next((one.lost_cookie for one in each if one.lost_cookie), ""),
            sum(one.rows for one in each),
        )

    def has_reported(self, pid: int) -> bool:
        """Whether a worker process has ever sent a report."""
        return pid in self._pids

    def lag(self, stage: str, ends: tuple[int, ...]) -> int:
        """Records of a stage's input that it has not passed."""
        passed = {report.partition: report.offset for report in self.of(stage)}
        return sum(max(0, end - passed.get(partition, 0)) for partition, end in enumerate(ends))

    def hosts(self) -> list[tuple[str, int, float]]:
        """The slowest host queues: (host, queued, seconds until the next request), the longest first."""
        return sorted((host for report in self.of("fetch") for host in report.hosts), key=lambda host: -host[1])

    def strangers(self) -> tuple[int, int]:
        """Hosts that wait for DNS, and requests in flight to hosts that have not answered yet, or not recently."""
        reports = list(self.of("fetch"))
        return sum(report.naming for report in reports), sum(report.unanswered for report in reports)

    def has_passed(self, stage: str, ends: tuple[int, ...]) -> bool:
        """Whether every partition of a stage's input has been passed up to these ends."""
        return self.passed(stage, ends) == len(ends)

    def passed(self, stage: str, ends: tuple[int, ...]) -> int:
        """How many partitions of a stage's input have been passed up to these ends."""
        return sum(
            not end or ((report := self.newest.get((stage, partition))) is not None and report.offset >= end)
            for partition, end in enumerate(ends)
        )

    def has_written(self, job: str, output: int, ends: tuple[int, ...]) -> bool:
        """Whether the sink worker that has an output, by the number of its home, has passed these ends of crawl.items.

        Home k is with the owner of partition k modulo their count.
        """
        report = self.newest.get(("sink", output % len(ends))) if ends else None
        passed = report.passed if report is not None and job not in report.stuck else []
        return all(not end or (at < len(passed) and passed[at] >= end) for at, end in enumerate(ends))


def _turns_of(report: Progress) -> int:
    """The reports that end with a record."""
    return int(report.piece == report.pieces - 1)


def _add(total: JobCounts, one: JobCounts) -> None:
    for name in JobCounts.__struct_fields__:
        sums, counts = getattr(total, name), getattr(one, name)
        if isinstance(counts, dict):
            for key, count in counts.items():
                sums[key] = sums.get(key, 0) + count
        elif name != "epoch":
            setattr(total, name, sums + counts)
