"""Which orders and ends the coordinator gives, from reports and crawl.control; each case is a row of a table."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents.coordinator.coordinator import Coordinator
from crawlog.agents.coordinator.following import Following
from crawlog.schemas.control import Command, Control, Finished, JobCopy, ParsedAgain, StartEnded
from crawlog.schemas.job_orders import OutputSpec, ParseAgain
from crawlog.schemas.progress import FLEET, JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.jobs import DueOrder, Dues, FleetReports, FollowedJobs
from crawlog.streams.settings.settings import Settings

REV = 7
ENDS = {"fetch": (4, 4), "parse": (1, 1), "sink": (3, 3)}
IDLE = {"folded": 4, "fetched": 1}


def ends(stage: str) -> tuple[int, ...]:
    """The ends of each stage's input: all is passed."""
    return ENDS[stage]


def report(partition: int, offset: int = 4, **counts: Any) -> Progress:
    """A fetch worker's report on job `j`."""
    return Progress("fetch-0", "fetch", partition, 1.0, offset=offset, jobs={"j": JobCounts(**counts)})


def picture(first: dict[str, Any], second: dict[str, Any], *more: Progress) -> FleetReports:
    """Two partitions, parse has passed all pages."""
    made = FleetReports()
    made.sink = FLEET
    for one in (report(0, **first), report(1, **second), *more):
        made.take(one)
    for partition in (0, 1):
        made.take(Progress("parse-0", "parse", partition, 1.0, offset=1))
    return made


def jobs(spec: JobSpec, *records: Control, epoch: int = 0) -> FollowedJobs:
    """The job as crawl.control tells of it."""
    made = FollowedJobs()
    made.take(JobCopy("j", msgspec.structs.replace(spec, rev=REV), epoch))
    for record in records:
        made.take(record)
    return made


def given(
    spec: JobSpec, *records: Control, first: dict[str, Any] = IDLE, second: dict[str, Any] = IDLE, more: Any = ()
) -> tuple[str, str] | None:
    """State (`end` for an end) and reason of what is due; None for nothing."""
    known, dues = jobs(spec, *records), Dues(FollowedJobs())
    seen = picture(first, second, *more)
    due = [*dues.of_open(known.open.values(), seen, ends), *dues.of_finished(known.finished, seen)]
    if not due:
        return None
    (one,) = due
    assert (one.job, _rev(one)) == ("j", REV)
    return ("end" if isinstance(one, Finished) else one.state), one.reason


def _rev(due: DueOrder | Finished) -> int:
    return due.rev if isinstance(due, Finished) else due.mark.rev


