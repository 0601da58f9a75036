"""Jobs and workers as crawl.control and crawl.progress tell them."""

from typing import Any

import pytest

from crawlog.schemas.control import Command, Finished, JobCopy, OutputNote, ParsedAgain, StartEnded, WorkerCommand, key
from crawlog.schemas.job_orders import CodeRef, OutputSpec, ParseAgain
from crawlog.schemas.progress import FLEET, IDLE, ExitFigures, JobCounts, Progress
from crawlog.schemas.urls import DEFAULT_JOB, JobSpec
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.fleet.fleet_state import exits_of
from crawlog.streams.fleet.views import AgainView


def state_with(*records: Any) -> FleetState:
    """The state after these records."""
    state = FleetState()
    for record in records:
        state.hear(key(record), record)
    return state


def shown(state: FleetState) -> JobView:
    """The job `j`."""
    view = state.job("j")
    assert view is not None
    return view


def report(**fields: Any) -> Progress:
    """A report of a fetch worker."""
    given: dict[str, Any] = {"worker": "fetch-0", "stage": "fetch", "partition": 0, "at": 0.0, "pid": 7} | fields
    return Progress(**given)


RUNNING = JobCopy("j", JobSpec(spider="/p:quotes", at=5.0, changed_at=5.0))


@pytest.mark.parametrize(
    ("records", "counts", "wanted"),
    [
        ([RUNNING], JobCounts(), ("pending", "")),
        ([RUNNING], JobCounts(in_flight=1), ("running", "")),
        ([RUNNING], JobCounts(queued=4, fetched=1), ("running", "")),
        ([RUNNING, Command("pause", job="j")], JobCounts(queued=4, fetched=1), ("paused", "")),
        ([RUNNING, Command("pause", job="j"), Command("resume", job="j")], JobCounts(fetched=1), ("running", "")),
        ([RUNNING, Command("stop", job="j", reason="enough")], JobCounts(fetched=1), ("stopped", "enough")),
        ([RUNNING, Finished("j", at=9.0)], JobCounts(fetched=1), ("finished", "")),
        ([RUNNING, Finished("j", at=9.0, reason="max_pages")], JobCounts(fetched=1), ("stopped", "max_pages")),
        ([RUNNING, Finished("j", at=4.0)], JobCounts(fetched=1), ("running", "")),
        (
            [RUNNING, StartEnded("j", 8.0, error="KeyError: x"), Finished("j", at=9.0)],
            JobCounts(),
            ("finished", "its `start` failed: KeyError: x"),
        ),
        ([RUNNING, StartEnded("j", 8.0, epoch=1, error="KeyError: x")], JobCounts(queued=1), ("pending", "")),
        ([JobCopy("j", JobSpec(state="paused"))], JobCounts(queued=1), ("paused", "")),
        ([JobCopy("j", JobSpec(state="cancelled", reason="late"))], JobCounts(), ("cancelled", "late")),
    ],
)
def test_the_state_of_a_job(records: list[Any], counts: JobCounts, wanted: tuple[str, str]) -> None:
    """From its record, the commands in force, its end and its counts."""
    state = state_with(*records)
    state.report(report(jobs={"j": counts}), 1.0)
    view = shown(state)
    assert (view.state, view.reason) == wanted


CODE = CodeRef("shop", "1", "0" * 64)


@pytest.mark.parametrize(
    ("spider", "code", "name"),
    [
        ("", None, ""),
        ("/p/quotes.py:Quotes", None, "Quotes"),
        ("/p/quotes.py", None, "quotes.py"),
        ("quotes", CODE, "quotes"),
        ("news/de:all", CODE, "news/de:all"),
    ],
)
def test_a_deployed_spider_is_shown_by_its_whole_name(spider: str, code: CodeRef | None, name: str) -> None:
    """One of a file by its class."""
    assert shown(state_with(JobCopy("j", JobSpec(spider=spider, code=code)))).spider == name


def test_a_job_of_a_later_epoch_has_not_ended() -> None:
    """It was begun again."""
    state = state_with(JobCopy("j", JobSpec(), epoch=1), Finished("j", at=9.0, epoch=0))
    view = shown(state)
    assert (view.state, view.ended_at) == ("pending", 0.0)


