"""Requests for schedules: the record that is written, what is refused, what a new version of the project changes."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from crawlog.jobs import schedules
from crawlog.jobs.request import JobRequest
from crawlog.jobs.schedules import ScheduleRequest, add_schedule, follow_project, next_runs, run_schedule
from crawlog.schemas.control import Control, JobCopy, key
from crawlog.schemas.job_orders import CodeRef, FeedLayout, FeedOutput
from crawlog.schemas.schedules import JobSchedule, Planned
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import InvalidState, Misconfigured, UnknownName
from crawlog.streams.jobs import ControlState
from crawlog.streams.schedules import NO_TIME
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.spiders import SpiderFacts
from tests.support.control_records import control_of

URL = JobRequest(urls=("http://a.test/",))


class Written:
    """A log whose crawl.control is a list, and a project whose spiders load at once."""

    def __init__(self) -> None:
        self.records: list[Control] = []
        self.version = "1"
        self.settings: dict[str, Any] = {}
        self.fails = False

    @property
    def control(self) -> ControlState:
        """What crawl.control says."""
        return control_of(*self.records)

    @property
    def schedule(self) -> JobSchedule:
        """The last one that was written."""
        (*_, found) = self.control.of(JobSchedule)
        return found

    def facts(self, request: JobRequest) -> SpiderFacts | None:
        """Those of a spider."""
        if self.fails:
            raise Misconfigured("the spider is broken")
        feed = FeedOutput("rows-%(time)s.csv", FeedLayout())
        facts = SpiderFacts(request.spider, f"{request.spider}@1", starts=True, settings=self.settings, feeds=(feed,))
        return facts if request.spider else None

    def code(self, request: JobRequest) -> CodeRef | None:
        """The newest version of the project."""
        return CodeRef(request.project, request.version or self.version, "00" * 32) if request.project else None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Written:
    """A log without a broker."""
    made = Written()

    def write(_producer: Any, _topics: Any, entries: Iterable[Control]) -> None:
        made.records += entries

    monkeypatch.setattr(schedules, "read_control", lambda *_: made.control)
    monkeypatch.setattr(schedules, "write_control", write)
    monkeypatch.setattr(schedules, "CommandProducer", lambda *_: None)
    monkeypatch.setattr(schedules, "ensure_topics", lambda *_: None)
    monkeypatch.setattr(schedules, "has_workers", lambda *_: False)
    monkeypatch.setattr("crawlog.jobs.schedule_jobs.code_of", lambda _, request: made.code(request))
    monkeypatch.setattr("crawlog.jobs.schedule_jobs.deployed_facts", lambda _, request, __: made.facts(request))
    monkeypatch.setattr("crawlog.commands.projects.list_spiders", lambda *_: ["shop-a", "shop b", "other", "shop-b"])
    return made


def add(request: ScheduleRequest, settings: Settings | None = None) -> list[str]:
    """Adds a schedule; returns the lines for the user."""
    lines: list[str] = []
    add_schedule(settings or load({}), request, "me", lines.append)
    return lines


def test_the_record_holds_the_whole_submission(log: Written) -> None:
    """URLs and settings; it is read back as it was written."""
    base = load({"politeness.delay_s": 7.0, "fetch.concurrency": 3, "kafka.bootstrap": "ours.test:9092"})
    submit = msgspec.structs.replace(URL, depth=2, priority=7, settings={"scope.kind": "host"})
    lines = add(ScheduleRequest(name="s", submit=submit, cron="@daily", tz="Asia/Kolkata", catch_up="all"), base)
    one = log.schedule
    assert msgspec.json.decode(msgspec.json.encode(one), type=JobSchedule) == one
    assert (one.cron, one.zone, one.catch_up, one.overlap, one.by) == ("@daily", "Asia/Kolkata", "all", "skip", "me")
    (job,) = one.jobs
    assert (job.seeds, job.spec.priority, job.suffix) == (("http://a.test/",), 7, "")
    assert (job.spec.max_depth, job.spec.scope.kind, job.spec.scope.names) == (2, "host", ("a.test",))
    assert job.spec.requests is not None
    assert job.spec.requests.delay_s == 7.0
    assert one.base == {"politeness.delay_s": "7.0"}, "no setting of workers, no address"
    assert lines == ["no fetch worker is on the log: schedules fire while `crawlog up` or a fleet runs"]


def test_a_pattern_is_one_job_for_each_spider(log: Written) -> None:
    """Each job's name ends with the spider's; a name that no job can have gets a hash."""
    add(ScheduleRequest(name="s", submit=JobRequest(project="p", spider="shop*"), every="6h"))
    suffixes = [job.suffix for job in log.schedule.jobs]
    assert suffixes == ["shop-a", "shop-b-8a914b69", "shop-b"]
    assert {job.spec.spider for job in log.schedule.jobs} == {"shop-a", "shop b", "shop-b"}
    assert [output.name for output in log.schedule.jobs[0].spec.outputs] == [f"rows-{NO_TIME}.csv"]
    with pytest.raises(Misconfigured, match="no spider of project p fits 'x-\\*'; it has shop-a"):
        add(ScheduleRequest(name="t", submit=JobRequest(project="p", spider="x-*"), every="6h"))


def test_a_schedule_takes_jobs_that_wait_are_fed_and_call(log: Written) -> None:
    """A job that is fed needs no URL."""
    submit = JobRequest(feed=("lists:url",), after=("group:night",), on_finish=("mail",))
    add(ScheduleRequest(name="s", submit=submit, every="6h"))
    (job,) = log.schedule.jobs
    assert (job.spec.flow, job.seeds) == (submit.flow, ())


def test_a_sitemap_is_read_at_each_run(log: Written) -> None:
    """It stands in the record as it was given, and takes the place of the spider's `start`."""
    request = JobRequest(project="p", spider="other")
    add(ScheduleRequest(name="s", submit=request, every="6h", sitemaps=("http://a.test/sitemap.xml",)))
    (job,) = log.schedule.jobs
    assert (job.seeds, job.spec.starts) == (("sitemap:http://a.test/sitemap.xml",), False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "a/b"}, "is no name of a schedule"),
        ({"name": "n" * 51}, "is no name of a schedule"),
        ({"every": ""}, "either --cron '0 6 \\* \\* 1-5' or --every 6h"),
        ({"cron": "@daily"}, "either --cron"),
        ({"every": "soon"}, "--every 'soon' is no length of time"),
        ({"every": "0.5s"}, "whole seconds"),
        ({"tz": "Europe/Berlin"}, "--tz: of --cron alone"),
        ({"every": "", "cron": "0 6 * *"}, "no cron expression"),
        ({"every": "", "cron": "0 0 30 2 *"}, "no such time comes within 50 years"),
        ({"every": "", "cron": "@daily", "tz": "Berlin"}, "no time zone 'Berlin'"),
        ({"submit": JobRequest()}, "nothing to crawl"),
        ({"submit": JobRequest(urls=("http://a.test/",), job="x", fresh=True)}, "--job, --fresh: not of a schedule"),
        ({"submit": JobRequest(urls=("http://u:secret@a.test/",))}, "fetch.logins"),
        ({"submit": JobRequest(urls=("/etc/passwd",))}, "is not a URL"),
        ({"submit": JobRequest(spider="/tmp/spider.py")}, "a schedule runs deployed code"),
        ({"submit": JobRequest(urls=("http://a.test/",), settings={"fetch.headers": ["Cookie: x"]})}, "a secret"),
        ({"submit": JobRequest(urls=tuple(f"http://a.test/{n:0100}" for n in range(9_000)))}, "name fewer URLs"),
    ],
)
def test_what_no_schedule_can_be_is_refused(log: Written, change: dict[str, Any], why: str) -> None:
    """Before anything is written, with what to do."""
    request = msgspec.structs.replace(ScheduleRequest(name="s", submit=URL, every="6h"), **change)
    with pytest.raises(Misconfigured, match=why):
        add(request)
    assert log.records == []


