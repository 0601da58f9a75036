"""`crawlog replay`: moves a consumer group to other offsets, so that stored records are processed again.

It makes a plan, and with `--execute` moves the group. The workers of `crawlog up`, or of the next `crawlog run` of a
job, then process the records behind the new offsets. Outputs of a fleet wait for the rows of pages that are parsed
again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crawlog.processes.hold import Holder, holder
from crawlog.schemas import progress
from crawlog.schemas.control import JobCopy
from crawlog.schemas.progress import Progress
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams import crash_points, groups
from crawlog.streams.cluster import Admin
from crawlog.streams.control import acknowledged, known_job, read_control, renew_ends
from crawlog.streams.errors import Misconfigured, RetryLater, Unusable
from crawlog.streams.groups import Group, HeldRange, Move, Target, offsets
from crawlog.streams.jobs import ControlState
from crawlog.streams.log import CommandProducer, Topics
from crawlog.streams.recovery import note_skipped
from crawlog.streams.sink_groups import SinkSpec, known_sinks, read_again

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

POLL_S = 0.2  # Pause between two looks at a group that must become empty, seconds

GRACE_S = 1.0  # Time added to the session timeout, seconds: the broker notices a dead member a little later

REPLAYED = "pages parsed again"  # Reason of a finished job that runs again

Report = Callable[[str], None]


@dataclass(frozen=True)
class ReplayOptions:
    """The arguments of a replay.

    Attributes:
        group: A stage, a group's name, a sink's id or file.
        kind: The option that names the target; `value` is its value.
        topics: The values of `--topic`.
        job: Only pages of this job are parsed again, or only its sinks are moved; empty for all jobs.
        output: Only this output of the job, of those of the sink; empty for all.
        content: The text of `from-file`, in place of a file.
    """

    group: str
    kind: offsets.TargetKind
    value: str | int = ""
    topics: Sequence[str] = ()
    execute: bool = False
    job: str = ""
    output: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        """Checks the value before an engine is started.

        Raises: Misconfigured: it is no time or no duration, or the file cannot be read.
        """
        text = str(self.value)
        if self.output and (self.group != "sink" or not self.job):
            raise Misconfigured("--output: name the sink and the job, too: --group sink --job NAME --output OUTPUT")
        if self.kind == "to-datetime":
            offsets.moment_ms(text)
        elif self.kind == "by-duration":
            offsets.duration_ms(text)
        elif self.kind == "from-file":
            _ = self.listed

    @cached_property
    def listed(self) -> str:
        """The content of `from-file`; read once, as it may be a pipe."""
        return self.content or _read(Path(str(self.value)))


class Plan(NamedTuple):
    """The moves of one group, with the log's times of the first and last record of each."""

    group: Group
    moves: list[Move]
    times_ms: Mapping[int, tuple[int, int]]

    @property
    def again(self) -> int:
        return sum(move.records for move in self.moves if not move.is_skip)

    @property
    def skipped(self) -> int:
        """Records that will not be read."""
        return sum(move.records for move in self.moves if move.is_skip)

    @property
    def gone(self) -> int:
        """Records of the target range that the log no longer has."""
        return sum(move.gone for move in self.moves)

    @property
    def span_ms(self) -> tuple[int, int] | None:
        """Times of the first and the last record, by the log."""
        if not self.times_ms:
            return None
        return min(first for first, _ in self.times_ms.values()), max(last for _, last in self.times_ms.values())


class Replayed(NamedTuple):
    """The plans; `--execute` has carried them out.

    Attributes:
        live: The members of the groups, with their names.
        refilled: The output of a job on a fleet that is emptied and filled again; its workers go on.
    """

    plans: list[Plan]
    live: list[str]
    refilled: str = ""


def replay(settings: "Settings", order: ReplayOptions, report: Report) -> Replayed:
    """Plans, and executes the plan when asked to."""
    admin = Admin(settings)
    found = _of_job(admin, groups.named(admin, order.group), order)
    now_ms = int(time.time() * 1000)
    plans = [_plan(admin, one, order, now_ms, report) for one in found]
    live = groups.members(admin, (one.name for one in found))
    if order.execute:
        _until_empty(admin, found, live, report)
        for plan in plans:
            _execute(admin, plan, order, report)
    return Replayed(plans, live)