@pytest.mark.parametrize("state", ["paused", "stopped", "cancelled"])
def test_the_end_of_an_earlier_revision_is_none(state: str) -> None:
    """Such a job went on: its counts, the time of its end and its outputs are those of now."""
    spec = JobSpec(rev=9, state=state, outputs=(OutputSpec("rows.csv"),), at=5.0, changed_at=20.0)  # type: ignore[arg-type]  # one of the states
    ended = Finished("j", at=9.0, rev=7, reason="max_pages", counts=JobCounts(fetched=1), dead=3)
    fleet = state_with(JobCopy("j", spec), ended, OutputNote("j", "rows.csv", 9.0, rev=7, rows=1))
    fleet.report(report(), 1.0)
    view = shown(fleet)
    assert fleet.end(JobCopy("j", spec)) is None
    assert (view.state, view.dead, view.counts.fetched, view.outputs[0].state) == (state, 0, 0, "writing")
    assert view.ended_at == (0.0 if state == "paused" else 20.0)


def test_a_job_that_a_command_stops_ended_when_it_was_given() -> None:
    """The job's record says nothing of it: it was changed last when the job was submitted."""
    view = shown(state_with(RUNNING, Command("stop", job="j", at=30.0)))
    assert (view.state, view.ended_at) == ("stopped", 30.0)


def test_the_job_of_bare_records_is_shown_when_workers_report_it() -> None:
    """It has no record."""
    state = state_with(RUNNING)
    assert (state.job(DEFAULT_JOB), [one.name for one in state.jobs()]) == (None, ["j"])
    state.report(report(jobs={DEFAULT_JOB: JobCounts(queued=2, fetched=3)}), 1.0)
    view = state.job(DEFAULT_JOB)
    assert view is not None
    assert (view.state, view.counts.queued, view.counts.fetched) == ("running", 2, 3)
    assert [one.name for one in state.jobs()] == ["j", DEFAULT_JOB]


def test_the_job_of_bare_records_is_not_shown_before_it_has_a_url() -> None:
    """A rewind of the crawl writes its record to all partitions."""
    state = state_with(RUNNING)
    state.report(report(jobs={DEFAULT_JOB: JobCounts(folded=1, epoch=1)}), 1.0)
    assert (state.job(DEFAULT_JOB), [one.name for one in state.jobs()], state.unrecorded()) == (None, ["j"], set())
    state.report(report(jobs={DEFAULT_JOB: JobCounts(folded=2, refused=1, epoch=1)}), 1.0)
    assert (len(state.jobs()), state.unrecorded()) == (2, {DEFAULT_JOB})


def test_a_deleted_job_is_not_shown() -> None:
    """Only its tombstone is left, and reports of workers that have ended since."""
    state = state_with(RUNNING, JobCopy("j", JobSpec(state="deleted")))
    state.report(report(jobs={"j": JobCounts(fetched=480), "lost": JobCounts(queued=1)}), 1.0)
    assert state.job("j") is None
    assert (state.jobs(), state.unrecorded()) == ([], {"lost"})


@pytest.mark.parametrize(("epoch", "fetched"), [(0, 480), (1, 3)])
def test_counts_of_a_former_epoch_are_not_the_jobs(epoch: int, fetched: int) -> None:
    """They are of the job before `--fresh`, or of a deleted one of its name; its workers may have ended since."""
    former = report(jobs={"j": JobCounts(fetched=480)}), report(partition=1, jobs={"j": JobCounts(queued=56)})
    state = state_with(JobCopy("j", JobSpec(at=5.0), epoch))
    for one in former:
        state.report(one, 1.0)
    assert [(view.state, view.counts.fetched, view.is_counted) for view in state.jobs()] == [
        ("pending", 0, True) if epoch else ("running", 480, True)
    ]
    state.report(report(jobs={"j": JobCounts(fetched=fetched, epoch=epoch)}), 2.0)
    assert (shown(state).state, shown(state).counts.fetched) == ("running", fetched)
    ended = Finished("j", 9.0, epoch=epoch, counts=JobCounts(fetched=fetched, redirected=1))
    state.hear(key(ended), ended)
    assert shown(state).counts.redirected == (1 if epoch else 0)  # reports of one partition are not of the epoch