def test_a_name_is_taken_until_its_schedule_is_removed(log: Written) -> None:
    """A new one of the name has another beginning, so notes about the former one do not count."""
    request = ScheduleRequest(name="s", submit=URL, every="6h")
    add(request)
    first = log.schedule
    with pytest.raises(InvalidState, match="schedule s is there already: `crawlog schedule remove s`"):
        add(request)
    schedules.remove_schedule(load({}), "s")
    assert schedules.list_schedules(log.control) == []
    with pytest.raises(UnknownName, match="there is no schedule 's'"):
        schedules.pause_schedule(load({}), "s")
    add(request)
    assert log.schedule.since > first.since


def test_a_pause_ends_without_its_times(log: Written) -> None:
    """`after` is the end of the pause."""
    add(ScheduleRequest(name="s", submit=URL, every="6h"))
    assert schedules.pause_schedule(load({}), "s").next_at is None
    view = schedules.resume_schedule(load({}), "s")
    assert view.next_at == log.schedule.since + 6 * 3_600
    assert log.schedule.after >= log.schedule.since


def test_a_run_now_is_refused_while_overlap_would_leave_it_out(log: Written) -> None:
    """With `queue` it waits for the end of the run that goes on."""
    add(ScheduleRequest(name="s", submit=URL, every="6h"))
    one = log.schedule
    log.records += [JobCopy("s-1", JobSpec()), Planned("s", one.since, 1, 1, ("s-1",), begun=True)]
    with pytest.raises(InvalidState, match="s-1 of schedule s goes on"):
        run_schedule(load({}), "s")
    queued = msgspec.structs.replace(one, overlap="queue")
    log.records += [queued]
    run = run_schedule(load({}), "s")
    assert log.schedule.run_at == run.at >= one.since
    assert run.jobs[0].startswith("s-20")


