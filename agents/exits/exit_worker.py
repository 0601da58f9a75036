"""`crawlog worker exit`: lends the addresses of this machine to the fleet, until SIGTERM.

It keeps nothing, and reads the log from now on: a killed one is simply started again. Fetch workers use another exit
meanwhile. It ends in three steps: it reports that it lends nothing, takes no further tunnels, and waits for the answers
that are under way.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from urllib.parse import urlsplit

import structlog
import uvloop

from crawlog import __version__
from crawlog.agents.client import GuardedResolver
from crawlog.agents.control import ControlThread
from crawlog.agents.redial import Redialing
from crawlog.schemas import control, progress
from crawlog.schemas.progress import IDLE, ExitOffer, Progress
from crawlog.streams import files
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Producer, Topics
from crawlog.streams.readiness import OwnReadiness
from crawlog.streams.settings import Settings
from crawlog.streams.worker import OwnProcess, is_for_us, stop_as_ordered, why_ended

from .tunnels import MOST_TUNNELS, ExitServer, FleetKeys, new_nonce

log = structlog.get_logger()

REPORT_S = 2.0  # Time between two reports, seconds

END_S = 30.0  # Longest wait for answers under way, seconds

ANY = ("0.0.0.0", "::")  # noqa: S104  # where a server listens on all addresses

FLUSH_S = 2.0  # Longest wait for the acknowledgement of the last report, seconds


def lend(settings: Settings, say: Callable[[str], None]) -> None:
    """Run the stage in this process. Raises: as `Lending.run`."""
    from crawlog.streams import logs
    from crawlog.streams.app import own_name

    os.umask(files.OTHERS)
    files.want_open(2 * MOST_TUNNELS)
    worker = own_name()
    logs.configure(settings.log.level, settings.log.format, worker=worker, stage="exit")

    async def run() -> None:
        await Lending(settings, worker).run(say)

    uvloop.run(run())


class Lending:
    """One process of the stage.

    Args:
        worker: Its name.
    """

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._topics = Topics(settings.kafka.prefix)
        self._producer = Producer(settings, f"{worker}-progress")
        self._own = OwnProcess(__version__)
        self._fleet = FleetKeys()
        self._stop = asyncio.Event()
        self._error: Exception | None = None
        self._servers: dict[str, ExitServer] = {}
        self._reached: dict[str, str] = {}

    async def run(self, say: Callable[[str], None]) -> None:
        """Serve until SIGTERM, SIGINT or an order to end.

        Raises:
            Misconfigured: The address cannot be listened on.
            Exception: crawl.control cannot be read.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        network, fetch = self._settings.network, self._settings.fetch
        resolver = GuardedResolver(network.allow_private, fetch.dns_cache_hosts, fetch.dns_ttl_s, network.dns_servers)
        following = ControlThread(
            self._settings, self._topics, self._heard, reported=self._fleet.take, failed=self._failed(loop)
        )
        following.start(loop)
        try:
            await self._listen(resolver)
            say(f"lends {', '.join(f'{name} at {place}' for name, place in self._reached.items())}; SIGTERM ends it")
            redialing = asyncio.create_task(Redialing(self._settings, self).run())
            readiness = OwnReadiness(self._settings.run.ready_file)
            while not self._stop.is_set():
                self._report()
                readiness.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), REPORT_S)
            redialing.cancel()
            self._reached.clear()
            self._report(why_ended())
            await asyncio.gather(*(server.close(END_S) for server in self._servers.values()))
            await asyncio.to_thread(self._producer.flush, FLUSH_S)
        finally:
            following.stop()
            await resolver.close()
        if self._error is not None:
            raise self._error

    def bans(self) -> dict[str, int]:
        """See `ExitControls`: as the fetch workers report them."""
        return {name: self._fleet.bans(name) for name in self._servers}

    def hold(self, name: str, until: float) -> None:
        """See `ExitControls`; the fetch workers learn of it at once."""
        was_held = self._servers[name].is_held
        self._servers[name].held_until = until
        if self._servers[name].is_held != was_held:
            self._report()

    def is_busy(self, name: str) -> bool:
        """See `ExitControls`."""
        return self._servers[name].is_busy

    async def drop_connections(self, name: str) -> None:
        """See `ExitControls`."""
        await self._servers[name].drop()

    def renew(self, name: str) -> None:
        """See `ExitControls`; by the new nonce the fetch workers know of it."""
        self._servers[name].nonce = new_nonce()

    def _failed(self, loop: asyncio.AbstractEventLoop) -> Callable[[Exception], None]:
        def failed(error: Exception) -> None:
            log.error("control_unread", exc_info=error)
            self._error = error
            loop.call_soon_threadsafe(self._stop.set)

        return failed

    def _heard(self, record: control.Control) -> None:
        if isinstance(record, control.WorkerCommand) and is_for_us(record, self._worker):
            stop_as_ordered(record)

    async def _listen(self, resolver: GuardedResolver) -> None:
        """One server for each address that leaves this machine."""
        host, port = listen_at(self._settings)
        machine = socket.gethostname()
        for number, source in enumerate(self._settings.exits.addresses or ("",)):
            server = ExitServer(self._settings, self._fleet, resolver, source)
            try:
                got = await server.listen(host, port + number if port else 0)
            except OSError as error:
                raise Misconfigured(
                    f"this exit cannot listen on {host}:{port + number if port else 0}: {error.strerror or error}.\n"
                    "Set exits.listen=HOST:PORT to an address of this machine that the fetch workers reach."
                ) from None
            name = f"{machine}@{source}" if source else machine
            self._servers[name] = server
            self._reached[name] = reached_at(self._settings, host, got, number)

    def _report(self, ended: str = "") -> None:
        """A late report is worthless: none is sent before the last one is in the log."""
        self._producer.poll()
        if self._producer.outstanding and not self._stop.is_set():
            return
        servers = self._servers.values()
        offers = [
            ExitOffer(name, self._reached[name], server.nonce, len(server.tunnels))
            for name, server in self._servers.items()
            if name in self._reached and not server.is_held
        ]
        report = Progress(
            self._worker,
            IDLE,
            -1,
            time.time(),
            pid=os.getpid(),
            bytes=sum(server.bytes for server in servers),
            idle_stage="exit",
            offers=offers,
            ended=ended,
        )
        self._own.sign([report])
        self._producer.send(self._topics.progress, progress.encode(report), key=progress.key(report), partition=0)


