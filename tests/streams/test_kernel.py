"""Attributes of processes in the kernel."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from crawlog.streams.kernel import cores_within, system_mark, work_in_batch

TELL = "import os; print(os.sched_getscheduler(0))"
OF_A_CHILD = (
    "import os, subprocess, sys; from crawlog.streams.kernel import work_in_batch;"
    "os.sched_setscheduler(0, {}, os.sched_param(0)); work_in_batch();"
    f"print(subprocess.check_output([sys.executable, '-c', {TELL!r}], text=True))"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [(os.SCHED_OTHER, os.SCHED_BATCH), (os.SCHED_BATCH, os.SCHED_BATCH), (os.SCHED_IDLE, os.SCHED_IDLE)],
)
def test_what_does_batch_work_starts_others_that_do_unless_a_user_has_set_a_policy(before: int, after: int) -> None:
    """So do the spiders and browsers of a worker; and `chrt --idle 0 crawlog run …` is still idle."""
    told = subprocess.check_output([sys.executable, "-c", OF_A_CHILD.format(before)], text=True)
    assert int(told) == after


def test_a_container_that_forbids_another_policy_stops_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works as before then."""

    def forbidden(*order: object) -> None:
        asked.append(order)
        raise PermissionError

    asked: list[object] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    work_in_batch()
    assert len(asked) == 1


@pytest.mark.parametrize(("method", "found"), [("read_bytes", b"boot"), ("stat", SimpleNamespace(st_ino=7))])
def test_cloned_machines_and_containers_of_one_host_name_have_marks_of_their_own(
    method: str, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another boot, or another root folder; a worker that is started again has the same mark."""
    here = system_mark()
    assert here == system_mark()
    monkeypatch.setattr(Path, method, lambda _: found)
    assert system_mark() != here


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
        ({"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, 3),
        ({"cpu.max": "soon"}, 8),
    ],
)
def test_cores_are_those_that_the_control_groups_allow(tmp_path: Path, limits: dict[str, str], cores: int) -> None:
    """Of version 2 and of version 1; a part of a core counts whole, and what cannot be read limits nothing."""
    for name, text in limits.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert cores_within(8, [tmp_path / "none", tmp_path]) == cores
