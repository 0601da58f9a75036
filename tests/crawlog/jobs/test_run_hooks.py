"""What `run --on-finish` names is called once for an end, by the command itself."""

import json
from pathlib import Path

import pytest

from crawlog.jobs import run_hooks
from crawlog.jobs.run_hooks import TRIES, call_hooks
from crawlog.schemas.control import Finished, HookNote
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import read_control, write_finished, write_job
from crawlog.streams.log import CommandProducer, Topics, ensure_topics
from crawlog.streams.settings import Settings


@pytest.mark.broker
def test_a_run_calls_once_for_an_end_and_again_if_it_failed(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the end it calls nobody; a failure is told, and the same command tries again."""
    monkeypatch.setattr(run_hooks, "AGAIN_S", 0.0)
    ensure_topics(cluster)
    file, topics, said = tmp_path / "ends", Topics(cluster.kafka.prefix), list[str]()
    targets = {"keep": f"sh -c 'cat >> {file}'", "fail": f"sh -c 'echo >> {file}.failed; exit 1'"}
    settings = cluster.model_copy(update={"hooks": cluster.hooks.model_copy(update={"targets": targets})})
    producer = CommandProducer(settings, "test")

    def call() -> None:
        call_hooks(settings, producer, "j", ("keep", "fail"), said.append)

    write_job(settings, producer, topics, "j", JobSpec(state="finished"))
    call()
    assert not file.exists()
    write_finished(producer, topics, Finished("j", 9.0, rev=1))
    call()
    call()
    assert json.loads(file.read_text())["job"] == "j"
    assert (tmp_path / "ends.failed").read_text() == "\n" * 2 * TRIES
    assert said[0] == "--on-finish fail: the command ended with code 1"
    assert said[TRIES - 1] == f"{said[0]}; the same command tries again"
    notes = {note.target: note for note in read_control(settings, topics).of(HookNote)}
    assert (notes["keep"].next_at, notes["fail"].next_at > 0) == (0.0, True)
