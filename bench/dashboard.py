"""The dashboard over a large fleet: first paint of each page, CPU of the service, and memory over hours.

    python -m bench.dashboard                      first paint and CPU, some 3 minutes
    python -m bench.dashboard --hours 1            one page open for an hour at 1,000 pages a second

The log is real, and so are the service and Chromium. The workers are not: their reports come from here, as a fleet of
`PARTITIONS` partitions would send them each second. In the log: 1,000 jobs, 20 of which run, 1,000 schedules, and
100,000 hosts.
"""

import argparse
import base64
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from crawlog.schemas import control, hosts, progress, urls
from crawlog.schemas.hosts import HostBucket, HostFigures, bucket_of
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.schedules import JobSchedule, RunJob
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.settings import find_browser, load
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url import hashed
from tests.support.brokers import OPEN, Foreign
from tests.support.processes import crawlog
from tests.support.synthetic_site import free_port

JOBS, RUNNING, SCHEDULES, HOSTS = 1_000, 20, 1_000, 100_000

PARTITIONS = 4

RATE = 1_000
"""Pages a second of the whole fleet."""

LOADS = 7
"""Times that each page is loaded; the median counts."""

FURTHER = ("/ui/jobs/job-0001",)
"""Pages that the navigation does not name."""

PASSWORD = "bench"

IDLE_S = 60.0

SAMPLE_S = 300.0
"""Between two looks at the memory of an hour."""


def main() -> int:
    """Measures, and prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.0, help="how long a page stays open while the fleet crawls")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crawlog-dashboard-") as name, _log(Path(name)) as settings:
        _fill(settings)
        with _service(settings, Path(name)) as (address, pid), sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=_chromium(), chromium_sandbox=os.geteuid() != 0)
            if wanted.hours:
                _print_hours(browser, address, pid, settings, wanted.hours)
            else:
                _print_paints(browser, address, pid)
                _print_idle(browser, address, pid)
            browser.close()
    return 0


def _chromium() -> str:
    return "/usr/bin/chromium" if os.geteuid() == 0 else find_browser(Settings())


@contextmanager
def _log(folder: Path) -> Iterator[Settings]:
    """A broker with our topics."""
    port, controller = free_port(), free_port()
    broker = Foreign(folder / "kafka", OPEN.format(port=port, controller=controller), port, controller)
    try:
        bootstrap = {"kafka.bootstrap": broker.bootstrap, "kafka.partitions": PARTITIONS}
        settings = load({**bootstrap, "run.data": folder / "data"}, environ={})
        ensure_topics(settings)
        yield settings
    finally:
        broker.stop()


@contextmanager
def _service(settings: Settings, folder: Path) -> Iterator[tuple[str, int]]:
    """The service's address and process."""
    named = [
        "--bootstrap",
        settings.kafka.bootstrap,
        "--data",
        str(folder / "data"),
        "-s",
        "service.port=0",
        "-s",
        f"kafka.partitions={PARTITIONS}",
    ]
    users = {"CRAWLOG_SERVICE__USERS": json.dumps({"bench": PASSWORD})}
    process = crawlog("worker", "service", *named, env=os.environ | users)
    note = folder / "data" / "run" / "service.json"
    try:
        _wait(note.exists)
        found = json.loads(note.read_text())
        yield f"http://127.0.0.1:{found['port']}", int(found["pid"])
    finally:
        process.terminate()
        process.wait(20)


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            sys.exit("the service did not start")
        time.sleep(0.1)


# ---------------------------------------------------------------- what is in the log


def _fill(settings: Settings) -> None:
    """Jobs, schedules and hosts, and one report of each worker."""
    producer, topics = Producer(settings, "bench"), Topics(settings.kafka.prefix)
    for number in range(JOBS):
        name, now = f"job-{number:04}", int(time.time()) - number * 60
        spec = urls.JobSpec(state="running" if number < RUNNING else "finished", at=now, changed_at=now)
        records: list[control.Control] = [control.JobCopy(name, spec)]
        if number >= RUNNING:
            records.append(control.Finished(name, at=now + 600, rev=spec.rev, counts=JobCounts(fetched=number * 10)))
        for record in records:
            producer.send(topics.control, control.encode(record), key=control.key(record), partition=0)
    for number in range(SCHEDULES):
        jobs = (RunJob(urls.JobSpec(), seeds=(f"http://example.com/{number}",)),)
        cron = f"{number % 60} {number % 24} * * *"
        one = JobSchedule(f"every-{number:04}", int(time.time()), jobs, cron=cron, zone="Europe/Berlin")
        producer.send(topics.control, control.encode(one), key=control.key(one), partition=0)
    for key, bucket in _buckets().items():
        producer.send(topics.hosts, hosts.encode(bucket), key=key, partition=0)
    for report in _reports(0):
        producer.send(topics.progress, progress.encode(report), key=progress.key(report), partition=0)
    if not producer.flush(60):
        sys.exit("the log did not acknowledge what the bench wrote")


def _buckets() -> dict[bytes, HostBucket]:
    """The records of crawl.hosts by key."""
    found: dict[bytes, HostBucket] = {}
    for number in range(HOSTS):
        name = f"http://host-{number}.example.com:80"
        results = {"200": number % 40, "403": number % 7, "timeout": number % 3}
        one = HostFigures(name, number % 500, 0, sum(results.values()), 2.5, results, delay_s=1.0, next_at=time.time())
        key = hosts.key(number % PARTITIONS, bucket_of(hashed(name)))
        found.setdefault(key, HostBucket([])).hosts.append(one)
    return found


