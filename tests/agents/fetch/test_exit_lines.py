"""The exits of a fetch worker as they change."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crawlog.agents import redial
from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.fetch import exit_lines
from crawlog.agents.fetch.exit_lines import ExitLines
from crawlog.schemas.progress import IDLE, ExitOffer, Progress
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import Settings
from tests.support.raw_http import until
from tests.support.sites import Site, sites


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


class Busy(Site):
    """A site that takes some time, and knows by which addresses it is being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        peer = to_client.get_extra_info("peername")[0]
        try:
            while True:
                await from_client.readuntil(b"\r\n\r\n")
                self.in_flight[peer] += 1
                self.asked[peer] += 1
                await asyncio.sleep(0.02)
                self.in_flight[peer] -= 1
                to_client.write(self.answer)
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()


class Provider(Site):
    """Gives an exit a new address; it takes some time, and knows what the site was asked meanwhile."""

    def __init__(self, site: Busy) -> None:
        super().__init__()
        self.site = site
        self.met: list[int] = []
        self.at_once = 0

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One redial."""
        await from_client.readuntil(b"\r\n\r\n")
        self.at_once += 1
        before = self.site.asked["127.0.0.2"]
        self.met.append(self.site.in_flight["127.0.0.2"])
        await asyncio.sleep(0.1)
        self.met += [self.site.asked["127.0.0.2"] - before, self.at_once - 1]
        self.at_once -= 1
        to_client.write(self.answer)
        to_client.close()


async def test_a_redial_waits_for_requests_in_flight_and_lets_none_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go by the other exit meanwhile, and by this one afterwards."""
    monkeypatch.setattr(redial, "AGAIN_S", 0.0)
    monkeypatch.setattr(redial, "LOOK_S", 0.05)
    site = Busy()
    provider = Provider(site)
    async with sites(site, provider):
        base = Settings()
        orders = {"127.0.0.2": f"{provider.origin}/rotate"}
        times = {"redial_every_s": 0.2, "redial_pause_s": 0.01, "policy": "request"}
        exits = base.exits.model_copy(update={"addresses": ("127.0.0.2", "127.0.0.3"), "redial": orders, **times})
        network = base.network.model_copy(update={"allow_private": True})
        settings = base.model_copy(update={"exits": exits, "network": network})
        client = Client(settings, "tester", lambda: True)
        following = asyncio.create_task(ExitLines(settings, client).run())
        answers: Counter[int | None] = Counter()

        async def ask() -> None:
            while len(provider.met) < 9:
                answer = await client.get(HttpRequest(f"{site.origin}/"))
                answers[answer.http] += 1
                answer.held.give()

        async with asyncio.timeout(60):
            await asyncio.gather(*(ask() for _ in range(6)))
        following.cancel()
        await client.close()
    assert provider.met == [0] * len(provider.met)
    assert answers.keys() == {200}
    assert min(site.asked["127.0.0.2"], site.asked["127.0.0.3"]) > 0
