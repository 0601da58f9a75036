"""The calls of a coordinator: over failures, a lost lease, and its successor."""

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from crawlog.agents.client import LeaseLost
from crawlog.agents.coordinator import job_hooks as module
from crawlog.agents.coordinator.job_hooks import JobHooks
from crawlog.schemas.control import Control, Finished, HookNote, JobCopy
from crawlog.schemas.job_orders import JobFlow
from crawlog.schemas.urls import JobSpec
from crawlog.streams import hooks as decided
from crawlog.streams.hooks import HookCall
from crawlog.streams.jobs import FollowedJobs

if TYPE_CHECKING:
    from crawlog.agents.hooks import HookCaller

JOB = JobCopy("j", JobSpec(rev=3, state="finished", flow=JobFlow(on_finish=("mail",))))
END = Finished("j", 9.0, rev=3)


class Answers:
    """Calls, and what they answer in turn; None for a lost lease."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.calls: list[HookCall] = []

    async def call(self, call: HookCall) -> str:
        """The next answer."""
        self.calls.append(call)
        answer = self.answers.pop(0)
        if answer is None:
            raise LeaseLost
        return answer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are made again at once."""
    monkeypatch.setattr(decided, "AGAIN_S", 0.01)
    monkeypatch.setattr(module, "LEASE_S", 0.01)


async def until_over(notes: list[HookNote]) -> None:
    """Waits for the last note."""
    async with asyncio.timeout(60):
        while not notes or notes[-1].next_at:  # noqa: ASYNC110  # several tasks write them
            await asyncio.sleep(0.01)


def hooks(jobs: FollowedJobs, answers: Answers) -> JobHooks:
    """Those of a coordinator."""
    return JobHooks(jobs, cast("HookCaller", answers))


async def test_a_call_is_made_until_it_is_taken() -> None:
    """Each failure is on record; a lost lease is none. What is heard meanwhile begins no second one."""
    jobs, answers, notes = FollowedJobs(), Answers("it answered 500", None, "it answered 503", ""), list[HookNote]()
    own = hooks(jobs, answers)

    def send(record: Control) -> None:
        assert isinstance(record, HookNote)
        notes.append(record)
        own.look("j")

    own.begin(send)
    for record in (JOB, END):
        jobs.take(record)
        own.look("j")
        own.look("j")
    await until_over(notes)
    assert [(one.tries, one.error) for one in notes] == [(1, "it answered 500"), (2, "it answered 503"), (3, "")]
    own.look("j")
    await asyncio.sleep(0)
    assert not answers.answers
    own.end()


async def test_a_successor_goes_on_with_the_tries_of_the_former_coordinator() -> None:
    """It has them from crawl.control. A job that goes on has no end to be called."""
    jobs, notes = FollowedJobs(), list[HookNote]()
    for record in (JOB, END, HookNote("j", "mail", 10.0, rev=3, tries=4, next_at=1.0, error="away")):
        jobs.take(record)
    answers = Answers("")
    own = hooks(jobs, answers)
    own.begin(lambda record: notes.append(cast("HookNote", record)))
    await until_over(notes)
    assert notes[0].tries == 5
    jobs.take(JobCopy("j", msgspec.structs.replace(JOB.spec, rev=4, state="running")))
    own.look("j")
    await asyncio.sleep(0)
    assert len(answers.calls) == 1
    own.end()
