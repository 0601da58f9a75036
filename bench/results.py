"""`bench/RESULTS.md`: one section a benchmark, with machine and versions; its next run replaces it."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
RESULTS = REPO / "bench" / "RESULTS.md"
HEAD = "# Results\n\nWritten by `python -m bench`; each section says on what and how. A loss is printed like a win.\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that also reads well as text; the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [[cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))]
             for row in (head, *rows)]  # fmt: skip
    rule = ["-" * w if n == 0 else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def machine() -> str:
    """The processor, cores, memory and kernel, in one line."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    cores = len(os.sched_getaffinity(0))
    gib = int(memory[1]) / 2**20 if memory else 0
    model = cpu[1] if cpu else platform.machine()
    return f"{model}, {cores} cores, {gib:.0f} GiB, Linux {platform.release().split('-')[0]}"


def commit() -> str:
    """The commit that was measured, and whether files differed from it."""

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench")
    return (git("rev-parse", "--short", "HEAD") or "no commit") + (" with changes" if dirty else "")


def versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of installed distributions; absent ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def section(name: str, title: str, body: str, facts: Mapping[str, str]) -> None:
    """Replaces a section of RESULTS.md, or appends it.

    Args:
        name: Stands in the section's markers.
        facts: Conditions, one line each: versions, commands.
    """
    day = datetime.now(UTC).date().isoformat()
    lines = [
        f"- {key}: {value}" for key, value in {"machine": machine(), "commit": commit(), "day": day, **facts}.items()
    ]
    text = f"<!-- {name} -->\n## {title}\n\n{body}\n\n" + "\n".join(lines) + f"\n<!-- /{name} -->\n"
    old = RESULTS.read_text() if RESULTS.exists() else HEAD
    begin, end = old.find(f"<!-- {name} -->"), old.find(f"<!-- /{name} -->\n")
    if begin >= 0 and end > begin:
        new = old[:begin] + text + old[end + len(f"<!-- /{name} -->\n") :]
    else:
        new = old + "\n" + text
    RESULTS.write_text(new)
