"""What `run` learns of its job while the broker is started again."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from crawlog.jobs import job_tail
from crawlog.jobs.job_tail import JobTail
from crawlog.schemas import control
from crawlog.schemas.control import Finished, JobCopy, Rewound
from crawlog.schemas.urls import JobSpec
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka

END = KafkaError(KafkaError._PARTITION_EOF)
RESET = KafkaError(KafkaError._AUTO_OFFSET_RESET)
DELETED = JobCopy("j", JobSpec(rev=2, state="deleted"))
RUNNING = JobCopy("j", JobSpec(rev=3), 1)


class ToldConsumer:
    """A consumer of what the tests say, a record a call; it must never wait, and a closed one says nothing more."""

    said: Iterator[Any]

    def __init__(self, _config: object) -> None:
        self.is_closed = False

    def assign(self, _places: object) -> None:
        """Begins."""

    def consume(self, _most: int, timeout_s: float) -> list[Any]:
        """The next records; none at None."""
        assert not self.is_closed
        assert timeout_s == 0.0
        one = next(self.said, None)
        return [] if one is None else [message(one)]

    def close(self) -> None:
        """Ends."""
        self.is_closed = True


def message(one: Any) -> Any:
    """A record of crawl.control, or an error."""
    if isinstance(one, KafkaError):
        return SimpleNamespace(error=lambda: one)
    return SimpleNamespace(error=lambda: None, key=lambda: control.key(one), value=lambda: control.encode(one))


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of a supervisor as is asked."""
    monkeypatch.setattr(job_tail, "Consumer", ToldConsumer)
    return SimpleNamespace(settings=Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))


def test_what_is_there_counts_when_the_end_is_reached(supervisor: Any) -> None:
    """1 a job was deleted → 2 one of its name runs: whoever hears 1 alone ends the run. Then each record counts."""
    ToldConsumer.said = iter([DELETED, None, RUNNING, JobCopy("other", JobSpec(state="deleted")), None, END, None])
    tail = JobTail(supervisor, "j")
    for _ in range(2):
        tail.poll()
        assert (tail.copy, tail.is_deleted) == (None, False)
    tail.poll()
    assert (tail.copy, tail.end) == (RUNNING, None)
    stopped, end = JobCopy("j", JobSpec(rev=4, state="finished"), 1), Finished("j", 1.0, 1, rev=4)
    ToldConsumer.said = iter([stopped, end, None])
    tail.poll()
    assert (tail.copy, tail.end) == (stopped, end)


def test_a_job_that_another_command_begins_again_is_told_from_one_that_is_rewound(supervisor: Any) -> None:
    """Both have a later epoch, and the same FILE may have the rows of one of them alone."""
    rewound = Rewound(1, start={0: 5}, before={"j": 0}, mark="a")
    ToldConsumer.said = iter([JobCopy("j", JobSpec()), END, rewound, JobCopy("j", JobSpec(rev=2), 1), None])
    tail = JobTail(supervisor, "j")
    tail.poll()
    assert not tail.has_begun_again(0)
    ToldConsumer.said = iter([Rewound(2, "j", JobSpec(rev=3), mark="b"), JobCopy("j", JobSpec(rev=3), 2), None])
    tail.poll()
    assert tail.has_begun_again(0)
    assert not tail.has_begun_again(2)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_broker_that_is_started_again_is_read_from_the_beginning(supervisor: Any, *, is_reset: bool) -> None:
    """While it does not answer, nothing is waited for: the caller of `poll` is the one that starts it."""
    ToldConsumer.said = iter([RUNNING, END, None])
    tail = JobTail(supervisor, "j")
    tail.poll()
    if is_reset:
        ToldConsumer.said = iter([RESET])
        tail.poll()
    else:
        supervisor.settings = Settings(kafka=Kafka(bootstrap="127.0.0.1:2"))
    ToldConsumer.said = iter([None, DELETED, None, RUNNING, END, None])
    for _ in range(3):
        tail.poll()
        assert tail.copy == RUNNING
    tail.close()
    tail.close()
