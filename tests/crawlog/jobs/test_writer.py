"""What a command with its own workers writes to the log before they fetch."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents import seed
from crawlog.jobs import writer as writing
from crawlog.jobs.record import RecordPlan, Wanted
from crawlog.jobs.request import JobRequest
from crawlog.jobs.writer import JobWriter
from crawlog.schemas import urls as u
from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import JobFlow
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import known_job, write_job
from crawlog.streams.errors import Misconfigured, UnknownName
from crawlog.streams.job_spec import NO_SPIDER
from crawlog.streams.jobs import ControlState
from crawlog.streams.log import Producer, Topics, ensure_topics, read_partitions
from crawlog.streams.settings import Settings
from tests.support.folding import ANY, State


def writer(settings: Settings, producer: Producer | None = None) -> JobWriter:
    """The writer of a `run` that names its job, and gives no seeds."""
    wanted = Wanted(JobRequest(job="j"), "j", NO_SPIDER, by="ann", may_change=True)
    return JobWriter(SimpleNamespace(settings=settings, producer=producer), wanted, print)


def test_a_job_whose_seeds_are_gone_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue stays: the record of the new epoch, which drops it, comes after the seeds are read."""

    def trimmed(*_: object) -> None:
        raise Misconfigured("the log begins at offset 7")

    written: list[object] = []
    monkeypatch.setattr(seed, "kept_seeds", trimmed)
    monkeypatch.setattr(JobWriter, "_write_record", written.append)
    own = writer(Settings())
    own.plan = RecordPlan("begin_again", JobCopy("j", ANY, 1))
    with pytest.raises(Misconfigured, match="offset 7"):
        own.write()
    assert not written


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ({"after": ("gone",)}, "there is no job gone to wait for: submit it first"),
        ({"after": ("group:none",), "feed": ("b:url", "gone:url")}, "there is no job gone"),
        ({"after": ("b",)}, "job j would wait for itself: j after b after j"),
        ({"feed": ("j:url",)}, "job j would wait for itself: j after j"),
    ],
)
def test_a_job_that_would_wait_for_ever_is_refused(
    monkeypatch: pytest.MonkeyPatch, flow: dict[str, Any], said: str
) -> None:
    """For a job that is not there, or for itself. A group may be empty yet."""
    control = ControlState()
    for name, after in (("a", ()), ("j", ()), ("b", ("j",))):
        copy = JobCopy(name, msgspec.structs.replace(ANY, flow=JobFlow(after)))
        control.take(f"job/{name}".encode(), copy)
    monkeypatch.setattr(writing, "log_end", lambda *_: 0)
    monkeypatch.setattr(writing, "settled_control", lambda *_: control)
    request = JobRequest(job="j", fresh=True, **flow)
    own = writer(Settings())
    own.wanted = Wanted(request, "j", NO_SPIDER)
    with pytest.raises((UnknownName, Misconfigured), match=said):
        own.recall()


@pytest.mark.broker
def test_a_run_that_changes_its_job_overrules_an_unanswered_order(cluster: Settings) -> None:
    """The order, of a time without workers, is folded by those of the run."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    write_job(cluster, producer, topics, "j", ANY)
    for expects in (7, 8, 1):
        order = u.JobOrder(expects, "paused")
        producer.send(topics.urls, u.encode(u.UrlsRecord(job="j", order=order)), partition=0)
    assert producer.flush(30)
    own = writer(cluster, producer)
    own.recall()
    own.plan = RecordPlan("change", JobCopy("j", msgspec.structs.replace(ANY, rev=2, max_pages=9)))
    own.write()
    state = State()
    bounds = log_bounds(cluster, topics.urls, [0])
    state.take(*(one.value() for one in read_partitions(cluster, topics.urls, bounds)))
    assert (state.fold.jobs["j"].spec.state, state.fold.jobs["j"].spec.max_pages) == ("running", 9)


@pytest.mark.broker
def test_a_run_and_a_submission_at_one_instant_are_one_job(cluster: Settings) -> None:
    """1 the run reads that there is no job → 2 another command creates it → 3 the run goes on with that one."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    own = writer(cluster, producer)
    own.wanted.spider = own.wanted.spider._replace(starts=True)
    assert own.recall().step == "create"
    write_job(cluster, producer, topics, "j", msgspec.structs.replace(ANY, starts=True, max_pages=7, by="bob"))
    own.write()
    copy = known_job(cluster, topics, "j")
    assert copy is not None
    assert (copy.epoch, copy.spec.max_pages, copy.spec.by, copy.spec.state) == (0, None, "bob", "running")
