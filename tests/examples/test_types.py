"""The examples are typed as their readers' own code would be."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_mypy_strict_passes_over_the_examples() -> None:
    """By the project's own settings, which are strict: the front door has no untyped name."""
    if not (ROOT / "build" / "typing").is_dir():
        subprocess.run(["make", "-s", "build/typing"], cwd=ROOT, check=True, timeout=60)
    command = [sys.executable, "-m", "mypy", "--strict", "examples"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
