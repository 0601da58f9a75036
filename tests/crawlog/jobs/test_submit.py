"""`submit` without workers: what a submission writes to the log."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.agents import seed
from crawlog.agents.seed import Source, plant
from crawlog.commands.job_logs import job_log_lines
from crawlog.jobs.changes import cancel_job, resume_job
from crawlog.jobs.request import JobRequest
from crawlog.jobs.submit import submit
from crawlog.jobs.update import JobUpdate, update_job
from crawlog.schemas import urls
from crawlog.schemas.control import NO_EPOCH, Command, JobCopy, OutputNote, StartEnded
from crawlog.schemas.job_orders import PIPELINES_ALONE, OutputSpec
from crawlog.schemas.urls import DEFAULT_JOB, JobSpec, UrlsRecord
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.control import (
    job_changes,
    known_job,
    read_control,
    settled_control,
    write_command,
    write_control,
    write_job,
)
from crawlog.streams.errors import InvalidState, Misconfigured
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.read import read_partitions
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings, for_stage
from tests.support.deployed import deployed, job
from tests.support.dying import dying
from tests.support.folding import State

pytestmark = pytest.mark.broker


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


def records(settings: Settings) -> list[UrlsRecord]:
    """All of crawl.urls."""
    topic = Topics(settings.kafka.prefix).urls
    bounds = log_bounds(settings, topic, list(range(settings.kafka.partitions)))
    return [urls.decode(record.value() or b"") for record in read_partitions(settings, topic, bounds)]


def test_a_submission_is_a_whole_job_in_the_log(cluster: Settings) -> None:
    """Record in every partition with its priority, then the seeds; who, when, and the outputs are in it."""
    wanted = JobRequest(
        urls=("http://a.test/", "http://b.test/x"),
        settings={"politeness.delay_s": 3},
        outputs=("rows.csv",),
        job="j",
        max_pages=5,
        priority=7,
    )
    view = submit(cluster, wanted, "ann")
    assert (view.name, view.state, view.by) == ("j", "pending", "ann")
    assert view.submitted_at > 0
    spec = job(cluster, "j").spec
    assert spec.requests is not None
    assert (spec.requests.delay_s, spec.max_pages, spec.scope.names) == (3.0, 5, ("a.test", "b.test"))
    assert spec.outputs == (OutputSpec("rows.csv"),)
    written = records(cluster)
    assert sum(record.spec is not None for record in written) == cluster.kafka.partitions
    founds = {found.url: found.priority for record in written for found in record.urls or ()}
    assert founds == {"http://a.test/": 0, "http://b.test/x": 0}
    assert (spec.priority, view.priority) == (7, 7)


def test_the_same_submission_is_the_same_job_and_another_one_is_refused(cluster: Settings) -> None:
    """Without a name it is made of the seeds; other settings under a known name are an error that says what to do."""
    wanted = JobRequest(urls=("http://a.test/",))
    name = submit(cluster, wanted).name
    assert submit(cluster, wanted).name == name
    assert job(cluster, name).spec.rev == 1
    other = JobRequest(urls=("http://a.test/",), job=name, depth=1)
    with pytest.raises(InvalidState, match=r"with other run\.depth: .*--fresh"):
        submit(cluster, other)
    private = JobRequest(
        urls=("http://a.test/",), job=name, outputs=("rows.csv",), settings={"network.allow_private": True}
    )
    with pytest.raises(InvalidState, match=r"with other -o, network\.allow_private: "):
        submit(cluster, private)
    for seeds in ("http://a.test/",), ("http://b.test/",):
        narrow = JobRequest(urls=seeds, job=name, settings={"scope.include": ["/shop/"]})
        with pytest.raises(InvalidState, match=r"with other scope\.include: "):
            submit(cluster, narrow)
    with pytest.raises(InvalidState, match="there already"):
        submit(cluster, JobRequest(urls=("http://a.test/",), job=name, is_new=True))
    fresh = JobRequest(urls=("http://a.test/",), job=name, depth=1, fresh=True)
    assert submit(cluster, fresh).epoch == 1
    assert job(cluster, name).spec.max_depth == 1


@pytest.mark.parametrize(
    ("given", "others"),
    [
        (JobRequest(max_pages=4), ["run.max_pages"]),
        pytest.param(JobRequest(depth=2, priority=3), ["--priority", "run.depth"], marks=pytest.mark.long),
        (JobRequest(settings={"politeness.delay_s": 9, "scope": "host"}), ["scope.kind", "politeness.delay_s"]),
        pytest.param(JobRequest(outputs=("rows.csv",)), ["-o"], marks=pytest.mark.long),
        (JobRequest(max_pages=5, depth=1), []),
        pytest.param(JobRequest(), [], marks=pytest.mark.long),
    ],
)
def test_a_submission_without_urls_has_no_settings_but_the_jobs(
    cluster: Settings, given: JobRequest, others: list[str]
) -> None:
    """Other ones would be left out without a word. What it does not give is as the job has it."""
    submit(cluster, JobRequest(urls=("http://a.test/",), job="j", max_pages=5, depth=1, priority=7))
    again = msgspec.structs.replace(given, job="j")
    if not others:
        assert submit(cluster, again).name == "j"
        return
    with pytest.raises(InvalidState, match=f"with other {', '.join(others)}: "):
        submit(cluster, again)


@pytest.mark.parametrize(
    ("depths", "is_new"),
    [
        ((1, 2), False),
        ((2, 1), True),
        pytest.param((1, 2), True, marks=pytest.mark.long),
        pytest.param((2, 1), False, marks=pytest.mark.long),
    ],
)
def test_the_first_of_two_submissions_at_one_instant_has_the_name(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch, depths: tuple[int, int], *, is_new: bool
) -> None:
    """Whichever record the folds prefer: both had read that there is no such job. The other one sends no seeds."""
    first, second = (
        JobRequest(urls=(f"http://{depth}.test/",), job="j", depth=depth, is_new=is_new) for depth in depths
    )

    def crossed(*given: Any) -> Any:
        said = settled_control(*given)
        monkeypatch.undo()
        submit(cluster, first)
        return said

    monkeypatch.setattr("crawlog.jobs.writer.settled_control", crossed)
    with pytest.raises(InvalidState, match="is there already" if is_new else r"with other .*run\.depth"):
        submit(cluster, second)
    taken = job(cluster, "j")
    assert (taken.spec.max_depth, taken.spec.scope.names) == (first.depth, (f"{first.depth}.test",))
    fold = State(*(urls.encode(record) for record in records(cluster))).fold
    assert fold.jobs["j"].spec == taken.spec
    assert [found.url for one in records(cluster) for found in one.urls or ()] == [*first.urls]


@pytest.mark.parametrize("change", ["deleted", "fresh"])
def test_a_submission_gives_no_seeds_to_a_job_that_is_deleted_meanwhile(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    """The new job would lack all but its settings, and run though it was to wait; one begun again has other seeds."""
    wanted = JobRequest(urls=("http://a.test/",), job="j", paused=True)
    submit(cluster, wanted)

    def crossed(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        if change == "fresh":
            submit(cluster, msgspec.structs.replace(wanted, fresh=True))
        else:
            write_job(cluster, Producer(cluster, "test"), Topics(cluster.kafka.prefix), "j", JobSpec(2, state=change))
        return plant(*given, **options)

    monkeypatch.setattr(seed, "plant", crossed)
    with pytest.raises(InvalidState, match="deleted or began again meanwhile"):
        submit(cluster, wanted)
    assert (job(cluster, "j").epoch, job(cluster, "j").spec.state) == (
        (1, "paused") if change == "fresh" else (0, "deleted")
    )
    assert [record.epoch for record in records(cluster) if record.urls] == ([0, 1] if change == "fresh" else [0])


def test_the_same_submission_of_a_finished_job_has_its_outputs_looked_at_again(cluster: Settings) -> None:
    """FILE may be lost; its worker makes it anew, as `run` does."""
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    wanted = JobRequest(urls=("http://a.test/",), outputs=("rows.jsonl",), job="j")
    submit(cluster, wanted)
    write_job(cluster, producer, topics, "j", msgspec.structs.replace(job(cluster, "j").spec, rev=2, state="finished"))
    write_control(producer, topics, [OutputNote("j", "rows.jsonl", 1.0, rev=2, rows=9)])
    submit(cluster, wanted)
    note = read_control(cluster, topics).output("j", "rows.jsonl")
    assert isinstance(note, OutputNote)
    assert (note.rev, job(cluster, "j").spec.state) == (0, "finished")


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("stopped", "enough"),
        ("deleted", ""),
        pytest.param("stopped", "", marks=pytest.mark.long),
        pytest.param("deleted", "enough", marks=pytest.mark.long),
    ],
)
def test_a_job_that_begins_again_is_no_longer_closed_by_its_spider(cluster: Settings, before: str, reason: str) -> None:
    """Else it would be stopped at once, for the old reason. A stop by an operator holds until he ends it."""
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    submit(cluster, JobRequest(urls=("http://a.test/",), job="j"))
    write_job(cluster, producer, topics, "j", JobSpec(2, state=before))  # type: ignore[arg-type]  # one of the states
    write_command(producer, topics, Command("stop", job="j", reason=reason))
    assert submit(cluster, JobRequest(urls=("http://a.test/",), job="j", fresh=before == "stopped")).epoch == 1
    assert read_control(cluster, topics).commands.of_job("j").stopped == (not reason)


@pytest.mark.parametrize("point", ["rewind.noted", pytest.param("rewind.acknowledged", marks=pytest.mark.long)])
def test_every_command_completes_a_fresh_that_was_killed(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Else each order names the former epoch and is refused, as is the same command again."""
    plain, fresh = (JobRequest(urls=("http://a.test/",), job="j", fresh=again) for again in (False, True))
    submit(cluster, plain)
    for epoch, again in ((1, partial(resume_job, cluster, "j")), (2, partial(submit, cluster, plain))):
        with dying(monkeypatch, point, 1):
            submit(cluster, fresh)
        assert again().epoch == epoch
    with dying(monkeypatch, point, 1):
        submit(cluster, fresh)
    assert submit(cluster, fresh).epoch == 4
    assert [record.epoch for record in records(cluster) if record.urls] == [0, 2, 4]
    with dying(monkeypatch, point, 1):
        submit(cluster, fresh)
    cancelled = cancel_job(cluster, "j")
    assert cancelled is not None
    assert (cancelled.epoch, job(cluster, "j").spec.state) == (5, "cancelled")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("paused", ""),
        ("stopped", "max_pages"),
        pytest.param("stopped", "operator", marks=pytest.mark.long),
        pytest.param("failed", "no_spider", marks=pytest.mark.long),
    ],
)
def test_urls_for_a_job_that_does_not_run_are_told_to_wait(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch, state: Any, reason: str
) -> None:
    """Nothing is lost, and the line names what lets the job go on; a larger limit alone does so at the limit only."""
    wanted = JobRequest(urls=("http://a.test/",), job="j", max_pages=5)
    submit(cluster, wanted)
    is_full = reason == "max_pages"
    at_limit = "`crawlog submit --job j --max-pages N` (without `up`: the same `crawlog run`) with more than 5"
    way = at_limit if is_full else "`crawlog jobs resume j`"
    held = msgspec.structs.replace(job(cluster, "j").spec, rev=2, state=state, reason=reason)
    write_job(cluster, Producer(cluster, "test"), Topics(cluster.kafka.prefix), "j", held)
    lines: list[str] = []
    assert submit(cluster, wanted, say=lines.append).state == state
    assert [line for line in lines if "wait" in line] == [f"job j is {state}: its URLs wait; {way} lets it go on"]

    def change(*_: object, spec: JobSpec, **given: object) -> JobCopy:
        assert given["expects"] == 2
        assert (given["state"], given["reason"]) == (("running", "") if is_full else (None, reason))
        return JobCopy("j", msgspec.structs.replace(spec, state=given["state"] or spec.state))

    monkeypatch.setattr(job_changes, "has_workers", lambda *_: True)
    monkeypatch.setattr(job_changes, "change_job", change)
    for urls_again in ((), wanted.urls):
        larger = msgspec.structs.replace(wanted, urls=urls_again, max_pages=9)
        assert submit(cluster, larger).state == ("pending" if is_full else state)
    if is_full:
        with pytest.raises(InvalidState, match=r"5 pages of its limit: `crawlog submit --job j --max-pages N`"):
            resume_job(cluster, "j")
    with pytest.raises(InvalidState, match=r"with other run\.max_pages"):
        submit(cluster, msgspec.structs.replace(wanted, max_pages=4))