STARTED = StartEnded("j", 1.0)
CLOSED = Command("stop", job="j", reason="closespider_itemcount")
NOTED = Finished("j", 1.0, rev=REV)
AGAIN = ParseAgain(2, (3, 0), (5, 0))  # the second partition is empty, and has a note all the same
AGAIN_0 = ParsedAgain("j", 0, 0, 2, 5, 5)
AGAIN_1 = ParsedAgain("j", 1, 0, 2, 5, 5)
replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("spec", "records", "first", "second", "expected"),
    [
        (JobSpec(), (), IDLE, IDLE, ("finished", "")),
        (JobSpec(), (), IDLE | {"queued": 1}, IDLE, None),
        (JobSpec(), (), IDLE, IDLE | {"in_flight": 1}, None),
        (JobSpec(), (), IDLE, IDLE | {"held": 1}, None),  # of a blocked host
        (JobSpec(), (), {"folded": 1}, {"folded": 1}, None),  # its seeds are not there yet
        (JobSpec(), (), {"folded": 1}, {"folded": 1, "dropped": {"scope": 1}}, ("finished", "")),
        (JobSpec(starts=True), (), IDLE, IDLE, None),
        (JobSpec(starts=True), (STARTED,), {"folded": 1}, {"folded": 1}, ("finished", "")),
        (JobSpec(starts=True), (StartEnded("j", 1.0, epoch=3),), IDLE, IDLE, None),  # of another epoch
        (JobSpec(starts=True, every=9.0), (STARTED,), {"folded": 1}, {"folded": 1}, ("watching", "")),
        (JobSpec(starts=True, every=9.0), (), {"folded": 1}, {"folded": 1}, None),
        (JobSpec(starts=True, every=9.0), (STARTED, CLOSED), IDLE, IDLE, ("stopped", "closespider_itemcount")),
        (JobSpec(parse_again=AGAIN), (), IDLE, IDLE, None),
        (JobSpec(parse_again=AGAIN), (AGAIN_0,), IDLE, IDLE, None),
        (JobSpec(parse_again=AGAIN), (AGAIN_0, AGAIN_1), IDLE, IDLE, ("finished", "")),
        (JobSpec(parse_again=AGAIN), (AGAIN_0, replace(AGAIN_1, next=4)), IDLE, IDLE, None),
        (JobSpec(parse_again=AGAIN), (AGAIN_0, replace(AGAIN_1, number=1)), IDLE, IDLE, None),
        (JobSpec(parse_again=AGAIN), (AGAIN_0, replace(AGAIN_1, epoch=1)), IDLE, IDLE, None),
        (JobSpec(state="finished", parse_again=AGAIN), (), IDLE, IDLE, None),
        (JobSpec(state="cancelled", parse_again=AGAIN), (), IDLE, IDLE, ("end", "cancelled")),
        (JobSpec(max_pages=2), (), IDLE | {"queued": 9}, IDLE, ("stopped", "max_pages")),
        (JobSpec(max_pages=3), (), IDLE | {"queued": 9}, IDLE, None),
        (JobSpec(), (CLOSED,), IDLE | {"held": 5}, IDLE, ("stopped", "closespider_itemcount")),
        (JobSpec(starts=True), (CLOSED,), IDLE | {"held": 5}, IDLE, ("stopped", "closespider_itemcount")),
        (JobSpec(), (CLOSED,), IDLE | {"held": 5, "in_flight": 1}, IDLE, None),
        (JobSpec(), (CLOSED, Command("resume", job="j")), IDLE | {"queued": 5}, IDLE, None),
        (JobSpec(), (Command("stop", job="j"),), IDLE | {"held": 5}, IDLE, None),  # the operator's
        (JobSpec(state="paused"), (), IDLE, IDLE, None),
        (JobSpec(state="finished"), (), IDLE, IDLE, ("end", "finished")),
        (JobSpec(state="finished"), (Finished("j", 1.0, rev=REV - 1),), IDLE, IDLE, ("end", "finished")),
        (JobSpec(state="finished"), (), IDLE, IDLE | {"queued": 1}, ("running", "new URLs")),
        (JobSpec(state="finished"), (NOTED,), IDLE, IDLE, None),
        (JobSpec(state="finished"), (NOTED,), IDLE, IDLE | {"queued": 1}, ("running", "new URLs")),
        (JobSpec(state="cancelled"), (NOTED,), IDLE, IDLE | {"held": 1}, None),
        (JobSpec(state="cancelled"), (), IDLE, IDLE | {"held": 1}, ("end", "cancelled")),
        (JobSpec(state="cancelled"), (), IDLE, IDLE | {"held": 1, "in_flight": 1}, None),
        (JobSpec(state="stopped", reason="max_pages"), (), IDLE, IDLE | {"held": 1}, ("end", "max_pages")),
        (JobSpec(state="deleted"), (), IDLE, IDLE, None),
    ],
)
def test_each_state_of_a_job_has_what_is_due(
    spec: JobSpec,
    records: tuple[Control, ...],
    first: dict[str, Any],
    second: dict[str, Any],
    expected: tuple[str, str] | None,
) -> None:
    """One job, two partitions; everything that was written is read."""
    assert given(spec, *records, first=first, second=second) == expected


@pytest.mark.parametrize(
    ("outputs", "passed", "is_finished"),
    [
        ((OutputSpec("a"),), {0: [3, 3]}, True),
        ((OutputSpec("a"),), {0: [3, 2]}, False),
        ((OutputSpec("a"),), {1: [3, 3]}, False),  # of another output
        ((OutputSpec("a"), OutputSpec("b")), {0: [3, 3]}, False),
        ((OutputSpec("a"), OutputSpec("b")), {0: [3, 3], 1: [3, 3]}, True),
        ((OutputSpec("a"), OutputSpec("b", required=False)), {0: [3, 3]}, True),
        ((OutputSpec("a"), OutputSpec("b", required=False), OutputSpec("c")), {0: [3, 3]}, True),  # both of partition 0
    ],
)
def test_required_outputs_must_have_passed_all_items(
    outputs: tuple[OutputSpec, ...], passed: dict[int, list[int]], *, is_finished: bool
) -> None:
    """Output k is that of the owner of sink partition k modulo their count."""
    sinks = [Progress("sink-0", "sink", at, 1.0, sink=FLEET, passed=ends) for at, ends in passed.items()]
    assert (given(JobSpec(outputs=outputs), more=sinks) == ("finished", "")) is is_finished


