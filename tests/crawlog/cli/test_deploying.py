"""What `crawlog deploy` prints."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from crawlog.cli import deploying
from crawlog.commands import projects
from crawlog.jobs import schedules


def test_deploy_answers_on_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script keeps what it says; standard error is for what is on the way."""
    found = projects.Deployed("shop", "1", "ab" * 32, ("one", "two"), 2_000, "the key")
    monkeypatch.setattr(deploying, "reachable_log", nullcontext)
    monkeypatch.setattr("crawlog.streams.log.ensure_topics", lambda *_: None)
    monkeypatch.setattr(projects, "deploy", lambda *_: found)
    monkeypatch.setattr(schedules, "follow_project", lambda *_: None)
    done = CliRunner().invoke(deploying.deploy, [str(tmp_path)], standalone_mode=False)
    assert done.exception is None
    assert done.stdout.splitlines() == [
        "deployed   shop 1, 2 kB, sha256 abababababab",
        "spiders    one, two",
        "signed by  the key",
    ]
    assert done.stderr == ""