def listen_at(settings: Settings) -> tuple[str, int]:
    """Address and port of `exits.listen`; without it the address from which this machine reaches the cluster."""
    parts = urlsplit(f"//{settings.exits.listen}")
    return (parts.hostname or "", parts.port or 0) if settings.exits.listen else (own_address(settings), 0)


def reached_at(settings: Settings, host: str, port: int, number: int) -> str:
    """`HOST:PORT` at which the fleet reaches a server, the `number`th of this machine, that listens there."""
    if settings.exits.advertised:
        parts = urlsplit(f"//{settings.exits.advertised}")
        host, port = parts.hostname or "", (parts.port or 0) + number
    elif host in ANY:
        host = own_address(settings)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(settings: Settings) -> str:
    """The address from which this machine reaches the cluster. Raises: Misconfigured: none leads there."""
    first = urlsplit(f"//{settings.kafka.bootstrap.partition(',')[0]}")
    with suppress(OSError):
        family, kind, _, _, place = socket.getaddrinfo(first.hostname, first.port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, kind)) as probe:
            probe.connect(place)  # sends nothing
            return str(probe.getsockname()[0])
    raise Misconfigured(
        f"no address of this machine leads to {settings.kafka.bootstrap}: set exits.listen=HOST:PORT to one that the"
        " fetch workers reach"
    )
