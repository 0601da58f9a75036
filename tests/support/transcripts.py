"""The transcripts of the documentation: commands of a page are run, and compared with what the page shows.

The word behind the three backticks tells the blocks of a page apart; CONTRIBUTING.md lists the words.

    console          a transcript: commands after `$ `, and what each one printed on both streams; all are run
    python FILE      a file that the reader writes; so does the test, before the next command. Likewise for other words
    sh, text, …      everything else: not run

The transcripts of a page are one session in one folder, in which its files are. In what a page shows, numbers, times,
names of jobs and paths may be others; `…` stands for any words, alone on a line for lines. Where a page names a server
by a variable (`SERVERS`), one is started, and the variable has its address.

    python -m tests.support.transcripts docs/tutorial.md        writes the page's transcripts anew
"""

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from tests.support.deployed import ENVIRON
from tests.support.ferretdb import ferret_server
from tests.support.mariadb import mariadb_server
from tests.support.postgres import postgres_server
from tests.support.processes import Process, until
from tests.support.redis_server import running_redis

REPO = Path(__file__).parents[2]
LIMIT_S = 480.0


@contextmanager
def _postgres(_: Path) -> Iterator[str]:
    with postgres_server() as server:
        yield server.address


@contextmanager
def _mysql(_: Path) -> Iterator[str]:
    with mariadb_server() as server:
        yield server.address


@contextmanager
def _mongodb(folder: Path) -> Iterator[str]:
    with ferret_server(folder) as server:
        yield server.address("shop.pages")


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    with running_redis(folder / "redis") as server:
        yield server.url


# By the variable with which a page names its address, such as `$POSTGRES`; each gets a folder.
SERVERS = {"POSTGRES": _postgres, "MYSQL": _mysql, "MONGODB": _mongodb, "REDIS": _redis}

_PROGRESS = re.compile(r"^\d+ s: ")
_VARIES = (
    (re.compile(r"job-[0-9a-f]{10}"), "job-#"),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "#"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "#"),
    (re.compile(r"[\w.-]+@[\w.-]+"), "user@machine"),
    (re.compile(r"\s+"), " "),
)


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        words: Behind its three backticks: what it is, and the name of its file.
        start: Number of its first line in the page, from 0.
    """

    words: tuple[str, ...]
    start: int
    lines: tuple[str, ...]


class Step(NamedTuple):
    """A command and what it printed, on both streams; or a file and its text.

    Attributes:
        lines: Numbers of the page's lines that show its output: the first one, and the one behind the last.
    """

    command: str
    shown: tuple[str, ...]
    lines: tuple[int, int]
    file: str = ""


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.splitlines()
    fences = [at for at, line in enumerate(lines) if line.startswith("```")]
    for opened, closed in zip(fences[::2], fences[1::2], strict=True):
        yield Block(tuple(lines[opened][3:].split()), opened + 1, tuple(lines[opened + 1 : closed]))


def steps(page: str) -> Iterator[Step]:
    """The commands and files of a page, in order. A command goes on behind a backslash at the end of its line."""
    for block in blocks(page):
        if block.words == ("console",):
            yield from _commands(block)
        elif len(block.words) == 2:
            yield Step("", block.lines, (block.start, block.start + len(block.lines)), block.words[1])


def _commands(block: Block) -> Iterator[Step]:
    at = 0
    while at < len(block.lines):
        first = at
        while block.lines[at].endswith("\\"):
            at += 1
        at += 1
        end = at
        while end < len(block.lines) and not block.lines[end].startswith("$ "):
            end += 1
        command = "\n".join(block.lines[first:at]).removeprefix("$ ")
        yield Step(command, block.lines[at:end], (block.start + at, block.start + end))
        at = end


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
        env=os.environ | ENVIRON | {"PATH": search, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return ran.stdout.replace(str(folder), "…").splitlines()


def taken(step: Step, folder: Path) -> list[str]:
    """Runs a command, or writes a file; what it printed."""
    if not step.file:
        return printed(step.command, folder)
    path = folder / step.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in step.shown))
    return list(step.shown)


@contextmanager
def session(folder: Path, page: str) -> Iterator[Path]:
    """A folder in which a reader of the documentation would stand, that of a clone without its data, and the demo site.

    The site has fixed addresses, so sessions wait for each other. A fleet that a command left is stopped at the end.
    """
    (folder / "examples").symlink_to(REPO / "examples")
    script = REPO / "examples/demo_site.py"
    with script.open() as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        with Process([sys.executable, script], stdout=subprocess.DEVNULL):
            until(_is_up, "the demo site")
            with ExitStack() as servers, patch.dict(os.environ):
                place = Path(servers.enter_context(tempfile.TemporaryDirectory(prefix="servers-")))
                for name, server in SERVERS.items():
                    if f"${name}" in page:
                        os.environ[name] = servers.enter_context(server(place))
                try:
                    yield folder
                finally:
                    printed("crawlog down", folder)


def _is_up() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.10.1:8800/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.1)
        return False


def _write(path: Path, folder: Path) -> None:
    page = path.read_text()
    lines = page.splitlines()
    new: list[str] = []
    done = 0
    for step in steps(page):
        sys.stdout.write(f"$ {step.command or step.file}\n")
        out = [line for line in taken(step, folder) if not _PROGRESS.match(line)]
        sys.stdout.writelines(f"{line}\n" for line in out)
        new += [*lines[done : step.lines[0]], *(step.shown if is_shown(step.shown, out) else out)]
        done = step.lines[1]
    path.write_text("\n".join([*new, *lines[done:]]) + "\n")


if __name__ == "__main__":
    given = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="transcripts-") as name, session(Path(name), given.read_text()) as here:
        _write(given, here)