@pytest.mark.parametrize(
    ("passed", "is_finished"), [({0: [3, 3], 1: [3, 3]}, True), ({0: [3, 2], 1: [3, 3]}, False), ({1: [3, 3]}, False)]
)
def test_the_required_output_of_a_job_with_pipelines_is_where_its_first_one_is(
    passed: dict[int, list[int]], *, is_finished: bool
) -> None:
    """The owner of partition 1 knows nothing of it, and says that it has passed all."""
    sinks = [Progress("sink-0", "sink", at, 1.0, sink=FLEET, passed=ends) for at, ends in passed.items()]
    spec = JobSpec(outputs=(OutputSpec("a", required=False), OutputSpec("b")), pipelines=True)
    assert (given(spec, more=sinks) == ("finished", "")) is is_finished


@pytest.mark.parametrize(("stuck", "is_finished"), [(["j"], False), (["another"], True)])
def test_an_output_that_cannot_be_written_holds_its_own_job_only(stuck: list[str], *, is_finished: bool) -> None:
    """One job's misspelt output or full disk is no reason for others to wait."""
    sink = Progress("sink-0", "sink", 0, 1.0, sink=FLEET, passed=[3, 3], stuck=stuck)
    assert (given(JobSpec(outputs=(OutputSpec("a"),)), more=[sink]) == ("finished", "")) is is_finished


def test_an_end_has_the_counts_that_the_folds_agreed_on() -> None:
    """1 they agree → 2 a worker that was stopped reports of a partition of another one → 3 the output is written."""
    known, dues = jobs(JobSpec(outputs=(OutputSpec("a"),))), Dues(FollowedJobs())
    seen = picture(IDLE, IDLE)
    assert dues.of_open(known.open.values(), seen, ends) == []
    seen.take(Progress("fetch-1", "fetch", 1, 1.0, offset=2, jobs={"j": JobCounts(folded=2)}))
    seen.take(Progress("sink-0", "sink", 0, 1.0, sink=FLEET, passed=[3, 3]))
    (due,) = dues.of_open(known.open.values(), seen, ends)
    assert isinstance(due, DueOrder)
    assert due.end is not None
    assert due.end.counts is not None
    assert (due.end.counts.folded, due.end.counts.fetched) == (8, 2)


def test_a_job_that_got_more_while_its_output_was_written_is_not_finished() -> None:
    """1 they agree → 2 a URL comes and is fetched → 3 the output is written up to 1 → 4 it is written up to 2."""
    known, dues = jobs(JobSpec(outputs=(OutputSpec("a"),))), Dues(FollowedJobs())
    seen = picture(IDLE, IDLE)
    assert dues.of_open(known.open.values(), seen, ends) == []
    seen.take(report(1, **IDLE | {"folded": IDLE["folded"] + 2, "fetched": IDLE["fetched"] + 1}))
    seen.take(Progress("sink-0", "sink", 0, 1.0, sink=FLEET, passed=[3, 3]))
    more = ENDS | {"sink": (3, 4)}
    assert dues.of_open(known.open.values(), seen, more.__getitem__) == []
    seen.take(Progress("sink-0", "sink", 0, 1.0, sink=FLEET, passed=[3, 4]))
    (due,) = dues.of_open(known.open.values(), seen, more.__getitem__)
    assert isinstance(due, DueOrder)
    assert due.end is not None
    assert due.end.counts is not None
    assert due.end.counts.fetched == 2 * IDLE["fetched"] + 1


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_job_does_not_end_while_a_replay_has_pages_to_parse(state: str) -> None:
    """The workers of parse were stopped for it; their last reports say that they had passed all pages."""
    known, dues, seen = jobs(JobSpec(state=state)), Dues(FollowedJobs()), picture(IDLE, IDLE)  # type: ignore[arg-type]  # one of the states
    seen.take(Progress("", "parse", 0, 2.0))
    assert dues.of_open(known.open.values(), seen, ends) == []
    seen.take(Progress("parse-0", "parse", 0, 3.0, offset=1))
    assert len(dues.of_open(known.open.values(), seen, ends)) == 1


