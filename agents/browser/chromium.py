"""Starts, measures and ends Chromium and its driver, with all their processes.

The browser has no network: no process can listen on its proxy's address, no name resolves, and service workers, pop-ups
and WebRTC are off.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import psutil
import structlog

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

    from crawlog.streams.settings import Settings

log = structlog.get_logger()

# Arguments beside Playwright's own, which turn off updates, sync, extensions and first-run pages.
ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--block-new-web-contents",
    "--dns-prefetch-disable",
    "--proxy-server=http://127.0.0.1:0",  # port 0: no process can ever listen there
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)

START_S = 30.0  # Time for the browser to start, even for the first time on a machine

CLOSE_S = 3.0  # Time for a page or the browser to close, before it is killed

# Arguments of Playwright that are left out: they are for tests, and weaken the browser against unknown pages.
UNWANTED = ["--disable-ipc-flooding-protection", "--disable-popup-blocking", "--enable-unsafe-swiftshader"]


class Chromium:
    """Chromium and its driver, with all their processes.

    Attributes:
        drivers: The driver's processes: one, Playwright's.
        pages: Pages open now.
        served: Pages opened so far.
        empty: Set while no page is open.
        used_at: When the last page ended.
        cut_at: When a page was last killed for its memory.
    """

    def __init__(self, driver: "Playwright", browser: "Browser", processes: list[psutil.Process]) -> None:
        self._driver = driver
        self.drivers = processes
        self.browser = browser
        self.pages = self.served = 0
        self._behind: set[asyncio.Task[None]] = set()
        self.empty = asyncio.Event()
        self.empty.set()
        self.used_at = time.monotonic()
        self.cut_at = 0.0

    @classmethod
    async def start(cls, path: str, settings: "Settings") -> "Chromium":
        """Start driver and browser."""
        from playwright.async_api import async_playwright  # an extra

        before = set(psutil.Process().children())
        driver: Playwright | None = None
        heap_mb = settings.render.memory_mb // (settings.render.pages + 1)
        try:
            driver = await async_playwright().start()
            browser = await driver.chromium.launch(
                executable_path=path,
                ignore_default_args=UNWANTED,
                args=[*ARGUMENTS, f"--js-flags=--max-old-space-size={heap_mb}"],
                chromium_sandbox=settings.render.sandbox,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except BaseException:  # also if its time is over
            drivers = _drivers(before)
            processes = [*_browsers(drivers), *drivers]
            try:
                if driver is not None:
                    await _stop(driver)
            finally:
                for one in processes:
                    _kill(one)
            raise
        started = cls(driver, browser, _drivers(before))
        log.info("browser_started", version=browser.version, path=path)
        return started

    @property
    def is_alive(self) -> bool:
        """Whether browser and driver run. Playwright does not count a browser as disconnected if its driver died."""
        return self.browser.is_connected() and all(map(_is_running, self.drivers))

    def take(self) -> None:
        self.pages += 1
        self.empty.clear()

    def let_go(self) -> None:
        """Count a page as closed."""
        self.pages -= 1
        self.served += 1
        self.used_at = time.monotonic()
        if not self.pages:
            self.empty.set()

    def processes(self) -> list[psutil.Process]:
        return _browsers(self.drivers)

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task that is not cancelled with its caller."""
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    def kill(self) -> None:
        for one in self.processes():
            _kill(one)

    def shrink(self, most_bytes: int) -> int:
        """The browser's memory in bytes; above `most_bytes` the largest page is killed."""
        sizes = size_bytes(self.processes())
        size = sum(sizes.values())
        if size > most_bytes:
            self.cut_at = time.monotonic()
            pages = [one for one in sizes if _has_argument(one, "--type=renderer")]
            for one in [max(pages, key=sizes.__getitem__)] if pages else list(sizes):
                _kill(one)
        return size

    async def close(self) -> None:
        processes = self.processes()
        try:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self.browser.close()
            except Exception:  # noqa: BLE001  # it may be dead, or hang
                for one in processes:
                    _kill(one)
            await _stop(self._driver)
        finally:  # also if it is cancelled
            for one in (*processes, *self.drivers):
                _kill(one)


def size_bytes(processes: Iterable[psutil.Process]) -> dict[psutil.Process, int]:
    """Private memory of each process; the first also has the shared memory. The sum is a little more than their PSS.

    To read the kernel's PSS takes some 10 ms per process, and stops the process meanwhile.
    """
    sizes: dict[psutil.Process, int] = {}
    shared = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            sizes[process] = memory.rss - memory.shared
            shared = max(shared, memory.shared)
    for first in list(sizes)[:1]:
        sizes[first] += shared
    return sizes


def _drivers(before: set[psutil.Process]) -> list[psutil.Process]:
    """Drivers that were started since; other children, such as those that try pages, may have come too."""
    return [one for one in psutil.Process().children() if one not in before and _has_argument(one, "run-driver")]


def _browsers(drivers: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for driver in drivers:
        with contextlib.suppress(psutil.Error):
            found += [one for one in driver.children(recursive=True) if _is_chromium(one)]
    return found


async def _stop(driver: "Playwright") -> None:
    with contextlib.suppress(Exception):  # it may be dead, or hang
        async with asyncio.timeout(CLOSE_S):
            await driver.stop()


def _has_argument(process: psutil.Process, argument: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return argument in process.cmdline()
    return False


def _is_running(child: psutil.Process) -> bool:
    """Whether a child of this process has not ended. Each look at a page asks: one system call, no file of /proc."""
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:  # it was waited for
        return False


def _is_chromium(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "node" not in process.name()
    return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGKILL)
