"""What is ours in the data folder is for its owner alone, and nothing of another user is used."""

import fcntl
import os
from pathlib import Path

import pytest

from crawlog.processes.folder import OURS, prepare
from crawlog.processes.hold import Hold, holder
from crawlog.streams import files
from crawlog.streams.engine import engine, lock
from crawlog.streams.errors import EngineError, Misconfigured
from tests.support.permissions import NOBODY, mode, needs_root, without_umask

open_umask = pytest.fixture(autouse=True)(without_umask)


def test_our_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Also those that an older crawlog left open."""
    for name in OURS:
        (tmp_path / name).mkdir()
    prepare(tmp_path)
    assert {name: mode(tmp_path / name) for name in OURS} == dict.fromkeys(OURS, 0o700)
    new = tmp_path / "new" / "kafka"
    engine.reserve(new.parent)
    assert mode(new) == 0o700


def test_small_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Written whole, or line by line."""
    files.write(tmp_path / "whole", "text")
    files.append(tmp_path / "lines").close()
    assert [mode(path) for path in sorted(tmp_path.iterdir())] == [0o600, 0o600]


@needs_root
def test_the_data_folder_itself_may_belong_to_another_user(tmp_path: Path) -> None:
    """As the root of a mounted volume does."""
    os.chown(tmp_path, NOBODY, NOBODY)
    prepare(tmp_path)
    assert engine.reserve(tmp_path)


@needs_root
@pytest.mark.parametrize("name", ["kafka", "kafka/engine.json", "state/0/CURRENT", "run/lock", "logs/up.log"])
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    """Wherever it lies in our folders; the message says whose it is and what to do."""
    path = tmp_path / name
    if "/" in name:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    else:
        path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(Misconfigured, match=rf"(?s){name} belongs to the user {NOBODY}.*chown.*--data DIR"):
        prepare(tmp_path)


@needs_root
@pytest.mark.parametrize("name", ["engine.json", "broker.json", "lock"])
def test_the_engine_uses_no_file_of_another_user(tmp_path: Path, name: str) -> None:
    """Without a command that looks at the whole folder first."""
    (tmp_path / "kafka").mkdir(mode=0o700)
    (tmp_path / "kafka" / name).write_text('{"cluster_id": "theirs", "port": 1, "controller_port": 2}')
    os.chown(tmp_path / "kafka" / name, NOBODY, NOBODY)
    with pytest.raises(Misconfigured, match=f"{name} belongs to the user {NOBODY}"):
        engine.reserve(tmp_path)


@needs_root
@pytest.mark.parametrize("name", ["lock", "holder.json"])
def test_nobody_else_says_who_holds_a_folder(tmp_path: Path, name: str) -> None:
    """Such a file would send `down` to end a process of another user's choice."""
    held = Hold(tmp_path, "up")
    os.chown(tmp_path / "run" / name, NOBODY, NOBODY)
    with pytest.raises(Misconfigured, match=f"{name} belongs to the user {NOBODY}"):
        holder(tmp_path)
    held.release()


@pytest.mark.parametrize("name", ["kafka/lock", "kafka/engine.json"])
def test_no_link_is_followed_to_another_file(tmp_path: Path, name: str) -> None:
    """What it leads to stays as it is."""
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "kafka").mkdir()
    (tmp_path / name).symlink_to(target)
    with pytest.raises(Misconfigured, match=r"(?s)is a link.*--data DIR"):
        engine.reserve(tmp_path)
    assert target.read_text() == "precious"


def test_one_of_our_folders_may_be_a_link_that_we_made(tmp_path: Path) -> None:
    """A state may lie on another disk."""
    (tmp_path / "fast").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "state").symlink_to(tmp_path / "fast")
    prepare(tmp_path / "data")
    assert mode(tmp_path / "fast") == 0o700


def test_the_engines_lock_is_waited_for_so_long_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the message names who has it, the file, and what to do."""
    engine.reserve(tmp_path)
    monkeypatch.setattr(lock, "LOCK_TIMEOUT_S", 0.1)
    with lock.held(tmp_path):
        text = rf"(?s)pid {os.getpid()}.*{tmp_path / 'kafka' / 'lock'}.*kill {os.getpid()}"
        with pytest.raises(EngineError, match=text):
            engine.reserve(tmp_path)


def test_a_lock_that_is_let_go_is_had(tmp_path: Path) -> None:
    """Whatever its last holder left written there."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "lock").write_text("no number")
    with (tmp_path / "kafka" / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    assert engine.reserve(tmp_path)
