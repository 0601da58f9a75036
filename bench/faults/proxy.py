"""A bad network between workers and broker: a TCP proxy that delays, drops, and half-closes.

The broker listens on a second port and advertises the proxy's there, so that workers never learn the direct one.
"""

import asyncio
import contextlib
import random
import threading
import time
from typing import Self

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault
from crawlog.streams.engine import broker
from tests.support.synthetic_site import free_port

CHUNK = 64 << 10


class Proxy:
    """Forwards connections, in a thread of its own.

    Attributes:
        delay_s: Each chunk is late by so much.
        is_deaf: Bytes are read and thrown away, in both directions: a network that drops packets.
        is_closed: New connections are refused at once.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self.delay_s = 0.0
        self.is_deaf = False
        self.is_closed = False
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def close(self) -> None:
        """Ends all connections and the thread."""
        self.reset()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def reset(self) -> None:
        """Cuts every connection, without a word."""
        self._loop.call_soon_threadsafe(self._abort)

    def half_close(self) -> None:
        """Tells workers that the broker has nothing more to say, while their own words still get through."""
        self._loop.call_soon_threadsafe(self._half_close)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _half_close(self) -> None:
        for writer in self._writers:
            if writer.can_write_eof() and not writer.is_closing():
                with contextlib.suppress(OSError):
                    writer.write_eof()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", self.port))
        self._ready.set()
        self._loop.run_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_closed:
            writer.transport.abort()
            return
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await asyncio.gather(self._forward(reader, to), self._forward(there, writer))
        finally:
            self._writers.discard(writer)
            for end in (writer, to):
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            while chunk := await reader.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not self.is_deaf and not writer.is_closing():
                    writer.write(chunk)
                    await writer.drain()
        writer.transport.abort()


class Proxied(Fault):
    """Delays, cuts, silence and half-closed connections."""

    name = "proxy"
    says = "a proxy between workers and broker delays (300 ms), cuts, half-closes, and swallows for 8 s"
    apart = True
    again_percent = 2.0

    def __init__(self) -> None:
        self._proxy: Proxy | None = None
        self._properties = broker.PROPERTIES

    def prepare(self, crawl: Crawl) -> None:
        """A second listener, advertised as the proxy."""
        ours, theirs = free_port(), free_port()
        more = f",PROXIED://{{host}}:{theirs}"
        broker.PROPERTIES = (
            self._properties.replace("listeners=CLIENT://{host}:{port},CONTROLLER",
                                     f"listeners=CLIENT://{{host}}:{{port}}{more},CONTROLLER", 1)
            .replace("advertised.listeners=CLIENT://{host}:{port}",
                     f"advertised.listeners=CLIENT://{{host}}:{{port}},PROXIED://{{host}}:{ours}")
            .replace("protocol.map=", "protocol.map=PROXIED:SASL_PLAINTEXT,")
            + "listener.name.proxied.plain.sasl.jaas.config={login}\n"
        )  # fmt: skip
        self._proxy = Proxy(ours, theirs).__enter__()
        crawl.worker_bootstrap = f"127.0.0.1:{ours}"

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """One deed after the other, with a rest between."""
        crawl.until(0.05, 120)
        silences = [0.0]
        while crawl.sleep(dice.uniform(2.0, 5.0)):
            deed = dice.choice(("late", "reset", "half", "deaf"))
            if not crawl.note(deed):
                break
            self._do(crawl, deed)
            silences.append(crawl.until_asked(time.monotonic()))
        return {"longest silence s": max(silences)}

    def _do(self, crawl: Crawl, deed: str) -> None:
        assert self._proxy is not None
        if deed == "reset":
            self._proxy.reset()
        elif deed == "half":
            self._proxy.half_close()
        elif deed == "late":
            self._proxy.delay_s = 0.3
            crawl.sleep(6.0)
            self._proxy.delay_s = 0.0
        else:
            self._proxy.is_deaf = True
            crawl.sleep(8.0)
            self._proxy.is_deaf = False
            self._proxy.reset()  # a stream with a hole is no stream: TCP would never deliver what comes after

    def after(self, crawl: Crawl) -> None:  # noqa: ARG002  # the base's signature
        """The next broker listens as always."""
        broker.PROPERTIES = self._properties
        if self._proxy is not None:
            self._proxy.close()
