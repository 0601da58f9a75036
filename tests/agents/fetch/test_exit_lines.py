"""The exits of a fetch worker as they change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crawlog.agents.client.client import Client
from crawlog.agents.fetch import exit_lines
from crawlog.agents.fetch.exit_lines import ExitLines
from crawlog.schemas.progress import IDLE, ExitOffer, Progress
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import Settings
from tests.support.raw_http import until


@asynccontextmanager
async def followed(**exits: object) -> AsyncIterator[tuple[ExitLines, Callable[[], list[str]]]]:
    """A client's exits, kept up to date, and their names."""
    base = Settings()
    settings = base.model_copy(update={"exits": base.exits.model_copy(update={"lists_every_s": 0.01, **exits})})
    client = Client(settings, "tester", lambda: True)
    lines = ExitLines(settings, client)
    following = asyncio.create_task(lines.run())
    try:
        yield lines, lambda: [way.name for way in client.exits]
    finally:
        following.cancel()
        await client.close()


def offered(*offers: ExitOffer, worker: str = "w") -> Progress:
    """The report of an exit worker."""
    return Progress(worker, IDLE, -1, 0.0, idle_stage="exit", offers=list(offers))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_lines, "LOOK_S", 0.01)


async def test_machines_that_lend_their_addresses_stand_beside_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they report that they lend nothing, or report no more."""
    async with followed() as (lines, names):
        assert names() == []
        lines.take(offered(ExitOffer("a", "10.0.0.7:6801", "n"), ExitOffer("a@2", "10.0.0.7:6802", "n")))
        lines.take(offered(ExitOffer("b", "[2001:db8::1]:6801", "n"), worker="v"))
        await until(lambda: names() == ["direct", "a", "a@2", "b"])
        lines.take(offered())
        await until(lambda: names() == ["direct", "b"])
        monkeypatch.setattr(exit_lines, "GONE_S", 0.0)
        await until(lambda: names() == [])


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.7", "10.0.0.7:0", "10.0.0.7:x", "10.0.0.7:99999", "a/b:80", "u@10.0.0.7:80", "10.0.0.7:6379/",
     "169.254.169.254:80", "metadata.google.internal:80", "10.0.0.7:25", "0xa9fea9fe:80"],
)  # fmt: skip
def test_an_offer_that_may_not_be_asked_is_none(address: str) -> None:
    """Any writer of the topic may have sent it: no metadata address, no port of another protocol, one place."""
    assert exit_lines.lent(ExitOffer("a", address, "n")) is None


async def test_a_worker_may_refuse_all_offers() -> None:
    """By its setting; names that no report may have are refused in any case."""
    assert exit_lines.lent(ExitOffer("a b\n", "10.0.0.7:6801", "n")) is None
    async with followed(workers=False, addresses=("10.0.0.9",)) as (lines, names):
        lines.take(offered(ExitOffer("a", "10.0.0.7:6801", "n")))
        await asyncio.sleep(0.05)
        assert names() == ["10.0.0.9"]


async def test_a_list_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong one stays as it was, with a warning that repeats nothing of it."""
    place = tmp_path / "proxies.txt"
    place.write_text("one.test:80\n")
    async with followed(lists=(str(place),)) as (_, names):
        assert names() == ["one.test:80"]
        place.write_text("one.test:80\ntwo.test:80\n")
        await until(lambda: names() == ["one.test:80", "two.test:80"])
        place.write_text("hush hush\n")
        said = ""

        def is_told() -> bool:
            nonlocal said
            said += capsys.readouterr().out
            return "exit_list_unread" in said

        await until(is_told)
        assert names() == ["one.test:80", "two.test:80"]
        assert "hush" not in said
        place.unlink()
        await asyncio.sleep(0.05)
        assert names() == ["one.test:80", "two.test:80"]


def test_a_worker_does_not_start_without_its_lists(tmp_path: Path) -> None:
    """Its requests would leave by an address that was not meant."""
    base = Settings()
    exits = base.exits.model_copy(update={"lists": (str(tmp_path / "none"),)})
    with pytest.raises(Misconfigured, match=r"exits\.lists, number 1: No such file"):
        Client(base.model_copy(update={"exits": exits}), "tester", lambda: True)
