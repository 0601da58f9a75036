"""Notes about outputs in crawl.control: one for each news, however often it is said, and whatever names a job gives."""

from typing import Any, cast

import pytest

from crawlog.agents.outputs.notes import OutputNotes
from crawlog.agents.outputs.wanted import MOST_NAME, WantedOutputs
from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.settings.settings import Settings


class _Log:
    """Takes records and acknowledges them at once."""

    outstanding = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, _topic: str, _value: bytes, *, key: bytes, partition: int) -> None:
        """The next record."""
        assert partition == 0
        self.sent.append(key)


def _records(wanted: WantedOutputs, log: _Log, worker: str = "sink-0") -> OutputNotes:
    return OutputNotes(Settings(), wanted, cast("Any", log), worker)


def _job(wanted: WantedOutputs, *names: str, rev: int = 1) -> None:
    wanted.heard(JobCopy("j", JobSpec(rev, outputs=tuple(OutputSpec(name) for name in names))))


async def test_a_refusal_is_news_once() -> None:
    """The worker tries again and again; neither the log nor its own lines grow by that."""
    wanted, log = WantedOutputs(), _Log()
    records = _records(wanted, log)
    _job(wanted, "../x")
    news = [await records.note(*wanted.of("j"), error="a path") for _ in range(3)]
    assert (news, log.sent) == ([True, False, False], [b"output/j/../x"])
    assert await records.note(*wanted.of("j"), error="something else")


async def test_a_refusal_is_news_again_when_the_job_has_changed() -> None:
    """Else nobody could tell it from one that was mended since."""
    wanted = WantedOutputs()
    records = _records(wanted, _Log())
    for rev in (1, 2):
        _job(wanted, "../x", rev=rev)
        assert await records.note(*wanted.of("j"), error="a path")
        assert (note := wanted.note("j", "../x")) is not None
        assert note.rev == rev


@pytest.mark.parametrize(("became", "is_news"), [({"rows": 1}, True), ({"error": "the disk is full"}, False)])
async def test_the_same_file_of_another_worker_is_news_and_the_same_error_is_none(
    became: dict[str, Any], is_news: bool
) -> None:
    """FILE lies on the worker's machine. An error that stays would be noted at each take-over."""
    wanted, log = WantedOutputs(), _Log()
    _job(wanted, "x.csv")
    workers = [_records(wanted, log, worker) for worker in ("sink-0", "sink-1", "sink-1")]
    assert [await one.note(*wanted.of("j"), place="/x.csv", **became) for one in workers] == [True, is_news, False]


async def test_long_names_that_begin_alike_do_not_unsay_each_others_notes() -> None:
    """A stranger's record: a note has the beginning of a name, and each note would make the other output look again."""
    wanted, log = WantedOutputs(), _Log()
    records = _records(wanted, log)
    _job(wanted, "x" * MOST_NAME, "x" * (MOST_NAME + 1), "x" * (MOST_NAME + 2), "y")
    for _ in range(3):
        for one in wanted.of("j"):
            await records.note(one, error=f"{len(one.output.name)} characters")
    assert log.sent == [b"output/j/" + b"x" * MOST_NAME, b"output/j/y"]
