"""What a run writes to the log before its seeds."""

from types import SimpleNamespace

import msgspec
import pytest

from crawlog.agents import seed
from crawlog.jobs.planting import Planting
from crawlog.jobs.run_request import RunRequest
from crawlog.schemas import urls as u
from crawlog.schemas.control import JobCopy
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import write_job
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Producer, Topics, ensure_topics, read_partitions
from crawlog.streams.settings.settings import Settings
from tests.support.folding import ANY, State


def test_a_job_whose_seeds_are_gone_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue stays: the record of the new epoch, which drops it, comes after the seeds are read."""

    def trimmed(*_: object) -> None:
        raise Misconfigured("the log begins at offset 7")

    written: list[object] = []
    monkeypatch.setattr(seed, "kept_seeds", trimmed)
    monkeypatch.setattr(Planting, "_write_record", written.append)
    job = SimpleNamespace(name="j", topics=Topics(""), copy=JobCopy("j", ANY, 1), request=RunRequest(), is_anew=True)
    with pytest.raises(Misconfigured, match="offset 7"):
        Planting(job, SimpleNamespace(settings=Settings(), lost_founds=()), print).plant()  # type: ignore[arg-type]  # as much of both as it needs
    assert not written


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
    changed = JobCopy("j", msgspec.structs.replace(ANY, rev=2, max_pages=9))
    job = SimpleNamespace(
        name="j",
        topics=topics,
        copy=changed,
        request=RunRequest(),
        closed="",
        is_changed=True,
        is_anew=False,
        starts=False,
    )
    supervisor = SimpleNamespace(settings=cluster, producer=producer, lost_founds=(), watch=object())
    Planting(job, supervisor, print).plant()  # type: ignore[arg-type]  # as much of both as it needs
    state = State()
    bounds = log_bounds(cluster, topics.urls, [0])
    state.take(*(one.value() for one in read_partitions(cluster, topics.urls, bounds)))
    assert (state.fold.jobs["j"].spec.state, state.fold.jobs["j"].spec.max_pages) == ("running", 9)