def test_hosts_are_those_of_living_workers() -> None:
    """A dead one's waits were over long ago; so were those of a partition that a worker has given up."""
    state = FleetState()
    for at in (0.0, 100.0):
        state.report(report(hosts=[("http://a", 3, 1.0)]), at)
    state.report(report(partition=1, worker="fetch-1", pid=8, hosts=[("http://b", 9, 2.0)]), 80.0)
    state.report(report(partition=2, worker="fetch-2", pid=9, hosts=[("http://c", 9, 2.0)]), 80.0)
    state.report(report(partition=3, worker="fetch-2", pid=9, hosts=[("http://d", 4, 2.0)]), 100.0)
    assert [host.host for host in state.hosts(101.0)] == ["http://d", "http://a"]
    assert state.workers(200.0) == []
    state.report(report(partition=1, pid=9, worker="fetch-2"), 201.0)  # it was stopped for a while
    assert state.hosts(201.0) == []


def test_an_ended_job_that_reports_leave_out_has_the_counts_of_its_end() -> None:
    """Reports leave out jobs that ended long ago."""
    state = state_with(RUNNING, Finished("j", at=9.0, counts=JobCounts(fetched=12)))
    state.report(report(), 1.0)
    view = shown(state)
    assert view.counts.fetched == 12


def test_counts_are_those_of_all_partitions_or_said_to_be_too_low() -> None:
    """Compaction leaves a partition's newest report, which need not name the job; ten of a process name it."""
    state = state_with(RUNNING)
    assert (shown(state).state, shown(state).is_counted) == ("pending", True)
    state.report(report(partition=1, jobs={}), 1.0)
    state.report(report(jobs={"k": JobCounts()}, is_partial=True), 1.0)
    assert (shown(state).state, shown(state).is_counted) == ("running", False)
    for _ in range(9):
        state.report(report(jobs={"k": JobCounts()}, is_partial=True), 2.0)
    assert (shown(state).state, shown(state).is_counted) == ("pending", True)
    assert state.has_all_counts(2)
    assert not state.has_all_counts(3)


def test_start_goes_on_until_its_note() -> None:
    """`start/JOB` says that it has ended."""
    state = state_with(JobCopy("j", JobSpec(starts=True)))
    assert shown(state).is_starting
    state.hear(b"start/j", StartEnded("j", at=1.0))
    assert not shown(state).is_starting


def test_an_output_is_complete_when_its_worker_said_so_after_the_end() -> None:
    """Another one is still written."""
    outputs = (OutputSpec("a.csv"), OutputSpec("b.csv", required=False))
    copy = JobCopy("j", JobSpec(state="finished", outputs=outputs))
    state = state_with(copy, OutputNote("j", "a.csv", at=1.0, rev=3, rows=2, place="/x/a.csv", worker="m1"))
    view = shown(state)
    assert [(one.name, one.state, one.rows, one.worker) for one in view.outputs] == [
        ("a.csv", "complete", 2, "m1"),
        ("b.csv", "writing", 0, ""),
    ]


@pytest.mark.parametrize(
    ("rev", "error", "is_partial", "told"),
    [(5, "", False, "complete"), (5, "", True, "partial"), (5, "full", False, "failed"), (4, "full", False, "writing"),
     (4, "", False, "writing"), (0, "", False, "writing")],
)  # fmt: skip
def test_what_was_said_of_an_output_holds_until_the_job_changes(
    rev: int, error: str, is_partial: bool, told: str
) -> None:
    """An error, too: the output may be mended by now, and its worker says whether it is."""
    copy = JobCopy("j", JobSpec(rev=5, state="finished", outputs=(OutputSpec("a.csv"),)))
    note = OutputNote("j", "a.csv", at=1.0, rev=rev, error=error, is_partial=is_partial)
    assert shown(state_with(copy, note)).outputs[0].state == told


def test_a_worker_has_its_partitions_and_rates() -> None:
    """Rates are those of the last seconds; a silent worker is gone."""
    state = FleetState()
    for second in range(12):
        for partition in (0, 3):
            state.report(report(partition=partition, pages=10 * second, cpu_s=0.5 * second, host="m1"), 100.0 + second)
    (worker,) = state.workers(112.0)
    assert (worker.partitions, worker.host, worker.pages_per_s, worker.cpu) == ((0, 3), "m1", 10.0, 0.5)
    assert state.workers(140.0) == []