def test_a_larger_limit_lets_a_full_job_go_on_where_no_worker_runs(cluster: Settings) -> None:
    """Its record is written, and its new URLs: a worker that starts later crawls them."""
    submit(cluster, JobRequest(urls=("http://a.test/",), job="j", max_pages=5, depth=1), "ann")
    full = msgspec.structs.replace(job(cluster, "j").spec, rev=2, state="stopped", reason="max_pages")
    write_job(cluster, Producer(cluster, "test"), Topics(cluster.kafka.prefix), "j", full)
    submit(cluster, JobRequest(urls=("http://a.test/x",), job="j", max_pages=9, depth=1), "bob")
    spec = job(cluster, "j").spec
    assert (spec.state, spec.reason, spec.max_pages, spec.max_depth, spec.by) == ("running", "", 9, 1, "ann")
    assert [found.url for one in records(cluster) for found in one.urls or ()] == ["http://a.test/", "http://a.test/x"]


def test_a_job_of_the_service_is_requested_as_one_of_the_command_line(cluster: Settings) -> None:
    """The service has no secrets of fetch; the record names the headers, and says that requests go through a proxy."""
    fetch = cluster.fetch.model_copy(update={"headers": ("X-Key: said",)})
    exits = cluster.exits.model_copy(update={"proxies": ("http://u:secret@p:1",)})
    settings = cluster.model_copy(update={"fetch": fetch, "exits": exits})
    for name, own in (("cli", settings), ("http", for_stage(settings, "service"))):
        submit(own, JobRequest(urls=("http://a.test/",), job=name))
    rules = job(cluster, "http").spec.requests
    assert rules == job(cluster, "cli").spec.requests
    assert rules is not None
    assert (rules.headers, rules.proxied) == (("X-Key: said",), True)


