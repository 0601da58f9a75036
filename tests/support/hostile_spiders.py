"""Runners for tests of spiders' processes: each misbehaves in its way, named by the reference's path."""

import asyncio
import atexit
import ctypes
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec

from crawlog.agents.sandbox.frames import DONE, ITEMS, REQUESTS, SpiderFrame
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import Bounds, CallResult, PageCall, RequestOut, SpiderFacts, SpiderRef, Trust


def _endless() -> None:
    while True:
        pass


def _endless_in_c() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def _sum_in_c() -> None:
    sum(range(10**12))


def _gives(more: Callable[[], None]) -> None:
    for _ in range(8):  # three limits of time
        ends_s = time.process_time() + 0.25
        while time.process_time() < ends_s:
            pass
        more()


def _much_memory() -> None:
    held = [bytearray(1 << 30) for _ in range(10)]
    raise AssertionError(f"{len(held)} GB")


def _bomb() -> None:
    while True:
        try:
            if not os.fork():
                os.setsid()
        except OSError:
            os._exit(9)


def _threads() -> None:
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(600,)).start()


def _prints() -> None:
    os.write(1, b"\xff\x00 garbage \x1b[2J" * 200_000)
    sys.stdout.write("a line\n")


def _closes() -> None:
    os.closerange(0, 64)


def _orphan() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def _kills_zygote() -> None:
    os.kill(os.getppid(), 9)
    time.sleep(60)


def _stays() -> None:
    atexit.register(time.sleep, 600)


def _files() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())[:-1]


def _boasts(gives_more: Callable[[], None]) -> None:
    while True:
        gives_more()


def _forges(*frames: SpiderFrame) -> None:
    """Write to the worker as this process's own code does."""
    with socket.socket(fileno=os.dup(3)) as worker:
        worker.setblocking(True)
        for frame in frames:
            worker.sendall(b"".join(frame.parts()))
    time.sleep(60)


_NESTED = b'{"url":"http://a.example/","request":{"meta":{"a":[' + b"[]," * 300_000 + b"[]]}}}"

FORGED: dict[str, Callable[[], None]] = {
    "answer": lambda: _forges(SpiderFrame(DONE, b"x" * 67_000_001)),
    "items": lambda: _forges(*[SpiderFrame(ITEMS, b"", b"{}\n" * 300_000 + b"{}")] * 60),
    "values": lambda: _forges(*[SpiderFrame(REQUESTS, b"", _NESTED)] * 60),
    "part": lambda: _forges(SpiderFrame(ITEMS, b"", b"1234\n" * 300_000 + b"1")),
    "garbage": lambda: _forges(SpiderFrame(REQUESTS, b"", b"{")),
}


def _many() -> CallResult:
    items = [msgspec.Raw(b'{"n":\n%d}' % number) for number in range(120_000)]
    requests = [RequestOut(f"http://a.example/{number}") for number in range(40_000)]
    return CallResult(items=items, requests=requests, stats={"given": 160_000})


LARGE: dict[str, Callable[[], CallResult]] = {
    "many": _many,
    "crowd": lambda: CallResult(items=[msgspec.Raw(b"{}")] * 600_000),
    "large": lambda: CallResult(items=[msgspec.Raw(b'{"a":"' + b"x" * (65 << 20) + b'"}')]),
}


DEEDS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(7),
    "sys_exit": lambda: sys.exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "endless": _endless,
    "endless_c": _endless_in_c,
    "sum": _sum_in_c,
    "sleep": lambda: time.sleep(600),
    "pause": lambda: time.sleep(0.05),
    "stays": _stays,
    "memory": _much_memory,
    "bomb": _bomb,
    "threads": _threads,
    "prints": _prints,
    "closes": _closes,
    "orphan": _orphan,
    "zygote": _kills_zygote,
    **{f"forges {name}": forge for name, forge in FORGED.items()},
}


class HostileRunner:
    """A page whose body names a deed has it done; else its item says the body's length and the environment's names."""

    def __init__(self, ref: SpiderRef) -> None:
        self.facts = SpiderFacts(ref.path, "hostile@1", is_scrapy="scrapy" in ref.path)
        self._left: list[object] = []
        if ref.path.endswith(".txt"):
            self._writes(Path(ref.path))

    def _writes(self, path: Path) -> None:
        """Leave a file open, which lies in a cycle of objects."""
        file = path.open("w")
        self._left += [self, file]
        print("a row", file=file)
        atexit.register((path.parent / "atexit").touch)

    async def page(self, call: PageCall) -> CallResult:
        """An item, a deed, or an error."""
        name = call.body[:20].decode(errors="replace")
        if name in LARGE:
            return LARGE[name]()
        if name == "raises":
            item = msgspec.Raw(b'{"before":1}')
            return CallResult(items=[item] if self.facts.is_scrapy else [], error="ValueError: no", trace="a trace")
        if name == "final":
            return CallResult(error="TypeError: no", is_final=True)
        if name == "later":
            self._left.append(asyncio.get_running_loop().call_later(0.05, os._exit, 5))
            return CallResult()
        deeds = DEEDS | {"gives": lambda: _gives(call.gives_more), "boasts": lambda: _boasts(call.gives_more)}
        if name in deeds:
            deeds[name]()
        row = {"bytes": len(call.body), "url": call.meta.url, "pid": os.getpid(), "env": sorted(os.environ)}
        row["files"] = _files()
        return CallResult(items=[msgspec.Raw(msgspec.json.encode(row))])

    async def start(self) -> AsyncGenerator[CallResult, None]:
        """Endless parts."""
        number = 0
        while True:
            yield CallResult(items=[msgspec.Raw(b"%d" % number)])
            number += 1
            if number == 3 and self.facts.path == "short":
                return

    async def call(self, name: str, argument: bytes) -> bytes:
        """The argument, with the name in front."""
        if name == "fails":
            raise ValueError("no such call")
        return name.encode() + argument


def load(ref: SpiderRef, bounds: Bounds | None = None, trust: Trust | None = None) -> HostileRunner:  # as load_runner
    """A runner, or what the path says."""
    if ref.path == "broken":
        raise Misconfigured("--spider broken: line 3")
    if ref.path.startswith("load_"):
        DEEDS[ref.path.removeprefix("load_")]()
    return HostileRunner(ref)
