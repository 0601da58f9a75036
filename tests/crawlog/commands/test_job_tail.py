"""What `run` learns of its job's end while the broker is started again."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.commands import job_tail
from crawlog.commands.job_tail import JobTail
from crawlog.streams.errors import EngineError
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka


class ToldConsumer:
    """A consumer; a closed one says nothing more."""

    def __init__(self, _config: object) -> None:
        self.is_closed = False

    def assign(self, _places: object) -> None:
        """Begins."""

    def consume(self, _most: int, _timeout_s: float) -> list[Any]:
        """Nothing new."""
        if self.is_closed:
            raise RuntimeError("Consumer closed")
        return []

    def close(self) -> None:
        """Ends."""
        self.is_closed = True


def test_a_broker_that_does_not_answer_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look after its restart may fail; the next one begins anew."""
    monkeypatch.setattr(job_tail, "Consumer", ToldConsumer)
    monkeypatch.setattr(job_tail, "control_entries", lambda *_: {})
    monkeypatch.setattr(job_tail, "log_bounds", lambda *_: {0: (0, 5)})
    supervisor = SimpleNamespace(settings=Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))
    tail = JobTail(supervisor, "j")  # type: ignore[arg-type]  # as much of a supervisor as is asked
    supervisor.settings = Settings(kafka=Kafka(bootstrap="127.0.0.1:2"))

    def silent(*_: object) -> None:
        raise EngineError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(job_tail, "log_bounds", silent)
        for _ in range(2):
            with pytest.raises(EngineError):
                tail.poll()
    tail.poll()
    tail.close()
    tail.close()