def idle(stage: str = "fetch", **fields: Any) -> Progress:
    """A report of a worker that owns no partition."""
    return report(stage=IDLE, partition=-1, idle_stage=stage, **fields)


def test_a_worker_without_partitions_is_shown_once_and_goes_as_others_do() -> None:
    """Before it gets one, while it has it, and when it has had it for long enough ago."""
    state = FleetState()
    reports = [idle(rss=5), idle(), report(partition=3, pages=70), *(idle(pages=70) for _ in range(8))]
    shown = []
    for second, one in enumerate(reports):
        state.report(one, 100.0 + 2 * second)
        shown.append([(view.id, view.stage, view.partitions) for view in state.workers(100.0 + 2 * second)])
    assert shown[0] == shown[1] == [("fetch-0", "fetch", ())]
    assert shown[2] == shown[3] == [("fetch-0", "fetch", (3,))]  # a rebalance makes every worker idle for a moment
    assert shown[-1] == [("fetch-0", "fetch", ())]
    assert state.workers(140.0) == []


def test_a_worker_without_partitions_is_no_fleet_and_changes_no_count() -> None:
    """Others may own all partitions; what its reports leave out was not counted by it."""
    state = state_with(RUNNING)
    state.report(report(jobs={"j": JobCounts(fetched=4)}, supervisor="run"), 100.0)
    before = state.jobs(), state.hosts(101.0), state.has_all_counts(1), state.had_fleet()
    state.report(idle(worker="fetch-1", pid=8, supervisor="up"), 101.0)
    assert before == (state.jobs(), state.hosts(101.0), state.has_all_counts(1), state.had_fleet())
    assert state.supervisors("fetch", 101.0) == {"run"}


def test_a_worker_that_was_killed_is_a_fleet_while_its_next_process_owns_nothing_yet() -> None:
    """A `run` would start workers of its own beside it; the list shows the process that lives."""
    state = FleetState()
    state.report(report(supervisor="up"), 100.0)
    state.report(idle(pid=8, supervisor="up"), 102.0)
    assert [(one.pid, one.partitions) for one in state.workers(103.0)] == [(8, ())]
    assert (state.supervisors("fetch", 103.0), state.supervisors("fetch", 116.0)) == ({"up"}, set())


def test_a_sink_without_partitions_has_no_lag() -> None:
    """It reads nothing; the one that has them is as far as it is."""
    state = FleetState()
    state.report(report(stage="sink", worker="sink-0", offset=70, sink=FLEET), 100.0)
    state.report(idle("sink", worker="sink-1", pid=8, sink=FLEET), 100.0)
    state.report(idle("sink", worker="sink-2", pid=9, sink="run"), 100.0)
    assert state.sink_lag((80,), 101.0) == 10


def test_only_workers_that_stay_are_a_fleet() -> None:
    """Those of a `run` may end at any time."""
    state = FleetState()
    state.report(report(supervisor="run"), 100.0)
    assert state.supervisors("fetch", 101.0) == {"run"}
    state.report(report(worker="fetch-9", pid=8, supervisor="up"), 100.0)
    assert state.supervisors("fetch", 101.0) == {"run", "up"}


def test_a_new_process_of_a_worker_replaces_the_old_one() -> None:
    """Two processes of one name never work at a time."""
    state = FleetState()
    state.report(report(pid=7), 100.0)
    state.report(report(pid=8), 101.0)
    assert [one.pid for one in state.workers(102.0)] == [8]


def test_the_place_that_a_replay_reports_is_no_workers() -> None:
    """The picture has it; no process of that name is shown as alive."""
    state = FleetState()
    state.report(report(worker="", stage="parse", offset=3), 1.0)
    assert (state.workers(1.0), state.picture.newest["parse", 0].offset) == ([], 3)


def test_the_newest_process_is_the_last_one_to_report() -> None:
    """Its time may be less: the broker's clock was set back. Rates begin again then."""
    state = FleetState()
    state.report(report(pid=7), 4000.0)
    for second in range(12):
        state.report(report(pid=8, pages=10 * second), 3995.0 + second - 995.0 * (second > 2))
    (worker,) = state.workers(3012.0)
    assert (worker.pid, worker.pages_per_s) == (8, 10.0)


