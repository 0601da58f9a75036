"""The bench's meter: which processes a command is made of."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import meter
from tests.support.processes import Process

FORKING = """
import os
if os.fork() == 0:
    print("forked", flush=True)
    os.read(0, 3)
    os.execlp("cat", "cat")
os.wait()
"""


def test_a_worker_that_starts_another_program_is_counted_once_at_whatever_moment(tmp_path: Path) -> None:
    """croniter, which Faust imports, asks `file` about Python: a look between fork and exec saw a second worker."""
    program = tmp_path / "program.py"
    program.write_text(FORKING)
    command = [sys.executable, str(program), "worker", "parse"]
    with Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()
        assert _names(worker.pid) == {"parse": 1}
        worker.stdin.write("go\necho\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "echo\n"
        assert _names(worker.pid) == {"parse": 1, "cat": 1}
        worker.stdin.close()


def _names(pid: int) -> Counter[str]:
    """What the meter sees of a process and its children."""
    found: dict[str, meter.Process] = {}
    meter._sample(found)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return Counter(process.name for number, process in found.items() if number in {str(pid), *children})


def test_the_cpu_until_a_time_is_that_of_the_first_sample_from_then_on() -> None:
    """After the last sample it is the whole command's."""
    measured = meter.Measured(cpu_s=9.0, samples=[(10, 1.0), (20, 3.0)])
    assert [measured.cpu_until(ns) for ns in (5, 10, 11, 20, 21)] == [1.0, 1.0, 3.0, 3.0, 9.0]


def test_a_measured_command_has_samples_that_rise_to_its_cpu(tmp_path: Path) -> None:
    """They come from the same processes as the sum."""
    busy = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass"
    measured = meter.measure([sys.executable, "-c", busy], tmp_path)
    spent = [cpu_s for _, cpu_s in measured.samples]
    assert spent == sorted(spent)
    assert 0 < measured.cpu_until(measured.started_ns + 500_000_000) < measured.cpu_s


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["crawlog: parse-0"], "parse"),
        (["crawlog: parse-0 helper"], "helper"),  # a second process of parse that is no worker started again
        (["/usr/bin/python3", "-m", "crawlog", "worker", "fetch"], "fetch"),
        (["java", "-Xmx256m", "kafka.Kafka", "server.properties"], "broker"),
    ],
)
def test_a_process_is_named_by_its_part(command: list[str], name: str) -> None:
    """A worker's helper is not the worker: one that was started again would spoil a crawl's count."""
    assert meter.name_of(command) == name
