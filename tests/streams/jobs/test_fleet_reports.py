"""What the reports say together, and when a job is finished."""

import msgspec
import pytest

from crawlog.outcome import without_page
from crawlog.schemas.progress import IDLE, JobCounts, JobRemarks, Progress
from crawlog.streams.jobs import EndSteps, FleetReports, has_answered


def fetch(partition: int, offset: int, at: float = 1.0, **counts: int) -> Progress:
    """A report of a fetch worker on job `j`."""
    counted = JobCounts(**counts)  # type: ignore[arg-type]  # one field is no number
    return Progress("fetch-0", "fetch", partition, at, offset=offset, jobs={"j": counted})


def passed(stage: str, partition: int, offset: int, at: float = 1.0) -> Progress:
    """A report of another stage."""
    return Progress(f"{stage}-0", stage, partition, at, offset=offset)


def picture(*reports: Progress) -> FleetReports:
    """A picture of these reports."""
    made = FleetReports()
    for report in reports:
        made.take(report)
    return made


class Log:
    """Ends of each stage's input; a test moves them."""

    def __init__(self, **ends: tuple[int, ...]) -> None:
        self.ends = ends

    def __call__(self, stage: str) -> tuple[int, ...]:
        """The ends now."""
        return self.ends[stage]


@pytest.fixture
def log() -> Log:
    """Two partitions: seeds and dones are folded, two pages, two items."""
    return Log(fetch=(4, 4), parse=(1, 1), sink=(1, 1))


def test_trouble_is_told_until_it_is_over() -> None:
    """Of the stage that has it."""
    seen = picture(passed("sink", 0, 1), Progress("sink-0", "sink", 1, 1.0, trouble="no space"))
    assert (seen.trouble("sink"), seen.trouble("parse")) == ("no space", "")
    seen.take(passed("sink", 1, 1))
    assert seen.trouble("sink") == ""


def test_answers_without_a_page_are_told_by_class() -> None:
    """Over all partitions, the largest class first; where a redirect leads counts, and so does not the redirect."""
    seen = FleetReports()
    for number, (statuses, no_page) in enumerate([({"403": 2, "200": 5}, {"dns": 1}), ({"403": 1, "301": 9}, {})]):
        counts = JobCounts(statuses=statuses, no_page=no_page)
        seen.take(Progress("fetch-0", "fetch", number, 1.0, jobs={"j": counts}))
    counts = seen.counts("j")
    assert (without_page(counts), has_answered(counts)) == (["no page: 3 × status 403, 1 × dns"], True)
    (told,) = without_page(JobCounts(statuses={"200": 1}, no_page={"application/json": 1}))
    assert told.startswith("body not kept: 1 × application/json; the setting fetch.content_types")
    assert without_page(JobCounts(statuses={"200": 1})) == []


def test_remarks_of_all_parse_workers_are_one() -> None:
    """Those of an earlier epoch are left out, also after the worker that made them has died."""
    seen = FleetReports()
    for worker, remarks in (
        ("a", JobRemarks(1, 2, "/first")),
        ("b", JobRemarks(1, 1, "/second", "/login")),
        ("c", JobRemarks(0, 9, "/old")),
    ):
        seen.take(Progress(worker, "parse", 0, 1.0, remarks={"j": remarks}))
    assert seen.remarks_of("j", 1) == JobRemarks(1, 3, "/first", "/login")
    assert seen.remarks_of("k", 1) == JobRemarks(1)


@pytest.mark.parametrize(
    ("statuses", "answered"),
    [({}, None), ({"403": 1, "301": 1}, False), ({"304": 1}, True), ({"404": 9, "206": 1}, True)],
)
def test_a_2xx_or_a_304_is_a_page(statuses: dict[str, int], answered: bool | None) -> None:  # a parameter
    """Counts of an older version do not say."""
    assert has_answered(JobCounts(statuses=statuses)) is answered


def partial(worker: str, pid: int, *, is_partial: bool = True, gone: tuple[str, ...] = (), **jobs: int) -> Progress:
    """A report with the number of folded records by job."""
    counts = {name: JobCounts(folded=folded) for name, folded in jobs.items()}
    return Progress(worker, "fetch", 0, 1.0, pid=pid, jobs=counts, is_partial=is_partial, gone=list(gone))


def test_counts_that_a_report_leaves_out_stay_as_they_were() -> None:
    """Reports name changed jobs."""
    seen = picture(partial("fetch-0", 1, is_partial=False, a=1, b=1), partial("fetch-0", 1, b=2))
    assert (seen.counts("a").folded, seen.counts("b").folded) == (1, 2)
    assert not seen.newest["fetch", 0].is_partial


