"""What the coordinator copies of a job."""

from types import SimpleNamespace
from typing import Any

from crawlog.agents.coordinator.coordinator import Coordinator
from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import JobOrder, UrlsRecord, encode
from tests.support.folding import State, job


def test_a_copy_names_the_epoch_of_the_deleted_job_that_had_the_name() -> None:
    """An order does not know it, the fold does."""
    state = State(job(), job(state="deleted", rev=2), job(epoch=1))
    (effects,) = state.take(encode(UrlsRecord("j", 1, order=JobOrder(1, "paused"))))
    stage: Any = SimpleNamespace(live={0: SimpleNamespace(fold=state.fold)})
    sent: list[Any] = []
    copies: Any = SimpleNamespace(send=sent.append)
    duty = Coordinator(SimpleNamespace(), stage)  # type: ignore[arg-type]  # not asked for anything
    duty._copies, duty._following = copies, SimpleNamespace()  # type: ignore[assignment]  # it is at work
    duty.answered(list(effects.answered))
    assert [one.copy for one in sent] == [JobCopy("j", state.fold.jobs["j"].spec, 1, answers=3, after=0)]
