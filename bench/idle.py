"""Idle CPU of a whole fleet under `crawlog up`, by process: broker, supervisor, workers, service.

python -m bench.idle [--seconds 60] [--short] [--jobs N] [--schedules N]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.meter import TICK

SETTLE_S = 15.0
"""Time after `up` until the fleet is idle: the JVM compiles its hot code first."""

SHORT_S = 5.0
"""Seconds of a short measurement."""

NAMES = (("java", "broker"), ("processes.background", "supervisor"), ("processes.forkserver", "forkserver"))
"""Names of processes by a word of their command."""


def main() -> int:
    """Starts a fleet, measures it, stops it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--short", action="store_true", help=f"measure for {SHORT_S:.0f} s")
    parser.add_argument("--jobs", type=int, default=0, help="jobs in the log that ended long ago")
    parser.add_argument("--schedules", type=int, default=0, help="schedules whose times are next year; what they cost")
    wanted = parser.parse_args()
    seconds = SHORT_S if wanted.short else wanted.seconds
    crawlog = [sys.executable, "-m", "crawlog"]
    with tempfile.TemporaryDirectory(prefix="crawlog-idle-") as folder:
        data = Path(folder) / "data"
        subprocess.run([*crawlog, "up", "--data", str(data)], check=True, cwd=folder)
        try:
            if wanted.jobs:
                write_ended_jobs(data, wanted.jobs)
            time.sleep(SETTLE_S)
            without = measured(data, seconds)
            show(without, seconds)
            if wanted.schedules:
                write_schedules(data, wanted.schedules)
                time.sleep(2 * SETTLE_S)  # the first time of each is computed
                shares = measured(data, seconds)
                show(shares, seconds)
                cost = sum(shares.values()) - sum(without.values())
                print(f"{wanted.schedules:,} schedules cost {cost:.2f} % of a core")
        finally:
            subprocess.run([*crawlog, "down", "--data", str(data)], check=False, cwd=folder)
    return 0


def write_ended_jobs(data: Path, count: int) -> None:
    """Writes jobs that have ended, as a fleet has after some weeks."""
    from crawlog.cli.reach import reachable_log
    from crawlog.schemas import control, urls
    from crawlog.streams.log import Producer, Topics, partition_count
    from crawlog.streams.settings import load

    spec = urls.JobSpec(state="finished")
    with reachable_log(load({"run.data": data})) as settings:
        producer, topics = Producer(settings, "bench"), Topics(settings.kafka.prefix)
        for name in (f"ended{number}" for number in range(count)):
            record = urls.encode(urls.UrlsRecord(job=name, spec=spec))
            for partition in range(partition_count(settings)):
                producer.send(topics.urls, record, partition=partition)
            for told in (control.JobCopy(name, spec), control.Finished(name, at=time.time(), rev=spec.rev)):
                producer.send(topics.control, control.encode(told), key=control.key(told), partition=0)
        if not producer.flush(60):
            sys.exit("the jobs were not acknowledged")


def write_schedules(data: Path, count: int) -> None:
    """Writes schedules in several zones, none of which is due soon."""
    from crawlog.cli.reach import reachable_log
    from crawlog.schemas import control
    from crawlog.schemas.schedules import JobSchedule, RunJob
    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.log import Producer, Topics
    from crawlog.streams.settings import load

    month = time.gmtime(time.time() - 45 * 86_400).tm_mon
    with reachable_log(load({"run.data": data})) as settings:
        producer, topic = Producer(settings, "bench"), Topics(settings.kafka.prefix).control
        for number in range(count):
            zone = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")[number % 4]
            cron = f"{number % 60} {number % 24} 1 {month} *"
            jobs = (RunJob(JobSpec(), seeds=(f"http://example.com/{number}",)),)
            one = JobSchedule(f"bench{number}", int(time.time()), jobs, cron=cron, zone=zone)
            producer.send(topic, control.encode(one), key=control.key(one), partition=0)
        if not producer.flush(60):
            sys.exit("the schedules were not acknowledged")


def measured(data: Path, seconds: float) -> dict[str, float]:
    """Percent of a core by process."""
    before, began = cpu_s(data), time.monotonic()
    time.sleep(seconds)
    after, took_s = cpu_s(data), time.monotonic() - began
    return {name: 100 * (used - before.get(name, 0.0)) / took_s for name, used in after.items()}


def cpu_s(data: Path) -> dict[str, float]:
    """CPU seconds of each process whose command or environment names the data folder."""
    used = dict[str, float]()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            environ = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(data) in command or str(data) in environ:
            used[f"{name_of(command)} ({folder.name})"] = (int(fields[11]) + int(fields[12])) / TICK
    return used


def name_of(command: str) -> str:
    """A short name of a process."""
    return next((name for word, name in NAMES if word in command), command.removeprefix("crawlog: ")[:40])


def show(shares: dict[str, float], seconds: float) -> None:
    """Prints them, the largest first."""
    for name, share in sorted(shares.items(), key=lambda one: -one[1]):
        print(f"{name:44} {share:6.2f} %")
    print(f"{'all':44} {sum(shares.values()):6.2f} % of a core, over {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