def test_another_process_replaces_all_counts() -> None:
    """It owns the partition now, and names all jobs at first."""
    seen = picture(partial("fetch-0", 1, is_partial=False, a=1, b=1), partial("fetch-0", 2, b=2))
    assert seen.jobs() == {"b"}
    assert seen.newest["fetch", 0].is_partial


@pytest.mark.parametrize(("begins_with", "reports"), [(0, 10), (1, 11), (2, 11)])
def test_the_records_of_one_report_are_one_turn(begins_with: int, reports: int) -> None:
    """Ten whole reports name every job; one whose first records were not read is not whole."""
    pieces = [msgspec.structs.replace(partial("fetch-0", 1, a=1), piece=piece, pieces=3) for piece in range(3)]
    seen = picture(*pieces[begins_with:])
    whole_after = 1
    while seen.newest["fetch", 0].is_partial:
        whole_after += 1
        for piece in pieces:
            assert seen.newest["fetch", 0].is_partial
            seen.take(piece)
    assert whole_after == reports


def test_a_job_that_is_gone_is_forgotten() -> None:
    """Else a reader would keep every job that ever was."""
    seen = picture(partial("fetch-0", 1, is_partial=False, a=1, b=1), partial("fetch-0", 1, gone=("a",)))
    assert seen.jobs() == {"b"}


def test_the_report_of_a_worker_without_partitions_says_nothing_of_any() -> None:
    """Nor has its process worked: one that never gets to work is broken."""
    seen = picture(Progress("fetch-1", IDLE, -1, 1.0, pid=8, idle_stage="fetch"))
    assert (seen.newest, seen.has_reported(8)) == ({}, False)


def all_idle() -> list[Progress]:
    """Every fold has passed the log's end with nothing to do; parse and sink have passed theirs."""
    folds = [fetch(0, 4, folded=4), fetch(1, 4, folded=4)]
    return [*folds, passed("parse", 0, 1), passed("parse", 1, 1), written(1, 1)]


def written(*offsets: int) -> Progress:
    """The report of the sink worker that has output 0: how far this one has passed each partition of crawl.items."""
    return Progress("sink-0", "sink", 0, 1.0, passed=list(offsets))


def test_a_quiet_log_is_finished(log: Log) -> None:
    """All five steps in one go."""
    assert EndSteps("j", (2, 2), outputs=(0,)).step(picture(*all_idle()), log)


def test_a_job_is_open_while_its_start_may_give_more(log: Log) -> None:
    """However quiet the log is."""
    finish = EndSteps("j", (2, 2), outputs=(0,), gives_more=True)
    assert not finish.step(picture(*all_idle()), log)
    finish.gives_more = False
    assert finish.step(picture(*all_idle()), log)


@pytest.mark.parametrize("name", ["queued", "in_flight"])
def test_what_is_queued_or_in_flight_keeps_it_open(log: Log, name: str) -> None:
    """In any partition."""
    open_one = fetch(1, 4, at=2.0, folded=4, **{name: 1})
    assert not EndSteps("j", (2, 2), outputs=(0,)).step(picture(*all_idle(), open_one), log)


def test_another_job_does_not_keep_it_open(log: Log) -> None:
    """Only the counts of this job are looked at."""
    other = Progress("fetch-0", "fetch", 1, 2.0, offset=4, jobs={"j": JobCounts(folded=4), "k": JobCounts(queued=9)})
    assert EndSteps("j", (2, 2), outputs=(0,)).step(picture(*all_idle(), other), log)


def test_a_partition_without_a_report_keeps_it_open(log: Log) -> None:
    """Nothing is known of partition 1."""
    some = [report for report in all_idle() if (report.stage, report.partition) != ("fetch", 1)]
    assert not EndSteps("j", (2, 0), outputs=(0,)).step(picture(*some), log)


def test_seeds_that_are_not_folded_keep_it_open(log: Log) -> None:
    """An idle fold that has not read the seeds yet is not done."""
    assert not EndSteps("j", (5, 2), outputs=(0,)).step(picture(*all_idle()), log)


@pytest.mark.parametrize(("stage", "report"), [("parse", passed("parse", 1, 2, at=2.0)), ("sink", written(1, 2))])
def test_a_stage_that_is_behind_keeps_it_open(log: Log, stage: str, report: Progress) -> None:
    """Until it has passed the end."""
    log.ends[stage] = (1, 2)
    seen = picture(*all_idle())
    finish = EndSteps("j", (2, 2), outputs=(0,))
    assert not finish.step(seen, log)
    seen.take(report)
    assert finish.step(seen, log)


def test_without_a_required_output_items_are_not_waited_for(log: Log) -> None:
    """Nobody waits for rows."""
    log.ends["sink"] = (100, 100)
    assert EndSteps("j", (2, 2)).step(picture(*all_idle()), log)


