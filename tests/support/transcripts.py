"""The transcripts of the documentation: commands of a page are run, and compared with what the page shows.

A transcript is a block of a page that begins with `$ `. The blocks of a page are one session in one folder. In what a
page shows, numbers, times, names of jobs and paths may be others; `…` stands for any words, alone on a line for lines.

    python -m tests.support.transcripts docs/tutorial.md        writes the page's transcripts anew
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).parents[2]
LIMIT_S = 240.0
_PROGRESS = re.compile(r"^\d+ s: ")
_VARIES = (
    (re.compile(r"job-[0-9a-f]{10}"), "job-#"),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "#"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "#"),
    (re.compile(r"[\w.-]+@[\w.-]+"), "user@machine"),
    (re.compile(r"\s+"), " "),
)


class Step(NamedTuple):
    """A command and what it printed, on both streams.

    Attributes:
        lines: Numbers of the page's lines that show its output: the first one, and the one behind the last.
    """

    command: str
    shown: tuple[str, ...]
    lines: tuple[int, int]


def steps(page: str) -> Iterator[Step]:
    """The commands of a page, in order."""
    lines = page.splitlines()
    is_block = is_transcript = False
    for at, line in enumerate(lines):
        if line.startswith("```"):
            is_block = not is_block
            is_transcript = is_block and at + 1 < len(lines) and lines[at + 1].startswith("$ ")
        elif is_transcript and line.startswith("$ "):
            end = at + 1
            while not lines[end].startswith(("$ ", "```")):
                end += 1
            yield Step(line[2:], tuple(lines[at + 1 : end]), (at + 1, end))


def normal(line: str) -> str:
    """A line without what varies from run to run."""
    for what, sign in _VARIES:
        line = what.sub(sign, line)
    return line.strip()


def is_shown(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether a command printed what the page shows."""
    pattern = "".join(".*" if line.strip() == "…" else _line(line) for line in shown)
    text = "".join(f"{normal(line)}\n" for line in printed if not _PROGRESS.match(line))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def _line(line: str) -> str:
    return r"[^\n]*".join(map(re.escape, normal(line).split("…"))) + "\n" if not _PROGRESS.match(line) else ""


def printed(command: str, folder: Path) -> list[str]:
    """Runs a command in a folder, with `crawlog` and `python` of this environment."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": search, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return ran.stdout.replace(str(folder), "…").splitlines()


def prepared(folder: Path) -> Path:
    """A folder in which a reader of the documentation would stand: that of a clone, without its data."""
    (folder / "examples").symlink_to(REPO / "examples")
    return folder


def _write(path: Path, folder: Path) -> None:
    page = path.read_text()
    lines = page.splitlines()
    new: list[str] = []
    done = 0
    for step in steps(page):
        sys.stdout.write(f"$ {step.command}\n")
        out = [line for line in printed(step.command, folder) if not _PROGRESS.match(line)]
        sys.stdout.writelines(f"{line}\n" for line in out)
        new += [*lines[done : step.lines[0]], *(step.shown if is_shown(step.shown, out) else out)]
        done = step.lines[1]
    path.write_text("\n".join([*new, *lines[done:]]) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="transcripts-") as name:
        site = subprocess.Popen([sys.executable, str(REPO / "examples/demo_site.py")], stdout=subprocess.DEVNULL)
        try:
            _write(Path(sys.argv[1]), prepared(Path(name)))
        finally:
            site.terminate()
