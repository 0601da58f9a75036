"""The ids of all tests: pytest-xdist gives no test to workers that collect different ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import MARK, Process

ROOT = Path(__file__).parent.parent
COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT}


def ids(process: Process) -> list[str]:
    """What it collects, in order."""
    out, err = process.communicate()
    assert process.returncode == 0, out[-3000:] + err
    return [line for line in out.splitlines() if "::" in line]


@pytest.mark.slow
def test_every_process_on_every_machine_collects_the_same_tests(tmp_path: Path) -> None:
    """At another time, with other hashes, folders in another order, a stranger's plug-in, and no test data."""
    stranger = tmp_path / "stranger-1.dist-info"
    stranger.mkdir()
    (stranger / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (stranger / "entry_points.txt").write_text("[crawlog.sinks]\n.stranger = stranger:Sink\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CRAWLOG"))}
    environ = {name: value for name, value in kept.items() if name != MARK}  # each is a suite, and ends its own
    other = {
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "PYTHONHASHSEED": "7",
        "CRAWLOG_TESTDATA": str(tmp_path / "none"),
        "HOME": str(tmp_path),
        "TZ": "Pacific/Auckland",
    }
    here = Process(COLLECT, **PIPES, env=environ | {"PYTHONHASHSEED": "1"})
    elsewhere = Process([*COLLECT, "-p", "tests.support.elsewhere"], **PIPES, env=environ | other)
    expected = ids(here)
    assert len(expected) > 1000
    assert ids(elsewhere) == expected
