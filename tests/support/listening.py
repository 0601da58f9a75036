"""A server that keeps whole requests, bodies included."""

import asyncio

from tests.support.raw_http import response
from tests.support.sites import Site


class Listener(Site):
    """Keeps every request whole, its body included.

    Args:
        said: The one answer.
    """

    def __init__(self, said: bytes = response(b"<p>x")) -> None:
        super().__init__()
        self.said = said
        self.bodies: list[bytes] = []

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = (await from_client.readuntil(b"\r\n\r\n")).decode()
                sizes = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length")]
                self.requests.append(head)
                self.bodies.append(await from_client.readexactly(int(sizes[0]) if sizes else 0))
                to_client.write(self.said)
        except asyncio.IncompleteReadError:
            to_client.close()

    def headers(self) -> dict[str, str]:
        """The headers of the latest request, by name in lower case."""
        lines = self.requests[-1].strip().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