def test_an_order_is_given_once_for_a_revision() -> None:
    """And again for the next one, if it was refused because of a change."""
    known, dues, seen = jobs(JobSpec()), Dues(FollowedJobs()), picture(IDLE, IDLE)
    assert len(dues.of_open(known.open.values(), seen, ends)) == 1
    assert dues.of_open(known.open.values(), seen, ends) == []
    known.take(JobCopy("j", JobSpec(rev=REV + 1)))
    (order,) = dues.of_open(known.open.values(), seen, ends)
    assert isinstance(order, DueOrder)
    assert order.mark.rev == REV + 1


@pytest.mark.parametrize(
    ("known", "counts"), [(jobs(JobSpec()), IDLE), (jobs(JobSpec(state="finished"), NOTED), IDLE | {"queued": 1})]
)
def test_an_order_that_came_without_the_lease_is_decided_again(known: FollowedJobs, counts: dict[str, Any]) -> None:
    """Else its job never ends, or never goes on, as long as the partition stays here."""
    told: list[DueOrder | Finished] = []
    following = Following(Settings(), known, told.append)
    watch: Any = SimpleNamespace(ends=ends)
    stage: Any = SimpleNamespace(may_ask=lambda: False)
    duty = Coordinator(stage, stage, stage)
    duty._following = following

    def look() -> None:
        following._look(picture(counts, IDLE), watch)

    for _ in range(2):
        look()
        assert len(told) == 1
    duty._act(following, told[0])
    look()
    assert [(one.job, _rev(one)) for one in told[1:]] == [(told[0].job, _rev(told[0]))]


def test_the_steps_begin_again_for_each_revision() -> None:
    """Ends that were noted for an older revision say nothing about a job that was changed since."""
    known, dues, seen = jobs(JobSpec()), Dues(FollowedJobs()), picture(IDLE, IDLE)
    later = {"fetch": (4, 4), "parse": (2, 1), "sink": (3, 3)}
    assert dues.of_open(known.open.values(), seen, later.__getitem__) == []  # parse has a page to go
    known.take(JobCopy("j", JobSpec(rev=REV + 1)))
    assert dues.of_open(known.open.values(), seen, lambda stage: (9, 9) if stage == "fetch" else ENDS[stage]) == []
    for partition in (0, 1):
        seen.take(report(partition, 9, **IDLE))
    (order,) = dues.of_open(known.open.values(), seen, lambda stage: (9, 9) if stage == "fetch" else ENDS[stage])
    assert isinstance(order, DueOrder)
    assert order.end is not None
    assert order.end.urls == (9, 9)


def test_pages_of_another_epoch_do_not_count_for_the_limit() -> None:
    """Until a partition has folded the record of the new epoch, its reports are of the former one."""
    full = IDLE | {"fetched": 50, "queued": 3}
    known, dues, seen = jobs(JobSpec(max_pages=100), epoch=1), Dues(FollowedJobs()), picture(full, full)

    def due() -> list[str]:
        later = ENDS | {"fetch": (9, 9)}
        return [one.reason for one in dues.of_open(known.open.values(), seen, later.__getitem__)]

    assert due() == []
    seen.take(report(0, 9, folded=1, epoch=1))
    seen.take(report(1, 8, **full | {"fetched": 100}))
    assert due() == []
    seen.take(report(1, 9, epoch=1, **full | {"fetched": 100}))
    assert due() == ["max_pages"]


@pytest.mark.parametrize("behind", [1, None])
def test_the_limit_holds_while_a_partition_is_restored(behind: int | None) -> None:
    """The others go on fetching meanwhile; its last report still counts, if it has ever been reported."""
    known, dues, seen = jobs(JobSpec(max_pages=100)), Dues(FollowedJobs()), FleetReports()
    if behind is not None:
        seen.take(report(1, behind, fetched=60))
    seen.take(report(0, 9, fetched=40 if behind else 100, queued=3))
    (order,) = dues.of_open(known.open.values(), seen, (ENDS | {"fetch": (9, 9)}).__getitem__)
    assert order.reason == "max_pages"


def test_a_job_is_followed_until_the_end_of_its_revision_is_on_record() -> None:
    """A late end of an older revision opens it again, so that its own end is written anew."""
    known = jobs(JobSpec(state="finished"))
    assert "j" in known.open
    known.take(NOTED)
    assert (list(known.open), list(known.finished)) == ([], ["j"])
    known.take(Finished("j", 1.0, rev=REV - 1))
    assert (list(known.open), list(known.finished)) == (["j"], [])
