"""The exits of a fetch worker as they change: lists that are read again, machines that lend their addresses.

exits.lists, every exits.lists_every_s ─┐
crawl.progress: reports of exit workers ┴─► the exits of the client ◄─ exits.redial (`agents/redial.py`)
"""

import asyncio
import time
from urllib.parse import urlsplit

import structlog

from crawlog.agents.client import Client, list_fault, named_exits, read_place
from crawlog.agents.redial import Redialing
from crawlog.schemas.progress import ExitOffer, Progress, stage_of
from crawlog.streams.exits import DIRECT, Exit, is_name
from crawlog.streams.requests import Proxy, literal_refusal, port_refusal
from crawlog.streams.settings import Settings

log = structlog.get_logger()

LOOK_S = 0.5  # Time between two looks, seconds

GONE_S = 15.0  # An exit worker reports every 2 s; without a report for this time it is used no more

MOST_OFFERS = 1_000  # Of all exit workers


class ExitLines:
    """Keeps the exits of a client up to date."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._lists = client.lists
        self._named = tuple(named_exits(settings, self._lists))
        self._read_at = time.monotonic()
        self._lent: dict[tuple[str, int], tuple[float, list[Exit]]] = {}

    def take(self, report: Progress) -> None:
        """Take a report of crawl.progress; called in another thread."""
        if stage_of(report) == "exit" and self._settings.exits.workers:
            ways = [way for offer in report.offers[:MOST_OFFERS] if (way := lent(offer)) is not None]
            self._lent[report.worker, report.pid] = time.monotonic(), ways

    async def run(self) -> None:
        """Change the client's exits when they have changed, and redial them, until cancelled."""
        redialing = asyncio.create_task(Redialing(self._settings, self).run())
        try:
            await self._follow()
        finally:
            redialing.cancel()

    def bans(self) -> dict[str, int]:
        """See `ExitControls`."""
        figures = self._client.exits.figures(time.monotonic())
        return {name: one.bans if one.rests_at else 0 for name, one in figures.items()}

    def hold(self, name: str, until: float) -> None:
        """See `ExitControls`."""
        self._client.exits.hold(name, until)

    def is_busy(self, name: str) -> bool:
        """See `ExitControls`."""
        return self._client.exits.is_busy(name)

    async def drop_connections(self, name: str) -> None:
        """See `ExitControls`."""
        await self._client.drop_connections(name)

    def renew(self, name: str) -> None:
        """See `ExitControls`."""
        self._client.exits.renew(name)

    async def _follow(self) -> None:
        while True:
            now = time.monotonic()
            if self._lists and now - self._read_at >= self._settings.exits.lists_every_s:
                self._read_at = now
                for number, place in enumerate(self._lists, 1):
                    try:
                        self._lists[place] = await asyncio.to_thread(read_place, place)
                    except (OSError, ValueError) as error:
                        log.warning(
                            "exit_list_unread", number=number, error=list_fault(error), then="it stays as it was"
                        )
                self._named = tuple(named_exits(self._settings, self._lists))
            self._client.use(self._ways(now))
            await asyncio.sleep(LOOK_S)

    def _ways(self, now: float) -> tuple[Exit, ...]:
        """All exits. Beside machines that lend theirs this machine is one, unless it has others of its own."""
        named = self._named
        lent = [way for at, ways in list(self._lent.values()) if now - at < GONE_S for way in ways][:MOST_OFFERS]
        return (*named, *sorted(lent)) if named or not lent else (DIRECT, *sorted(lent))


def lent(offer: ExitOffer) -> Exit | None:
    """The exit that a report offers; None for one that may not be asked: any writer of the topic may have sent it."""
    at = urlsplit(f"//{offer.address}")
    try:
        host, port = at.hostname, at.port
    except ValueError:
        return None
    if not host or not port or at.netloc != offer.address or "@" in at.netloc or not is_name(offer.name):
        return None
    if port_refusal(f"http://{offer.address}") or literal_refusal(host, allow_private=True):
        return None
    return Exit(offer.name, "worker", Proxy(f"exit://{offer.address}", offer.nonce))