def test_a_paused_submission_waits(cluster: Settings) -> None:
    """Its record says so from its first moment on."""
    assert submit(cluster, JobRequest(urls=("http://a.test/",), job="later", paused=True)).state == "paused"
    assert {one.spec.state for one in records(cluster) if one.spec is not None} == {"paused"}


@pytest.mark.parametrize("state", ["running", "finished"])
def test_urls_that_are_to_wait_are_refused_by_a_job_that_does_not(cluster: Settings, state: str) -> None:
    """They were taken, and asked for at once; again for a paused job they wait."""
    waits = JobRequest(urls=("http://a.test/",), job="j", paused=True)
    submit(cluster, waits)
    assert submit(cluster, waits).state == "paused"
    known = job(cluster, "j")
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", msgspec.structs.replace(known.spec, rev=9, state=state))
    founds = sum(len(record.urls or ()) for record in records(cluster))
    with pytest.raises(InvalidState, match=f"{state}: --paused does not hold it.*--fresh"):
        submit(cluster, waits)
    assert sum(len(record.urls or ()) for record in records(cluster)) == founds
    assert submit(cluster, msgspec.structs.replace(waits, fresh=True)).state == "paused"


def test_a_spider_that_is_not_deployed_is_refused_with_what_to_do(cluster: Settings) -> None:
    """The name of a module or a file over the wire runs nothing."""
    for spider in ("/tmp/x.py", "os:system", "quotes"):
        with pytest.raises(Misconfigured, match="crawlog deploy"):
            submit(cluster, JobRequest(urls=("http://a.test/",), spider=spider))
    assert records(cluster) == []