def _reports(second: int) -> Iterator[Progress]:
    """What the fleet reports in a second."""
    share = RATE // PARTITIONS
    pages = share * second
    for number in range(PARTITIONS):
        own = {"at": time.time(), "pages": pages, "bytes": pages * 20_000, "started": 1.0, "host": f"machine-{number}"}
        own |= {"cpu_s": 0.6 * second, "rss": 300 << 20, "version": "bench", "supervisor": "up"}
        jobs = {
            f"job-{job:04}": JobCounts(
                folded=pages * 3, queued=5_000, fetched=pages // RUNNING, statuses={"200": pages // RUNNING, "404": job}
            )
            for job in range(RUNNING)
        }
        slowest = [(f"shop-{number}-{host}.example", 1_000 - host, float(host)) for host in range(50)]
        for stage in ("fetch", "parse", "sink"):
            report = Progress(f"{stage}-{number}", stage, number, pid=1_000 + number, offset=pages, **own)  # type: ignore[arg-type]  # fields by name
            if stage == "fetch":
                report.jobs, report.hosts = jobs, slowest
            yield report


# ---------------------------------------------------------------- measurements


def _print_paints(browser: Browser, address: str, pid: int) -> None:
    page, process = _page(browser), psutil.Process(pid)
    page.goto(f"{address}/ui/")
    links = page.locator("header nav a").evaluate_all("all => all.map(one => one.pathname)")
    for path in [*links, *FURTHER]:
        paints, before = [], _cpu_s(process)
        for _ in range(LOADS):
            answer = page.goto(address + path)
            if answer is None or not answer.ok:
                sys.exit(f"{path}: {answer.status if answer else 'no answer'}")
            paints.append(page.evaluate(_PAINT))
            page.wait_for_load_state("networkidle")  # what it loads afterwards is done before the next load
        cost = (_cpu_s(process) - before) / LOADS * 1_000
        paint = f"{statistics.median(paints):5.0f} ms, at most {max(paints):5.0f} ms"
        print(f"first paint {path:22} {paint}; the service uses {cost:4.0f} ms of CPU a load", flush=True)
    page.context.close()


_PAINT = """() => new Promise(done => new PerformanceObserver((list, observer) => {
  for (const entry of list.getEntries()) if (entry.name === "first-contentful-paint") {
    observer.disconnect(); done(entry.startTime);
  }
}).observe({ type: "paint", buffered: true }))"""


def _page(browser: Browser) -> Page:
    """A page that is logged in by a header: with credentials, Playwright turns the cache off."""
    login = base64.b64encode(f"bench:{PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    return browser.new_context(extra_http_headers=headers, viewport={"width": 1440, "height": 900}).new_page()


def _print_idle(browser: Browser, address: str, pid: int) -> None:
    """The service's CPU while nothing happens, alone and with one viewer of the overview."""
    process = psutil.Process(pid)
    for viewers in (0, 1):
        page = _page(browser)
        if viewers:
            page.goto(f"{address}/ui/")
        page.wait_for_timeout(5_000)
        before, began = _cpu_s(process), time.monotonic()
        page.wait_for_timeout(IDLE_S * 1_000)
        share = 100 * (_cpu_s(process) - before) / (time.monotonic() - began)
        print(f"service idle, {viewers} viewer{'s' * (viewers != 1)}: {share:.2f} % of a core", flush=True)
        page.context.close()


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _print_hours(browser: Browser, address: str, pid: int, settings: Settings, hours: float) -> None:
    """One page stays open while the fleet reports `RATE` pages a second."""
    stop = threading.Event()
    fleet = threading.Thread(target=_crawl, args=(settings, stop), daemon=True)
    fleet.start()
    page, process = _page(browser), psutil.Process(pid)
    page.goto(f"{address}/ui/")
    session = page.context.new_cdp_session(page)
    before, began = _cpu_s(process), time.monotonic()
    for sample in itertools.count():
        session.send("HeapProfiler.collectGarbage")
        heap = page.evaluate("performance.memory.usedJSHeapSize")
        nodes = page.evaluate("document.getElementsByTagName('*').length")
        rss, minutes = process.memory_info().rss, (time.monotonic() - began) / 60
        share = 100 * (_cpu_s(process) - before) / max(time.monotonic() - began, 1e-9)
        print(
            f"{minutes:5.1f} min: service {rss / 2**20:6.1f} MiB, {share:5.2f} % of a core; "
            f"browser heap {heap / 2**20:5.1f} MiB, {nodes} elements",
            flush=True,
        )
        if minutes >= hours * 60:
            break
        page.wait_for_timeout(min(SAMPLE_S, 60.0 if sample < 5 else SAMPLE_S) * 1_000)
    stop.set()
    fleet.join(30)


def _crawl(settings: Settings, stop: threading.Event) -> None:
    producer, topics = Producer(settings, "bench"), Topics(settings.kafka.prefix)
    buckets = itertools.cycle(_buckets().items())
    for second in itertools.count(1):
        for report in _reports(second):
            producer.send(topics.progress, progress.encode(report), key=progress.key(report), partition=0)
        for key, bucket in itertools.islice(buckets, PARTITIONS):
            bucket.hosts[0].asked = second
            producer.send(topics.hosts, hosts.encode(bucket), key=key, partition=0)
        producer.flush(10)
        if stop.wait(1.0):
            return


if __name__ == "__main__":
    sys.exit(main())