def is_of_fleet(settings: "Settings", order: ReplayOptions) -> bool:
    """Whether the output is one of the job's record, which its workers fill again while they go on.

    Raises: Misconfigured: it can only be filled from the beginning.
    """
    copy = known_job(settings, Topics(settings.kafka.prefix), order.job)
    is_named = copy is not None and any(one.name == order.output for one in copy.spec.outputs)
    if is_named and (order.kind != "to-earliest" or order.topics):
        raise Misconfigured("--output: an output of a fleet is filled from the beginning: --to-earliest")
    return is_named


def _of_job(admin: Admin, found: list[Group], order: ReplayOptions) -> list[Group]:
    """The groups that a replay of one job moves.

    Raises: Misconfigured: there is no such job, it has no sink, or the group cannot be moved for one job.
    """
    job = order.job
    if not job:
        return found
    if job != DEFAULT_JOB and known_job(admin.settings, Topics(admin.settings.kafka.prefix), job) is None:
        raise Misconfigured(f"there is no job {job} in the log; `crawlog status` names those that there are.")
    if found[0].stage == "fetch":
        raise Misconfigured(f"--job: a rewind is of all jobs; `crawlog run --job {job} --fresh` begins one job again.")
    kept = [one for one in found if one.stage != "sink" or one.of.startswith(f"job {job} to ")]
    if order.output:
        kept = [one for one in kept if one.of.endswith(order.output)]
    if not kept:
        sink, known = f"sink {order.output}" if order.output else "sink", "`crawlog topics` names all sinks"
        raise Misconfigured(f"--job: no {sink} of job {job} is known on this machine; {known}.")
    return kept


# --- the plan -------------------------------------------------------------------------------------------------------


def _plan(admin: Admin, of: Group, order: ReplayOptions, now_ms: int, report: Report) -> Plan:
    partitions = offsets.chosen(of.topic, groups.count(admin, of.topic), order.topics)
    held = _held(admin, of, partitions)
    if of.stage == "fetch" and order.topics:
        raise Misconfigured("--topic: a rewind takes every partition, as links lead from one to another")
    target = _target(of, order, now_ms)
    times = groups.offsets_at(admin, of.topic, held, target.number) if target.is_time else None
    moves, warnings = offsets.plan(of.topic, target, held, times)
    for warning in warnings:
        report(warning)
    if order.job and of.stage == "parse" and any(move.is_skip for move in moves):
        raise Misconfigured("--job: pages of other jobs would be skipped too; give a place before where the group is")
    if of.stage == "fetch":
        from crawlog.streams.state import see_rewindable

        see_rewindable(admin.settings, {one.partition: one.after for one in moves if one.records})
    return Plan(of, moves, groups.times_ms(admin.settings, of.topic, moves))


def _held(admin: Admin, of: Group, partitions: Sequence[int]) -> Mapping[int, HeldRange]:
    """The bounds of each partition, and where the group goes on: an output at the offset of its state."""
    held = groups.held(admin, of, partitions)
    if of.stage != "sink":
        return held
    from crawlog.streams.sink import meta_of

    try:
        known = meta_of(admin.settings.run.data, _sink(admin, of)).offsets
    except RetryLater as error:
        raise Misconfigured(f"{error}: stop that command, then replay") from None
    except Unusable:
        known = {}  # the next worker fills it from the log's start
    return {at: one._replace(committed=known.get(at)) for at, one in held.items()}


def _sink(admin: Admin, of: Group) -> SinkSpec:
    return next(sink for sink in known_sinks(admin.settings.run.data) if of.name.endswith(sink.id))


