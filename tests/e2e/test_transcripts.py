"""The README and the tutorial show what their commands print."""

import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.processes import Process, until
from tests.support.transcripts import REPO, is_shown, prepared, printed, steps


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_each_command_of_the_page_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    """All in one folder, one after the other, on the demo site."""
    folder = prepared(tmp_path)
    with Process([sys.executable, REPO / "examples/demo_site.py"]):
        until(_is_up, "the demo site")
        for step in steps((REPO / page).read_text()):
            out = printed(step.command, folder)
            assert is_shown(step.shown, out), f"$ {step.command}\n" + "\n".join(out)


def _is_up() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.10.1:8800/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.1)
        return False


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        (["37 rows in pages.jsonl"], ["36 rows in pages.jsonl"], True),
        (["37 rows in pages.jsonl"], ["37 rows in other.jsonl"], False),
        (["job job-571eaced14"], ["job job-0123456789"], True),
        (["a", "…", "b"], ["a", "x", "y", "b"], True),
        (["a", "…", "b"], ["a", "x", "y"], False),
        (["a … c"], ["a b c"], True),
        (["a", "b"], ["a"], False),
        (["a"], ["3 s: 2.0 pages/s", "a"], True),
    ],
)
def test_only_what_varies_may_differ_from_the_page(shown: list[str], printed: list[str], is_same: bool) -> None:
    """Numbers, names of jobs, progress lines; `…` stands for words or lines."""
    assert is_shown(shown, printed) is is_same


def test_a_page_is_read_as_commands_with_their_output() -> None:
    """Other blocks are no transcripts."""
    page = "x\n```\n$ a\n1\n2\n$ b\n```\n```python\na = 1\n```\n```\nno\n```\n"
    assert [(one.command, one.shown) for one in steps(page)] == [("a", ("1", "2")), ("b", ())]