STARTS = """
import crawlog

class Shop(crawlog.Spider):
    name = "shop"

    async def start(self):
        yield crawlog.Request("http://a.test/")
"""


def test_a_job_keeps_its_priority_until_it_is_updated(cluster: Settings) -> None:
    """A submission without one names none; another one is refused, and `jobs update` has the way."""
    wanted = JobRequest(urls=("http://a.test/",), job="j", priority=7)
    for one in (wanted, msgspec.structs.replace(wanted, priority=None)):
        assert submit(cluster, one).priority == 7
    with pytest.raises(InvalidState, match="with other --priority"):
        submit(cluster, msgspec.structs.replace(wanted, priority=8))
    assert update_job(cluster, "j", JobUpdate(priority=9)).priority == 9
    assert job(cluster, "j").spec.priority == 9


PIPED = """
import crawlog

class Drop:
    def process_item(self, item):
        raise crawlog.DropItem("all")

class Shop(crawlog.Spider):
    name = "shop"
    pipelines = [Drop]

    def parse(self, response): ...
"""


def test_a_job_with_pipelines_has_an_output_where_none_is_wanted(cluster: Settings, tmp_path: Path) -> None:
    """Else no sink worker would run them. Also one that `run` made, whose sink was its own; it may be at its limit."""
    settings = deployed(cluster, tmp_path, PIPED)
    wanted = JobRequest(project="shop", spider="shop", job="j", urls=("http://a.test/",), max_pages=3)
    submit(settings, msgspec.structs.replace(wanted, job="file", outputs=("rows.csv",)))
    assert [one.name for one in job(settings, "file").spec.outputs] == ["rows.csv"]
    submit(settings, wanted)
    full = msgspec.structs.replace(job(settings, "j").spec, rev=2, outputs=(), state="stopped", reason="max_pages")
    assert job(settings, "j").spec.outputs == (PIPELINES_ALONE,)
    write_job(settings, Producer(settings, "test"), Topics(settings.kafka.prefix), "j", full)
    submit(settings, wanted)
    spec = job(settings, "j").spec
    assert (spec.outputs, spec.state, spec.reason) == ((PIPELINES_ALONE,), "stopped", "max_pages")