def test_the_last_page_that_links_to_an_idle_partition_begins_it_anew(log: Log) -> None:
    """1 both idle → 2 parse finds a link to A in B's last page → 3 A folds and queues it → 4 the counts differ."""
    log.ends["parse"] = (1, 2)
    seen = picture(*all_idle())
    finish = EndSteps("j", (2, 2), outputs=(0,))
    assert not finish.step(seen, log)

    log.ends["fetch"] = (5, 4)
    seen.take(passed("parse", 1, 2, at=2.0))
    assert not finish.step(seen, log)

    seen.take(fetch(0, 5, at=3.0, folded=5, queued=1))
    assert not finish.step(seen, log)

    log.ends.update(fetch=(6, 4), parse=(2, 2), sink=(2, 1))
    seen.take(fetch(0, 6, at=4.0, folded=6))
    assert not finish.step(seen, log)
    seen.take(passed("parse", 0, 2, at=4.0))
    seen.take(written(2, 1))
    assert finish.step(seen, log)


def test_a_partition_that_holds_nothing_needs_no_report() -> None:
    """Parse says nothing of an empty partition."""
    assert picture().has_passed("parse", (0, 0))
    assert not picture().has_passed("parse", (0, 1))


def test_a_worker_whose_clock_was_set_back_is_heard() -> None:
    """The order of the topic counts, not what a report says of the time."""
    seen = picture(fetch(0, 3, at=2_592_000.0, fetched=3), fetch(0, 9, at=1.0, fetched=9))
    assert seen.counts("j").fetched == 9


def test_a_partition_that_lost_the_job_is_not_idle() -> None:
    """Its seeds would be parked for good, and the run would say that it is finished."""
    lost = Progress("w", "fetch", 1, 1.0, offset=1)
    assert not EndSteps("j", (1, 1))._look(picture(fetch(0, 1, at=1.0, folded=1), lost)).is_idle


def test_counts_are_added_over_partitions() -> None:
    """Rules and needed settings by name, too."""
    one = Progress("w", "fetch", 0, 1.0, jobs={"j": JobCounts(fetched=1, dropped={"scope": 2}, needs={"a": 1})})
    other = Progress(
        "w", "fetch", 1, 1.0, jobs={"j": JobCounts(fetched=2, dropped={"scope": 1, "depth": 1}, needs={"a": 2})}
    )
    total = picture(one, other).counts("j")
    assert (total.fetched, total.dropped, total.needs) == (3, {"scope": 3, "depth": 1}, {"a": 3})


def test_pages_that_a_dead_worker_parsed_still_count() -> None:
    """The counter of its successor begins at 0; what it parsed of other jobs counts for those."""
    first = Progress("parse-0", "parse", 0, 1.0, pid=1, pages=15, parsed={"j": 10, "k": 5})
    second = Progress("parse-0", "parse", 0, 2.0, pid=2, pages=3, parsed={"j": 3})
    seen = picture(first, second)
    assert [seen.parsed(job) for job in ("j", "k", "l")] == [13, 5, 0]


def test_a_sink_of_another_run_says_nothing_of_this_one() -> None:
    """Each sink reads all of crawl.items: what one has passed, another may have before it."""
    seen = FleetReports()
    seen.sink = "mine"
    seen.take(Progress("sink-0-a", "sink", 0, 1.0, offset=4, sink="other", trouble="no space"))
    assert not seen.has_passed("sink", (4,))
    assert seen.trouble("sink") == ""
    seen.take(Progress("sink-0-b", "sink", 0, 1.0, offset=4, sink="mine"))
    seen.take(Progress("sink-0-a", "sink", 0, 1.0, offset=2, sink="other"))
    assert seen.has_passed("sink", (4,))


def test_what_another_runs_worker_parsed_before_is_not_of_this_run() -> None:
    """Its counter goes on; that of a worker of this run begins with it."""
    seen = FleetReports(own=["parse-0-a"])
    for parsed in (10, 12):
        seen.take(Progress("parse-0-b", "parse", 0, 1.0, pid=1, parsed={"j": parsed}))
    seen.take(Progress("parse-0-a", "parse", 1, 1.0, pid=2, parsed={"j": 5}))
    assert seen.parsed("j") == 2 + 5


def test_lag_is_what_was_not_passed() -> None:
    """A partition without a report has everything before it."""
    assert picture(passed("parse", 0, 4)).lag("parse", (6, 3)) == 5


def test_only_own_workers_were_stopped_when_a_stage_is_forgotten() -> None:
    """On a cluster those of another machine go on, even with the pid of an own one."""
    one = FleetReports(("parse-0",))
    own = msgspec.structs.replace(passed("parse", 0, 5), worker="parse-0", pid=7)
    other = msgspec.structs.replace(own, worker="parse-0-b", partition=1)
    one.take(own)
    one.take(other)
    one.forget("parse")
    assert not list(one.of("parse"))
    one.take(own)
    one.take(other)
    assert list(one.of("parse")) == [other]
