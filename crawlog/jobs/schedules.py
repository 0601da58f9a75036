"""`crawlog schedule`: what is submitted again and again. The HTTP service calls the same functions.

    ScheduleRequest ─► a JobRequest for each spider ─► facts, settings, record ─► JobSchedule ─► crawl.control
    crawl.control ─► ScheduleView          pause, resume, run, remove ─► the same record, changed

The coordinator fires (`agents/coordinator/schedules.py`) and runs no user's code. So all that a spider decides is in
the record, and each deployment of the project makes the record anew: `follow_project`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from crawlog.commands.control import whoever
from crawlog.schemas.control import key, key_of
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.schedules import SCHEDULE_NAME, CatchUp, JobSchedule, Overlap, Planned
from crawlog.streams.control import has_workers, read_control, write_control
from crawlog.streams.errors import CrawlError, InvalidState, Misconfigured, UnknownName
from crawlog.streams.jobs import ControlState
from crawlog.streams.log import CommandProducer, Topics, ensure_topics
from crawlog.streams.schedules import rule_of, run_names
from crawlog.streams.settings import (
    Settings,
    is_secret,
)
from crawlog.streams.spans import span_s

from .request import JobRequest, checked
from .schedule_jobs import Submission, base_of, run_jobs, submission_of, with_base

HOUR_S = 3_600

MAX_BYTES = 500_000  # Size of a schedule's record, at most: every worker reads all of them


class ScheduleRequest(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a schedule. Of `cron` and `every` exactly one is given.

    Attributes:
        cron: Minute, hour, day, month and weekday, in local time of `tz`.
        every: Such as `90s`, `6h` or `1d12h`.
        catch_up: Which times that nobody was there for are made up for: none, the last one, or all, at most 100.
        overlap: What becomes of a time at which the former run goes on: left out, done after it, or it is cancelled.
        submit: The job. Its `spider` may be a pattern, such as `shop-*`: one job each. Its name is made of the
            schedule's and the time. Without `version` it is the project's newest one at that time.
        sitemaps: URLs of sitemaps that are read at each run.
    """

    name: str
    submit: JobRequest
    cron: str = ""
    tz: str = "UTC"
    every: str = ""
    catch_up: CatchUp = "none"
    overlap: Overlap = "skip"
    sitemaps: tuple[str, ...] = ()


class RunView(msgspec.Struct, frozen=True):
    """A job of a schedule's last run; `state` is empty if it is not there (any more)."""

    job: str
    state: JobStateName | str


class ScheduleView(msgspec.Struct, frozen=True):
    """A schedule, as lists show it. Times are UTC epoch seconds.

    Attributes:
        next_at: The next planned time; None while it is paused, and if none comes.
        last_at: Of the last run; None before the first.
        jobs: Of the last run.
        waiting: Runs that wait for the end of this one.
        skipped: Times that overlap left out.
        error: Why a job of the last run could not be created, or why no time can be planned; empty if all is well.
    """

    name: str
    cron: str
    tz: str
    every_s: int
    catch_up: CatchUp
    overlap: Overlap
    paused: bool
    next_at: int | None
    last_at: int | None
    jobs: list[RunView]
    waiting: int
    skipped: int
    error: str
    submit: JobRequest
    by: str


class ScheduleCalendar(NamedTuple):
    """The planned runs of some time.

    Attributes:
        often: The next runs of schedules that run more often than hourly; the later ones are not listed.
        runs: Of the other schedules, by time.
        upto: Up to when all of them are listed, UTC epoch seconds.
    """

    often: "list[NextRun]"
    runs: "list[NextRun]"
    upto: int


class NextRun(NamedTuple):
    """A planned time, and the jobs that are created then."""

    at: int
    schedule: str
    jobs: tuple[str, ...]


# ---------------------------------------------------------------------- what is there


def list_schedules(control: ControlState) -> list[ScheduleView]:
    """All schedules by name."""
    return [_view(control, one) for one in sorted(present_schedules(control), key=lambda one: one.name)]


def show_schedule(control: ControlState, name: str) -> ScheduleView:
    """One schedule. Raises: UnknownName: there is none."""
    return _view(control, _named(control, name))


def next_runs(control: ControlState, name: str = "", count: int = 10) -> list[NextRun]:
    """The next planned times of one schedule, or of all; those that overlap will leave out among them.

    Raises: UnknownName: there is no such schedule.
    """
    return list(islice(_runs([_named(control, name)] if name else present_schedules(control)), count))


def run_calendar(schedules: list[JobSchedule], span_s: int, most: int = 1_000) -> ScheduleCalendar:
    """The planned runs from now on.

    Args:
        most: Runs that are listed at most.
    """
    begin = int(time.time())
    often, others = [], []
    for one in schedules:
        first = None if one.paused else _after(one, begin)[0]
        if first is None or first > begin + span_s:
            continue
        second = _after(one, first)[0]
        if second is not None and second - first < HOUR_S:
            often.append(NextRun(first, one.name, run_names(one, first)))
        else:
            others.append(one)
    runs = list(islice(takewhile(lambda run: run.at <= begin + span_s, _runs(others)), most + 1))
    return ScheduleCalendar(sorted(often), runs[:most], runs[most - 1].at if len(runs) > most else begin + span_s)