def test_the_next_submission_begins_a_start_again_that_failed(cluster: Settings, tmp_path: Path) -> None:
    """The note of its end is replaced, as if it had never begun; that of one that came to its end stays."""
    settings = deployed(cluster, tmp_path, STARTS)
    same, named = JobRequest(project="shop", spider="shop", job="j"), JobRequest(job="j")
    submit(settings, same)
    producer, topics = Producer(settings, "test"), Topics(settings.kafka.prefix)
    failed, ended = StartEnded("j", 1.0, error="code_refused: x"), StartEnded("j", 1.0)
    other = msgspec.structs.replace(failed, epoch=1)
    for wanted, note, is_gone in (
        (same, failed, True),
        (named, failed, True),
        (named, ended, False),
        (named, other, False),
    ):
        lines: list[str] = []
        write_control(producer, topics, [note])
        submit(settings, wanted, say=lines.append)
        kept = read_control(settings, topics).start("j")
        assert isinstance(kept, StartEnded)
        assert (kept.epoch == NO_EPOCH) == is_gone
        assert lines == ["the `start` of job j ended with an error: it begins again"] * is_gone


BROKEN = """
import crawlog

class Shop(crawlog.Spider):
    name = "shop"

    def __init__(self, **arguments):
        self.start_urls = [arguments["start_url"]]

    def parse(self, response): ...
"""


def test_a_spider_that_cannot_be_made_is_refused_or_a_job_that_failed(cluster: Settings, tmp_path: Path) -> None:
    """As the caller wants: Scrapyd takes such a job, whose log says why. It cannot go on, and its name is taken."""
    settings = deployed(cluster, tmp_path, BROKEN)
    wanted = JobRequest(project="shop", spider="shop", job="j", is_new=True)
    with pytest.raises(Misconfigured, match="start_url"):
        submit(settings, wanted)
    assert known_job(settings, Topics(settings.kafka.prefix), "j") is None
    with pytest.raises(Misconfigured, match="other programs"):
        submit(settings, msgspec.structs.replace(wanted, job=DEFAULT_JOB), keeps_broken=True)
    assert known_job(settings, Topics(settings.kafka.prefix), DEFAULT_JOB) is None
    view = submit(settings, wanted, keeps_broken=True)
    assert (view.state, view.reason, view.spider) == ("failed", "spider_broken", "shop")
    assert view.ended_at >= view.submitted_at > 0
    assert [("start_url" in line.text, line.level) for line in job_log_lines(settings, "j")] == [(True, "error")]
    with pytest.raises(Misconfigured, match="there already"):
        submit(settings, wanted, keeps_broken=True)
    way = "`crawlog submit --project shop --spider shop --job j --fresh` with other code or arguments lets it go on"
    with pytest.raises(InvalidState, match=f"Submit it anew: {way}"):
        resume_job(settings, "j")
    lines: list[str] = []
    submit(settings, JobRequest(job="j"), say=lines.append)
    assert lines == [f"job j is failed: its URLs wait; {way}"]
    mended = msgspec.structs.replace(wanted, args={"start_url": "http://a.test/"}, fresh=True, is_new=False)
    assert submit(settings, mended).state == "pending"


@pytest.mark.parametrize("way", ["submit", "seed"])
def test_the_name_of_a_deleted_job_begins_a_new_one_in_a_later_epoch(cluster: Settings, way: str) -> None:
    """Its seeds name that epoch: those of the deleted job's are dropped everywhere."""
    wanted = JobRequest(urls=("http://a.test/",), job="j")
    submit(cluster, wanted)
    producer, topics = Producer(cluster, "test"), Topics(cluster.kafka.prefix)
    write_job(cluster, producer, topics, "j", JobSpec(2, state="deleted"))
    if way == "submit":
        submit(cluster, wanted)
    else:
        with Source(["http://a.test/"]) as source:
            plant(cluster, producer, "j", source, report=print)
    new = job(cluster, "j")
    assert (new.epoch, new.spec.rev, new.spec.state, new.spec.scope.names) == (1, 1, "running", ("a.test",))
    assert [record.epoch for record in records(cluster) if record.urls] == [0, 1]
