"""`bench/RESULTS.md`: one section a benchmark, with machine and versions; its next run replaces it."""

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
RESULTS = REPO / "bench" / "RESULTS.md"
WRITTEN = ("bench/RESULTS.md", "bench/faults/outcomes.jsonl")
"""Files of the repository that benchmarks write: they change nothing that is measured."""

WITH_CHANGES = " with changes"
"""Ends the name of a commit from which files differed: it is not known which code was measured."""

HEAD = "# Results\n\nWritten by `python -m bench`; each section says on what and how. A loss is printed like a win.\n"


def options_of(parser: argparse.ArgumentParser, *kinds: str) -> argparse.Namespace:
    """The options of a benchmark. `write` says whether this run replaces a section of RESULTS.md.

    A run writes if all its options have their defaults, or with `--write`: others measure a part, or something else.

    Args:
        kinds: Options that choose between measurements, each with a section of its own.
    """
    parser.add_argument("--write", action="store_true", help="replace the section of RESULTS.md, whatever the options")
    options = parser.parse_args()
    given = {name for name, value in vars(options).items() if value != parser.get_default(name)}
    options.write = options.write or given <= set(kinds)
    return options


def run_as(name: str) -> str:
    """The command that measures, as a section quotes it."""
    return f"`{' '.join([f'python -m bench.{name}', *sys.argv[1:]])}`"


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

    written = [f":!{name}" for name in WRITTEN]
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    return (git("rev-parse", "--short", "HEAD") or "no commit") + (WITH_CHANGES if dirty else "")


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