def _runs(schedules: Iterable[JobSchedule]) -> Iterator[NextRun]:
    """The planned runs from now on, by time."""
    at = int(time.time())
    known = {one.name: one for one in schedules if not one.paused}
    heap = [(first, one.name) for one in known.values() if (first := _after(one, at)[0]) is not None]
    heapify(heap)
    while heap:
        at, owner = heap[0]
        yield NextRun(at, owner, run_names(known[owner], at))
        later = _after(known[owner], at)[0]
        if later is None:
            heappop(heap)
        else:
            heapreplace(heap, (later, owner))


def present_schedules(control: ControlState) -> list[JobSchedule]:
    """The records of all schedules that are not removed."""
    return [one for one in control.of(JobSchedule) if not one.removed]


def _named(control: ControlState, name: str) -> JobSchedule:
    one = known_schedule(control, name)
    if one is None:
        raise UnknownName(f"there is no schedule {name!r:.100}; `crawlog schedule list` names those that there are.")
    return one


def known_schedule(control: ControlState, name: str) -> JobSchedule | None:
    """The record of a schedule; None if there is none."""
    one = control.records.get(key_of("schedule", name))
    return one if isinstance(one, JobSchedule) and not one.removed else None


def _after(schedule: JobSchedule, at: int) -> tuple[int | None, str]:
    """The next planned time, and why none can be planned."""
    try:
        return rule_of(schedule).after(max(at, schedule.after)), ""
    except Misconfigured as error:
        return None, str(error)


def _view(control: ControlState, one: JobSchedule) -> ScheduleView:
    planned = _note(control, one)
    at, error = _after(one, int(time.time()))
    copies = ((job, control.job(job)) for job in planned.jobs)
    return ScheduleView(
        one.name,
        one.cron,
        one.zone,
        one.every_s,
        one.catch_up,
        one.overlap,
        one.paused,
        None if one.paused else at,
        planned.run or None,
        [RunView(job, copy.spec.state if copy is not None else "") for job, copy in copies],
        len(planned.waiting),
        planned.skipped,
        error or planned.error,
        submission_of(one).submit,
        one.by,
    )


def _note(control: ControlState, one: JobSchedule) -> Planned:
    note = control.records.get(key_of("planned", one.name))
    return note if isinstance(note, Planned) and note.since == one.since else Planned(one.name, one.since)


# ---------------------------------------------------------------------- changes


def add_schedule(
    settings: Settings, wanted: ScheduleRequest, by: str = "", say: Callable[[str], None] = lambda _: None
) -> ScheduleView:
    """Adds a schedule; its first time is the next one.

    Args:
        settings: With the log's address; its settings of jobs are the weakest ones of each run, as for `submit`.
        say: Takes lines for the user.

    Raises: Misconfigured: the request is invalid. InvalidState: there is a schedule of that name.
    """
    ensure_topics(settings, say)
    control = read_control(settings, Topics(settings.kafka.prefix))
    before = control.records.get(key_of("schedule", wanted.name))
    if isinstance(before, JobSchedule) and not before.removed:
        raise InvalidState(
            f"schedule {wanted.name} is there already: `crawlog schedule remove {wanted.name}`, or take another name"
        )
    since = max(int(time.time()), before.since + 1 if isinstance(before, JobSchedule) else 0)
    schedule = JobSchedule(
        wanted.name,
        since,
        request=msgspec.json.decode(msgspec.json.encode(Submission(wanted.submit, wanted.sitemaps))),
        base=base_of(settings),
        cron=wanted.cron.strip(),
        zone=wanted.tz,
        every_s=_seconds(wanted.every) if wanted.every else 0,
        catch_up=wanted.catch_up,
        overlap=wanted.overlap,
        by=by or whoever(),
    )
    _check(wanted, schedule)
    schedule = msgspec.structs.replace(schedule, jobs=run_jobs(settings, schedule, say))
    if (size := len(msgspec.json.encode(schedule))) > MAX_BYTES:
        raise Misconfigured(
            f"the record of schedule {wanted.name} has {size / 1e3:.0f} kB, more than {MAX_BYTES / 1e3:.0f}: name fewer"
            " URLs, a sitemap:URL, or a spider whose `start` gives them"
        )
    view = _written(settings, control, schedule)
    if not has_workers(settings, "fetch"):
        say("no fetch worker is on the log: schedules fire while `crawlog up` or a fleet runs")
    return view


def pause_schedule(settings: Settings, name: str) -> ScheduleView:
    """Plans nothing more until `resume_schedule`; a run that goes on is not touched. Raises: UnknownName."""
    return _changed(settings, name, lambda one: msgspec.structs.replace(one, paused=True))