def test_the_lag_of_sinks_is_that_of_the_slowest_living_one() -> None:
    """Whether a run or the fleet has it: a sink reads all items, and one whose worker is gone waits for nobody."""
    state = FleetState()
    sink: dict[str, Any] = {"stage": "sink", "worker": "sink-0"}
    state.report(report(**sink, pid=6, sink="gone", offset=1), 80.0)
    state.report(report(**sink, pid=7, sink="run", offset=70), 100.0)
    state.report(report(**sink, pid=7, sink="run", partition=1, offset=7), 100.0)
    assert state.sink_lag((80, 9), 101.0) == 12
    state.report(report(**sink, pid=8, sink="fleet", offset=80), 100.0)
    assert state.sink_lag((80, 9), 101.0) == 12
    state.report(report(stage="sink", worker="sink-1", pid=9, sink="run", offset=79), 100.5)  # it took a partition over
    assert state.sink_lag((80, 9), 101.0) == 9
    assert state.sink_lag((80, 9), 200.0) == 89


def test_exits_and_the_hosts_that_wait_for_them_are_told_by_worker() -> None:
    """Of living workers; one of their reports has the exits."""
    state = state_with(RUNNING)
    some, more = ExitFigures(requests=3, bans=1), ExitFigures(requests=9, rests_s=30.0)
    state.report(report(worker="fetch-1", partition=1, exits={"z": some}), 100.0)
    barred = [("http://a", 2, 30.0)]
    state.report(report(exits={"a": some, "b": more}, hosts=[*barred, ("http://c", 9, 1.0)], barred=barred), 100.0)
    state.report(report(partition=2, at=1.0), 100.0)
    found = [(view.worker, view.name, view.figures) for view in exits_of(state, 101.0)]
    assert found == [("fetch-0", "b", more), ("fetch-0", "a", some), ("fetch-1", "z", some)]
    hosts = [(host.host, host.queued, host.reason) for host in state.hosts(101.0)]
    assert hosts == [("http://c", 9, ""), ("http://a", 2, "all its exits rest")]
    assert exits_of(state, 300.0) == []


def test_a_pause_of_a_worker_ends_with_its_process() -> None:
    """Another process of the name was not ordered; the process that owns partition 0 is the coordinator."""
    state = state_with(WorkerCommand("fetch-0", 7, 3.5, "pause"))
    state.report(report(started=3.5, paused=True), 1.0)
    state.report(report(worker="fetch-1", partition=1, pid=9, started=3.5), 1.0)
    shown = [(one.id, one.is_held, one.is_coordinator) for one in state.workers(2.0)]
    assert shown == [("fetch-0", True, True), ("fetch-1", False, False)]
    state.report(report(pid=8, started=4.5), 2.0)
    assert [one.is_held for one in state.workers(3.0)] == [False, False]
    state.report(report(worker="fetch-1", pid=9, started=3.5), 3.0)
    assert [one.id for one in state.workers(4.0) if one.is_coordinator] == ["fetch-1"]


def test_a_job_shows_how_far_its_stored_pages_are_parsed_again() -> None:
    """By what its partitions note; a partition without a note has all of its pages left."""
    state, spec = FleetState(), JobSpec(parse_again=ParseAgain(2, (10, 20, 0), (110, 120, 0)))

    def again(*notes: ParsedAgain) -> AgainView | None:
        noted: list[JobCopy | ParsedAgain] = [JobCopy("j", spec), *notes]
        for one in noted:
            state.hear(key(one), one)
        return shown(state).parsed_again

    assert again(ParsedAgain("j", 0, 0, 1, 110, 110, pages=70)) == AgainView(0, 0.0, is_done=False)  # of another order
    assert again(ParsedAgain("j", 0, 0, 2, 60, 110, pages=30)) == AgainView(30, 0.245, is_done=False)
    done = (ParsedAgain("j", 0, 0, 2, 112, 112, pages=60), ParsedAgain("j", 1, 0, 2, 120, 120, pages=9))
    assert again(*done, ParsedAgain("j", 2, 0, 2, 0, 0)) == AgainView(69, 1.0, is_done=True)
