"""Clocks that jump under the workers: an hour and thirty days, forth and back, by libfaketime."""

import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault
from tests.support.synthetic_site import WORK

JUMPS = ("+1h", "-1h", "+30d", "-30d")
REST_S = 8.0

SLEEP = """import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""
"""Python sleeps until a time of the monotonic clock, which libfaketime's `clock_nanosleep` refuses (EINVAL)."""

WAITS = """#include <pthread.h>
#include <errno.h>
#include <threads.h>
int cnd_timedwait(cnd_t *cond, mtx_t *lock, const struct timespec *until) {
    int code = pthread_cond_timedwait((pthread_cond_t *)cond, (pthread_mutex_t *)lock, until);
    return code == 0 ? thrd_success : code == ETIMEDOUT ? thrd_timedout : thrd_error;
}
"""
"""librdkafka waits by C11's function until a time of the wall clock. libfaketime fakes the time, but knows only the
wait of pthread, and a wait of a second would take the hour of the jump as well."""

PACKAGE = "libfaketime"


@cache
def library() -> Path | None:
    """libfaketime: the system's, else Debian's package unpacked into bench/.work; None where there is neither."""
    places = ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib", str(WORK / PACKAGE))
    known = [file for place in places for file in Path(place).glob(f"**/faketime/{PACKAGE}.so.1")]
    if known or not (shutil.which("apt-get") and shutil.which("dpkg")):
        return known[0] if known else None
    folder = WORK / PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, capture_output=True, check=False)
    for package in folder.glob(f"{PACKAGE}_*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], capture_output=True, check=False)
    return next(iter(folder.glob(f"**/faketime/{PACKAGE}.so.1")), None)


class Clock(Fault):
    """The wall clock of all fetch and parse workers jumps; the monotonic one does not, as when NTP sets a clock."""

    name = "clock"
    says = "the clock of the workers jumps by ±1 h and ±30 days"
    apart = True
    again_percent = 0.5

    def lacks(self) -> str:
        """Without the library there is no way to move one process's clock."""
        if not shutil.which("cc"):
            return "no C compiler `cc` for the waits that the library does not know"
        return "" if library() else f"no {PACKAGE}: install Debian's package {PACKAGE}, or build it from its sources"

    def prepare(self, crawl: Crawl) -> None:
        """Workers that read their clock's offset from a file."""
        (crawl.folder / "clock").write_text("+0")
        site = crawl.folder / "site-packages"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SLEEP)
        source, waits = crawl.folder / "waits.c", crawl.folder / "waits.so"
        source.write_text(WAITS)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(waits), str(source)], check=True)
        crawl.environ = {
            "PYTHONPATH": str(site),
            "LD_PRELOAD": f"{library()} {waits}",
            "FAKETIME_TIMESTAMP_FILE": str(crawl.folder / "clock"),
            "FAKETIME_CACHE_DURATION": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Each jump from the true time, and back to it."""
        crawl.until(0.05, 120)
        jumps = sorted(JUMPS, key=lambda _: dice.random())
        rest_s = min(REST_S, crawl.size.calm_s / (2 * len(JUMPS)))
        while crawl.sleep(rest_s):
            for jump in (jumps[len(crawl.events) // 2 % len(jumps)], "+0"):
                if not crawl.note(f"clock {jump}"):
                    return {}
                (crawl.folder / "clock").write_text(jump)
                if not crawl.sleep(rest_s):
                    return {}
        return {}