def resume_schedule(settings: Settings, name: str) -> ScheduleView:
    """Plans again, from now on: the times of the pause are not made up for. Raises: UnknownName."""

    def resumed(one: JobSchedule) -> JobSchedule:
        return msgspec.structs.replace(one, paused=False, after=int(time.time())) if one.paused else one

    return _changed(settings, name, resumed)


def remove_schedule(settings: Settings, name: str) -> ScheduleView:
    """Removes a schedule; jobs of its runs stay. Raises: UnknownName."""

    def removed(one: JobSchedule) -> JobSchedule:
        return JobSchedule(one.name, one.since, removed=True)

    return _changed(settings, name, removed)


def run_schedule(settings: Settings, name: str) -> NextRun:
    """Plans a run now, also of a paused schedule; returns it.

    Raises: UnknownName. InvalidState: the former run goes on, and overlap leaves this one out.
    """
    control = read_control(settings, Topics(settings.kafka.prefix))
    one = _named(control, name)
    note = _note(control, one)
    going_on = [job for job in note.jobs if _goes_on(control, job)]
    if one.overlap == "skip" and (going_on or note.waiting):
        raise InvalidState(
            f"{', '.join(going_on[:3]) or 'a run'} of schedule {name} goes on, and --overlap skip leaves this one out:"
            " wait for it, or `crawlog jobs cancel` it"
        )
    at = max(int(time.time()), note.upto + 1)
    _written(settings, control, msgspec.structs.replace(one, run_at=at))
    return NextRun(at, name, run_names(one, at))


def _goes_on(control: ControlState, job: str) -> bool:
    copy = control.job(job)
    return copy is not None and copy.spec.state != "deleted" and control.end(job) is None


def follow_project(settings: Settings, project: str, say: Callable[[str], None] = lambda _: None) -> None:
    """Makes the records of a project's schedules anew, for its newest version; those that name a version keep it.

    Args:
        say: Takes a line about each schedule that goes on with its version, as its spider cannot be loaded.
    """
    control = read_control(settings, Topics(settings.kafka.prefix))
    for one in present_schedules(control):
        request = submission_of(one).submit
        if request.project != project or request.version:
            continue
        try:
            jobs = run_jobs(with_base(settings, one.base), one, say)
        except CrawlError as error:
            say(f"schedule {one.name} goes on with the version before: {error}")
        else:
            if jobs != one.jobs:
                _written(settings, control, msgspec.structs.replace(one, jobs=jobs))


def _changed(settings: Settings, name: str, change: Callable[[JobSchedule], JobSchedule]) -> ScheduleView:
    control = read_control(settings, Topics(settings.kafka.prefix))
    return _written(settings, control, change(_named(control, name)))


def _written(settings: Settings, control: ControlState, schedule: JobSchedule) -> ScheduleView:
    producer = CommandProducer(settings, "crawlog-schedule")
    write_control(producer, Topics(settings.kafka.prefix), [schedule])
    control.take(key(schedule), schedule)
    return _view(control, schedule)


def _check(wanted: ScheduleRequest, schedule: JobSchedule) -> None:
    """Raises: Misconfigured: the rule or the submission is invalid, or is of one run alone."""
    request = wanted.submit
    if not SCHEDULE_NAME.fullmatch(wanted.name):
        raise Misconfigured(
            f"{wanted.name!r:.100} is no name of a schedule: 1 to 50 letters, digits, dots, dashes or underscores,"
            " and a letter or digit at its start"
        )
    if bool(wanted.cron) == bool(wanted.every):
        raise Misconfigured("give the times: either --cron '0 6 * * 1-5' or --every 6h")
    if wanted.every and wanted.tz != "UTC":
        raise Misconfigured("--tz: of --cron alone; --every counts real time")
    if rule_of(schedule).after(int(time.time())) is None:
        raise Misconfigured(f"--cron {wanted.cron!r:.100}: no such time comes within 50 years")
    given = {"--job": request.job, "--fresh": request.fresh or request.is_new, "--paused": request.paused}
    if named := [name for name, value in given.items() if value]:
        raise Misconfigured(
            f"{', '.join(named)}: not of a schedule: each run is a new job, named after the schedule and the time"
        )
    if secret := [key for key in request.own if is_secret(key)]:
        raise Misconfigured(f"-s {', '.join(secret)}: a secret, and no record holds one: give it to the workers")
    if request.spider and not request.project:
        raise Misconfigured(
            f"--spider {request.spider!r:.200}: a schedule runs deployed code: `crawlog deploy` puts a project into the"
            " log, then give --project P --spider NAME"
        )
    checked(request)


def _seconds(text: str) -> int:
    """The seconds of `--every`. Raises: Misconfigured: it is no such time."""
    try:
        found = span_s(text)
    except ValueError as error:
        raise Misconfigured(f"--every {error}") from None
    if found != int(found):
        raise Misconfigured(f"--every {text}: whole seconds, such as 90s; a run is named after its second")
    return int(found)
