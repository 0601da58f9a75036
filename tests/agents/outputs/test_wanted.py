"""Which jobs are fed from the rows of another one."""

import pytest

from crawlog.agents.outputs.wanted import WantedOutputs
from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import JobFlow, JobStateName, OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.settings import Settings
from crawlog.streams.sink import PrivateOutputs

SOURCE = JobCopy("lists", JobSpec(outputs=(OutputSpec("rows.csv"),)))


def fed(name: str, *feeds: str, state: JobStateName = "running", epoch: int = 0) -> JobCopy:
    """A job with feeds."""
    return JobCopy(name, JobSpec(state=state, flow=JobFlow(feeds=feeds)), epoch)


@pytest.mark.parametrize(
    ("records", "names"),
    [
        ([fed("b", "lists:url", "lists:next", "other:url")], ["feed:b:0"]),
        ([fed("b", "lists:url", state="finished", epoch=2), fed("c", "lists:url")], ["feed:b:2", "feed:c:0"]),
        ([fed("b", "lists:url"), fed("b", "lists:url", state="cancelled")], []),
        ([fed("b", "lists:url"), fed("b", "other:url", epoch=1)], []),  # begun again with another feed
        ([fed("a:b", "lists:url"), fed("../x", "lists:url")], []),  # some other client wrote them
    ],
)
def test_each_job_that_is_fed_is_an_output_of_the_other(records: list[JobCopy], names: list[str]) -> None:
    """Its end waits for no feed. The job that is fed has a feed of its own in each epoch."""
    wanted = WantedOutputs()
    wanted.heard(SOURCE)
    for record in records:
        wanted.changed.clear()
        wanted.heard(record)
        if names:
            assert "lists" in wanted.changed
    file, *feeds = wanted.of("lists")
    assert (file.output.name, file.fed) == ("rows.csv", None)
    assert [one.output.name for one in feeds] == names
    assert not any(one.is_required(Settings()) or one.is_archive(Settings()) for one in feeds)
    sinks = [one.sink(Settings()) for one in feeds]
    assert [one.output.partition(" ")[0] for one in sinks] == names
    assert all(one.is_store and one.job == "lists" for one in sinks)


def test_a_run_of_its_own_feeds_no_job() -> None:
    """Its sink worker has the outputs of the run alone."""
    wanted = WantedOutputs(PrivateOutputs("lists", ("rows.csv",)))
    for record in (SOURCE, fed("b", "lists:url")):
        wanted.heard(record)
    assert [one.output.name for one in wanted.of("lists")] == ["rows.csv"]