def _target(of: Group, order: ReplayOptions, now_ms: int) -> Target:
    value = order.value
    if order.kind == "to-datetime":
        return Target(order.kind, offsets.moment_ms(str(value)))
    if order.kind == "by-duration":
        return Target(order.kind, max(0, now_ms - offsets.duration_ms(str(value))))
    if order.kind == "from-file":
        return Target(order.kind, offsets=offsets.imported(order.listed, of.name, of.topic))
    return Target(order.kind, int(value or 0))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"--from-file {path}: {getattr(error, 'strerror', None) or error}") from None


# --- what is done ---------------------------------------------------------------------------------------------------


def _until_empty(admin: Admin, found: Sequence[Group], live: list[str], report: Report) -> None:
    """Waits until the broker has dropped members that died without leaving; does not wait for a live command.

    Raises: Misconfigured: a group is live.
    """
    data, limit_s = admin.settings.run.data, admin.settings.kafka.session_timeout_s + GRACE_S
    deadline = time.monotonic() + limit_s
    if live and holder(data) is None:
        report(f"waiting up to {limit_s:.0f} s for the group to empty ({'; '.join(live)})")
        while live and time.monotonic() < deadline:
            time.sleep(POLL_S)
            live = groups.members(admin, (one.name for one in found))
    if live:
        raise Misconfigured(f"{live_words(live)}, so it cannot be moved.\n{_how_to_stop(holder(data))}")


def live_words(live: Sequence[str]) -> str:
    return f"the group is live ({'; '.join(live)})"


def _how_to_stop(by: Holder | None) -> str:
    if by is None:
        return "Stop its workers (Ctrl-C of `crawlog run`, `crawlog down`, or the service that runs them), then replay."
    if by.what == "up":
        return "Stop it with `crawlog down`, replay, and start it again with `crawlog up`."
    return f"Stop `crawlog {by.what}` with Ctrl-C where it runs, or with `kill {by.pid}`; replay, and run it again."


def _execute(admin: Admin, plan: Plan, order: ReplayOptions, report: Report) -> None:
    if plan.group.stage == "sink":
        is_anew = order.kind == "to-earliest" and not order.topics
        places = {move.partition: move.after for move in plan.moves}
        read_again(admin.settings.run.data, _sink(admin, plan.group), places, anew=is_anew)
        return
    if plan.group.stage == "parse":
        # first: killed behind the move, the same command has nothing to move
        _await_rows(admin.settings, plan, order.job)
        note_skipped(admin.settings, {one.partition: range(one.first, one.end) for one in plan.moves if one.is_skip})
        crash_points.point("replay.announced")
        groups.move(admin, plan.group, plan.moves, order.job)
        return
    if not plan.again:
        return  # a rewind to the end would only begin a new epoch
    from crawlog.streams.control import rewind_crawl

    epoch = rewind_crawl(admin.settings, {move.partition: move.after for move in plan.moves})
    report(f"rewound: what is found from now on belongs to epoch {epoch}")


def _await_rows(settings: "Settings", plan: Plan, job: str) -> None:
    """Has the outputs of a fleet wait for the rows of pages that are parsed again.

    1 parse reports that it has passed all pages → 2 it is stopped → 3 jobs get a new revision, and parse is moved →
    4 `up`: the coordinator takes the report of 1 and ends them at once. So the new place is reported before 3.
    """
    if not plan.again:
        return
    producer, topics = CommandProducer(settings, "crawlog-replay"), Topics(settings.kafka.prefix)
    for move in plan.moves:
        place = Progress("", "parse", move.partition, time.time(), offset=move.after)
        producer.send(topics.progress, progress.encode(place), key=progress.key(place), partition=0)
    acknowledged(producer, topics.progress)
    renew_ends(settings, topics, [job] if job else _concerned(read_control(settings, topics), plan), REPLAYED)


def _concerned(control: ControlState, plan: Plan) -> Iterator[str]:
    """The jobs that may have pages among those that are parsed again: not those that had ended before."""
    for copy in control.of(JobCopy):
        end = control.end(copy.job)
        pages = dict(enumerate(end.pages)) if end is not None else {}
        if any(pages.get(move.partition, move.end) > move.after for move in plan.moves):
            yield copy.job
