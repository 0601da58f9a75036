"""Runs a command and measures all it starts: CPU and peak memory of every process, killed and orphaned ones included.

The meter makes itself a subreaper, so that whatever loses its parent (a broker of a killed crawler) becomes its child
and is waited for. The kernel adds the CPU of every process waited for to RUSAGE_CHILDREN, which is the total, exact to
the last tick; the split by process comes from samples. Linux only.
`measure` runs the meter as a process of its own, so that nothing else (the site) is among its children.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
SAMPLE_S = 0.25
"""Seconds between two looks at the processes; the peak is the kernel's own high-water mark, so few looks are enough."""

WATCH_S = 0.02
"""Seconds between two looks at the results' file."""

ORPHANS_S = 15.0
"""How long processes may outlive the command, seconds, before they are told to end and counted as left behind."""

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Process:
    """One process, by its samples."""

    name: str
    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0


@dataclass
class Measured:
    """Cost of a command.

    Attributes:
        exit_code: The command's; negative for a signal.
        started_ns: UTC epoch nanoseconds.
        took_s: From its start to the end of the last of its processes.
        cpu_s: User and system time of all processes.
        last_row_ns: When the watched file last grew before it was replaced or closed; 0 when it never appeared.
        left_behind: Processes that did not end by themselves.
        processes: Split by process id; CPU after the last sample is missing.
        samples: (UTC epoch nanoseconds, CPU seconds of all processes until then), in order of time.
    """

    exit_code: int = 0
    started_ns: int = 0
    took_s: float = 0.0
    cpu_s: float = 0.0
    last_row_ns: int = 0
    timed_out: bool = False
    left_behind: list[str] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)
    samples: list[tuple[int, float]] = field(default_factory=list)

    def cpu_until(self, ns: int) -> float:
        """CPU seconds of all processes by the first sample at or after a time: SAMPLE_S late at most."""
        return next((cpu_s for at_ns, cpu_s in self.samples if at_ns >= ns), self.cpu_s)

    def by_name(self) -> dict[str, Process]:
        """CPU summed and peak memory as the highest, over the processes of one name."""
        merged: dict[str, Process] = {}
        for process in self.processes.values():
            one = merged.setdefault(process.name, Process(process.name))
            one.cpu_s += process.cpu_s
            one.peak_rss_mb = max(one.peak_rss_mb, process.peak_rss_mb)
        return merged


def name_of(command: Sequence[str]) -> str:
    """Name of a process in a table: broker, redis, fetch, parse, its helper, sink, or the program's own name."""
    line = " ".join(command)
    if "kafka.Kafka" in line or "kafka.server" in line:
        return "broker"
    if re.search(r"^crawlog: \S+ helper", line):
        return "helper"
    if worker := re.search(r"\bworker (\w+)|^crawlog: (\w+)|crawlog\.(forkserver)|app:(\w+) .*worker", line):
        return worker[worker.lastindex or 1]
    program = (
        next((word for word in command[1:] if not word.startswith("-")), "") if "python" in command[0] else command[0]
    )
    return Path(program.split(" ")[0]).name or Path(command[0]).name


def _command(pid: int) -> bytes:
    """A process's command line, each word ended by a NUL; empty of a zombie. Raises: OSError: it is gone."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_fork(pid: int, command: bytes) -> bool:
    """Whether a process is still a copy of its parent: its parent's copy is no second worker."""
    stat = _stat(pid)
    try:
        return bool(command) and stat is not None and _command(stat[0]) == command
    except OSError:
        return False


def _stat(pid: int) -> tuple[int, float] | None:
    """(parent, CPU seconds) of a process, None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICK


def descendants(ancestor: int | None = None) -> dict[int, float]:
    """Process id → CPU seconds of all that this process, or another, and its children started and that still exist."""
    stats = {int(entry.name): stat for entry in Path("/proc").glob("[0-9]*") if (stat := _stat(int(entry.name)))}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, float] = {}
    todo = list(children.get(ancestor or os.getpid(), []))
    while todo:
        pid = todo.pop()
        found[pid] = stats[pid][1]
        todo.extend(children.get(pid, []))
    return found


def _sample(processes: dict[str, Process]) -> dict[int, float]:
    alive = descendants()
    for pid, cpu_s in alive.items():
        try:
            line = _command(pid)
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if _is_fork(pid, line):
            continue
        command = line.decode(errors="replace").rstrip("\0").split("\0")
        process = processes.setdefault(str(pid), Process("?"))
        process.cpu_s = max(process.cpu_s, cpu_s)
        if command != [""]:  # a zombie has no command line
            process.name = name_of(command)
        if peak := re.search(r"VmHWM:\s+(\d+) kB", status):
            process.peak_rss_mb = max(process.peak_rss_mb, int(peak[1]) / 1024)
    return alive


class _Watch:
    """Follows a results file, also while it is still called FILE.partial."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._size = -1
        self.last_ns = 0

    def look(self) -> None:
        if self._path is None:
            return
        for path in (self._path.with_name(self._path.name + ".partial"), self._path):
            try:
                stat = path.stat()
            except OSError:
                continue
            if stat.st_size > self._size:  # a final rewrite of the same rows is no new row
                self._size, self.last_ns = stat.st_size, stat.st_mtime_ns
            return


