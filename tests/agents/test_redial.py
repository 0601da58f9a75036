"""Redials: one at a time, once no request is under way, by a command or a URL."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crawlog.agents import redial
from crawlog.agents.redial import Redialing
from crawlog.streams.settings.settings import Settings
from tests.support.raw_http import until
from tests.support.sites import Site, sites


class Line:
    """Exits that note what is done with them."""

    def __init__(self, *names: str) -> None:
        self.counts = dict.fromkeys(names, 0)
        self.busy: set[str] = set()
        self.held: dict[str, float] = {}
        self.events: list[str] = []

    def bans(self) -> dict[str, int]:
        """As a test has set them."""
        return dict(self.counts)

    def hold(self, name: str, until: float) -> None:
        """Note the first and the last one."""
        if bool(until) != bool(self.held.get(name, 0.0)):
            self.events.append(f"{'hold' if until else 'free'} {name}")
        self.held[name] = until

    def is_busy(self, name: str) -> bool:
        """As a test has set it."""
        return name in self.busy

    async def drop_connections(self, name: str) -> None:
        """Note it."""
        self.events.append(f"drop {name}")

    def renew(self, name: str) -> None:
        """Note it."""
        self.events.append(f"renew {name}")


@asynccontextmanager
async def redialing(line: Line, orders: dict[str, str], every_s: float = 0.0) -> AsyncIterator[None]:
    """Redials, with hardly a pause."""
    base = Settings()
    exits = base.exits.model_copy(update={"redial": orders, "redial_every_s": every_s, "redial_pause_s": 0.01})
    task = asyncio.create_task(Redialing(base.model_copy(update={"exits": exits}), line).run())
    try:
        yield
    finally:
        task.cancel()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redial, "LOOK_S", 0.01)
    monkeypatch.setattr(redial, "AGAIN_S", 0.05)


def command(folder: Path, ends: str = "") -> str:
    """A command that notes its beginning and its end, and the name of the exit."""
    script = folder / "redial.py"
    script.write_text(
        "import os, time\n"
        f"out = open({str(folder / 'calls')!r}, 'a', buffering=1)\n"
        "print('begin', os.environ['CRAWLOG_EXIT'], *[k for k in os.environ if k.startswith('CRAWLOG_S')], file=out)\n"
        "time.sleep(0.05)\n"
        "print('end', os.environ['CRAWLOG_EXIT'], file=out)\n" + ends
    )
    return f"{sys.executable} {script}"


async def test_a_banned_exit_is_redialed_once_its_requests_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held first, and serves again with a new address; the command gets no secrets of the worker."""
    monkeypatch.setenv("CRAWLOG_SERVICE__TOKENS", "hush")
    line = Line("m1", "other")
    line.busy.add("m1")
    async with redialing(line, {"m*": command(tmp_path)}):
        await asyncio.sleep(0.05)
        assert line.events == []
        line.counts["m1"] = line.counts["other"] = 1
        await until(lambda: bool(line.events))
        await asyncio.sleep(0.1)
        assert line.events == ["hold m1"]
        line.busy.clear()
        await until(lambda: "free m1" in line.events)
    assert line.events == ["hold m1", "drop m1", "renew m1", "free m1"]
    assert (tmp_path / "calls").read_text().split("\n") == ["begin m1", "end m1", ""]


async def test_exits_are_redialed_one_at_a_time(tmp_path: Path) -> None:
    """Each at its rate."""
    line = Line("m1", "m2")
    async with redialing(line, {"*": command(tmp_path)}, every_s=0.01):
        await until(lambda: line.events.count("free m2") >= 2)
    calls = (tmp_path / "calls").read_text().split("\n")
    whole = calls[: len(calls) // 2 * 2]
    assert [f"begin {name}" for name in (line.split()[1] for line in whole[1::2] if line)] == [
        line for line, end in zip(whole[::2], whole[1::2], strict=True) if end
    ]


async def test_a_redial_that_fails_is_tried_again_and_repeats_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit serves meanwhile, by its old address."""
    line = Line("m1")
    line.counts["m1"] = 1
    async with redialing(line, {"m1": command(tmp_path, "raise SystemExit('the modem is busy')") + " hush"}):
        await until(lambda: line.events.count("free m1") == 2)
    assert set(line.events) == {"hold m1", "drop m1", "free m1"}
    said = capsys.readouterr().out
    assert "the command ended with 1: the modem is busy" in said
    assert "hush" not in said


async def test_a_redial_may_be_a_url() -> None:
    """A provider's; its answer is not looked at, its status is."""
    good, bad = Site(), Site(status="500 Broken")
    async with sites(good, bad):
        line = Line("a", "b")
        line.counts = {"a": 1, "b": 1}
        async with redialing(line, {"a": f"{good.origin}/rotate?key=hush", "b": bad.origin}):
            await until(lambda: {"free a", "free b"} <= set(line.events))
    assert "renew a" in line.events
    assert "renew b" not in line.events
    assert good.requests[0].startswith("GET /rotate?key=hush ")
