"""The pages of the documentation show what their commands print."""

from pathlib import Path

import pytest

from tests.support.transcripts import REPO, blocks, is_shown, session, steps, taken

PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
WITH_TRANSCRIPTS = [
    str(page.relative_to(REPO)) for page in PAGES if any(step.command for step in steps(page.read_text()))
]


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_TRANSCRIPTS)
def test_each_command_of_the_page_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    """All in one folder, one after the other, on the demo site."""
    text = (REPO / page).read_text()
    with session(tmp_path, text) as folder:
        for step in steps(text):
            out = taken(step, folder)
            assert is_shown(step.shown, out), f"$ {step.command}\n" + "\n".join(out)


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


def test_a_page_is_read_as_commands_with_their_output_and_files() -> None:
    """A command may have several lines; what is neither is not run."""
    page = "x\n```console\n$ a\n1\n2\n$ b \\\n  c\n```\n```python d.py\na = 1\n```\n```sh\nno\n```\n"
    assert [(one.command, one.shown, one.file) for one in steps(page)] == [
        ("a", ("1", "2"), ""),
        ("b \\\n  c", (), ""),
        ("", ("a = 1",), "d.py"),
    ]
    assert [block.words for block in blocks(page)] == [("console",), ("python", "d.py"), ("sh",)]