def test_a_new_version_of_the_project_counts_from_the_next_run_on(log: Written) -> None:
    """With all that its spider sets, on the settings of the submitter; one that names a version keeps it."""
    base = load({"politeness.delay_s": 7.0})
    add(ScheduleRequest(name="a", submit=JobRequest(project="p", spider="other"), every="6h"), base)
    pinned = JobRequest(project="p", spider="other", version="1")
    add(ScheduleRequest(name="b", submit=pinned, every="6h"))
    log.version, log.settings = "2", {"run.depth": 9}
    before = len(log.records)
    follow_project(load({"politeness.delay_s": 1.0}), "p")
    follow_project(load({}), "another")
    (changed,) = log.records[before:]
    assert isinstance(changed, JobSchedule)
    spec = changed.jobs[0].spec
    assert spec.code is not None
    assert spec.requests is not None
    assert (changed.name, spec.code.version, spec.max_depth, spec.requests.delay_s) == ("a", "2", 9, 7.0)


def test_a_version_whose_spider_is_broken_leaves_the_schedule_as_it_is(log: Written) -> None:
    """Whoever deploys reads why."""
    add(ScheduleRequest(name="a", submit=JobRequest(project="p", spider="other"), every="6h"))
    log.fails, before, lines = True, list(log.records), list[str]()
    follow_project(load({}), "p", lines.append)
    assert log.records == before
    assert lines == ["schedule a goes on with the version before: the spider is broken"]


def test_lists_show_the_last_run_and_the_next_times(log: Written) -> None:
    """A record that a stranger wrote shows its error, and hides no other one."""
    add(ScheduleRequest(name="s", submit=URL, every="6h"))
    one = log.schedule
    log.records += [
        Planned("s", one.since, 9, 9, ("s-1", "s-2"), begun=True, waiting=(9,), skipped=3, error="no"),
        JobCopy("s-1", JobSpec(state="finished")),
        JobSchedule("bad", 1, cron="x"),
    ]
    bad, view = schedules.list_schedules(log.control)
    assert "no cron expression" in bad.error
    assert [(run.job, run.state) for run in view.jobs] == [("s-1", "finished"), ("s-2", "")]
    assert (view.last_at, view.waiting, view.skipped, view.error) == (9, 1, 3, "no")
    times = [run.at for run in next_runs(log.control, count=3)]
    assert times == [one.since + 6 * 3_600 * n for n in (1, 2, 3)]
    assert times[0] > time.time()
    assert key(one) == b"schedule/s"
