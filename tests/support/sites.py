"""Sites on loopback: one in the test's own loop that keeps what it got, one in a thread for crawls in processes."""

import asyncio
import http.server
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.streams.session.login import Form
from crawlog.streams.settings.settings import Settings


class Site:
    """A server that answers every request alike and keeps what it got."""

    def __init__(
        self, headers: str = "", status: str = "200 OK", body: bytes = b"<p>here", address: str = "127.0.0.1"
    ) -> None:
        self.address = address
        self.answer = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.requests: list[str] = []
        self.origin = ""

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                self.requests.append((await from_client.readuntil(b"\r\n\r\n")).decode())
                to_client.write(self.answer)
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()

    def got(self, header: str) -> list[str]:
        """Values of a header in all requests."""
        lines = [line for request in self.requests for line in request.split("\r\n")]
        return [line.partition(": ")[2] for line in lines if line.lower().startswith(header.lower() + ":")]


def posting(form: Form, job: str) -> HttpRequest:
    """The request that posts a form."""
    return HttpRequest(form.url, job=job, form=form)


@asynccontextmanager
async def sites(
    *each: Site,
    private: bool = True,
    ca_file: Path | None = None,
    may_ask: Callable[[], bool] = lambda: True,
    **fetch: Any,
) -> AsyncIterator[Client]:
    """Servers, and a client that may reach them; settings of `fetch` by name, and `proxies`."""
    serving: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def served(site: Site, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers.append(to_client)
        serving.add(asyncio.ensure_future(site.serve(from_client, to_client)))

    servers = [await asyncio.start_server(partial(served, site), site.address, 0) for site in each]
    for site, server in zip(each, servers, strict=True):
        site.origin = f"http://{site.address}:{server.sockets[0].getsockname()[1]}"
    base = Settings()
    chosen = {key: value(each) if callable(value) else value for key, value in fetch.items()}
    settings = base.model_copy(
        update={
            "exits": base.exits.model_copy(update={"proxies": chosen.pop("proxies", ())}),
            "fetch": base.fetch.model_copy(update=chosen),
            "network": base.network.model_copy(update={"allow_private": private, "ca_file": ca_file}),
        }
    )
    client = Client(settings, "tester", may_ask)
    try:
        yield client
    finally:
        await client.close()
        for server in servers:
            server.close()
        for _ in range(5):
            await asyncio.sleep(0)  # a connection that was accepted a moment ago comes to `served` some turns later
        if serving:
            await asyncio.wait(serving, timeout=1.0)  # each closes its side when it sees the client's end
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


Answer = tuple[int, str, bytes]
"""Status; content type, or the location of a redirect; body."""


class Threaded:
    """A server in a thread.

    Args:
        answer: To the path of a GET.
        etag: Of a path; who asks with it gets a 304.

    Attributes:
        heard: Path and headers of each request.
        came: Time, address of the client and path of each request.
        address: Of loopback: each address is a host and a domain of its own.
        coding: Of the body at a path.
    """

    def __init__(
        self,
        answer: Callable[[str], Answer],
        etag: Callable[[str], str] = lambda _: "",
        address: str = "127.0.0.1",
        coding: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.heard: list[tuple[str, dict[str, str]]] = []
        self.came: list[tuple[float, str, str]] = []
        heard, came = self.heard, self.came

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers as it is told."""

            def do_GET(self) -> None:
                """One answer."""
                came.append((time.monotonic(), str(self.client_address[0]), self.path))
                heard.append((self.path, dict(self.headers)))
                status, about, body = answer(self.path)
                tag = etag(self.path)
                if tag and self.headers["If-None-Match"] == tag:
                    status, body = 304, b""
                self.send_response(status)
                if tag:
                    self.send_header("ETag", tag)
                if said := coding(self.path):
                    self.send_header("Content-Encoding", said)
                self.send_header("Location" if 300 <= status < 400 else "Content-Type", about)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
                """Says nothing."""

        self._server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.origin = f"http://{address}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
