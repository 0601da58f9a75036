"""Where the outputs of a job on a fleet lie, and whose the folders are."""

import os
from pathlib import Path

import pytest

from crawlog.schemas.job_orders import OutputSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.machine import Run, Sink
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink.fleet_outputs import fleet_sink_of
from tests.support.permissions import NOBODY, mode, needs_root, without_umask

open_umask = pytest.fixture(autouse=True)(without_umask)


def place(settings: Settings, job: str = "j") -> Path:
    """Where the job's file lies."""
    return Path(fleet_sink_of(settings, job, OutputSpec("rows.jsonl"), 0, (), pipelines=False).output)


def test_the_default_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    """As all of the data folder that crawlog makes."""
    path = place(Settings(run=Run(data=tmp_path)))
    assert path == tmp_path / "outputs" / "j" / "rows.jsonl"
    assert mode(tmp_path / "outputs") == 0o700


@pytest.mark.parametrize("shared", [0o755, 0o2775, 0o1777])
def test_a_folder_that_the_user_named_keeps_its_permissions(tmp_path: Path, shared: int) -> None:
    """It may be `/srv` or `/tmp`. Others cannot put a link into the folder of a job, but they read the rows."""
    tmp_path.chmod(shared)
    path = place(Settings(sink=Sink(folder=tmp_path)))
    assert (path, mode(tmp_path)) == (tmp_path / "j" / "rows.jsonl", shared)
    assert mode(path.parent) & 0o777 == 0o755
    path.parent.chmod(0o777)
    place(Settings(sink=Sink(folder=tmp_path)))
    assert mode(path.parent) == 0o755
    made = tmp_path / "new" / "folder"
    assert place(Settings(sink=Sink(folder=made))).parent.is_dir()
    assert mode(made) & 0o777 == 0o755


@needs_root
def test_a_folder_that_the_user_named_may_be_anothers_but_not_that_of_a_job(tmp_path: Path) -> None:
    """A mounted one often is; a planted folder could be led elsewhere at any time."""
    os.chown(tmp_path, NOBODY, NOBODY)
    settings = Settings(sink=Sink(folder=tmp_path))
    assert place(settings).parent.stat().st_uid == 0
    (tmp_path / "planted").mkdir()
    os.chown(tmp_path / "planted", NOBODY, NOBODY)
    with pytest.raises(Misconfigured, match=r"(?s)planted belongs to the user 65534.*`sink\.folder`"):
        place(settings, "planted")