def run(command: Sequence[str], watch: Path | None, timeout_s: float) -> Measured:
    """Runs a command to the end of its last process. To be called once per process: RUSAGE_CHILDREN only grows."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _end_all)
    measured = Measured(started_ns=time.time_ns())
    rows = _Watch(watch)
    started = time.monotonic()
    child = subprocess.Popen(command)
    sampled = ended = 0.0
    while True:
        rows.look()
        now = time.monotonic()
        if now - sampled >= SAMPLE_S:
            sampled = now
            alive = _sample(measured.processes)
            spent_s = sum(process.cpu_s for process in measured.processes.values())
            measured.samples.append((time.time_ns(), spent_s))
            if not ended and now - started > timeout_s:
                measured.timed_out = True
                _end(alive, signal.SIGKILL)
            if ended and now - ended > ORPHANS_S:
                measured.left_behind = [
                    measured.processes[str(pid)].name for pid in alive if str(pid) in measured.processes
                ]
                _end(alive, signal.SIGTERM if now - ended < 2 * ORPHANS_S else signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == child.pid:
            measured.exit_code, ended = os.waitstatus_to_exitcode(status), time.monotonic()
            child.returncode = measured.exit_code
        elif pid == 0:
            time.sleep(WATCH_S)
    rows.look()
    measured.took_s = time.monotonic() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured.cpu_s = usage.ru_utime + usage.ru_stime
    measured.last_row_ns = rows.last_ns
    return measured


def _end(pids: Mapping[int, float], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _end_all(*_: object) -> None:
    """The benchmark was stopped: nothing that was measured may outlive it."""
    while alive := descendants():
        _end(alive, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(WATCH_S)
    os._exit(128 + signal.SIGTERM)


def measure(
    command: Sequence[str],
    folder: Path,
    *,
    watch: Path | None = None,
    timeout_s: float = 3600,
    env: Mapping[str, str] | None = None,
) -> Measured:
    """Runs a command under a meter of its own, with its output in `folder/output.log`.

    Raises: RuntimeError: the samples saw more CPU than was waited for, so a process escaped the count.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "measured.json"
    meter = [sys.executable, "-P", str(Path(__file__)), "--report", str(report), "--timeout", str(timeout_s)]
    if watch is not None:
        meter += ["--watch", str(watch)]
    report.unlink(missing_ok=True)
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen([*meter, "--", *command], cwd=folder, env=env, stdout=output, stderr=output)
        try:
            process.wait()
        except BaseException:  # Ctrl-C: the meter ends what it measures, which a killed one could not
            process.terminate()
            process.wait()
            raise
    raw = json.loads(report.read_text())
    measured = Measured(**{**raw, "processes": {pid: Process(**process) for pid, process in raw["processes"].items()}})
    seen_s = sum(process.cpu_s for process in measured.processes.values())
    if seen_s > measured.cpu_s + 0.5:
        raise RuntimeError(
            f"{seen_s:.1f} CPU seconds sampled, {measured.cpu_s:.1f} waited for: "
            "some process ignores the end of its children"
        )
    return measured


def main() -> None:
    """Measures one command; prints or writes JSON."""
    parser = argparse.ArgumentParser(description="Measures a command and all it starts.")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--watch", type=Path)
    parser.add_argument("--timeout", type=float, default=3600)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    measured = run(args.command[1:] if args.command[:1] == ["--"] else args.command, args.watch, args.timeout)
    text = json.dumps(asdict(measured), indent=1)
    if args.report is None:
        print(text)
    else:
        args.report.write_text(text)


if __name__ == "__main__":
    main()
