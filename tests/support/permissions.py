"""Owners and permissions of files, for tests of what is ours alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def without_umask() -> Iterator[None]:
    """A user whose new files anybody may write; a fixture where it is made one."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """Its permissions."""
    return stat.S_IMODE(path.stat().st_mode)
