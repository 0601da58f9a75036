"""Proxies before one site, and a certificate for name.test."""

import asyncio
import ssl
import subprocess
from ipaddress import ip_address
from pathlib import Path

from tests.support.sites import Site


class Socks(Site):
    """A SOCKS proxy, of versions 4, 4a and 5 (RFC 1928, 1929), before one site; every name leads there.

    Args:
        user: `NAME:PASSWORD` that it wants.
        reply: What it answers instead of serving.
    """

    def __init__(self, site: Site, user: str = "", reply: int | None = None) -> None:
        super().__init__()
        self.site, self.user, self.reply = site, user, reply
        self.wanted: list[tuple[str, int]] = []

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            if (await from_client.readexactly(1)) == b"\x05":
                is_let_in = await self._five(from_client, to_client)
            else:
                is_let_in = await self._four(from_client, to_client)
        except asyncio.IncompleteReadError:
            is_let_in = False
        if is_let_in:
            await self.site.serve(from_client, to_client)
        to_client.close()

    async def _five(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        methods = await from_client.readexactly((await from_client.readexactly(1))[0])
        if (b"\x02" if self.user else b"\x00") not in methods:
            to_client.write(b"\x05\xff")
            return False
        to_client.write(b"\x05\x02" if self.user else b"\x05\x00")
        if self.user:
            await from_client.readexactly(1)
            said = [(await from_client.readexactly((await from_client.readexactly(1))[0])).decode() for _ in "ab"]
            to_client.write(b"\x01\x00" if ":".join(said) == self.user else b"\x01\x01")
            if ":".join(said) != self.user:
                return False
        kind = (await from_client.readexactly(4))[3]
        if kind == 3:
            name = (await from_client.readexactly((await from_client.readexactly(1))[0])).decode()
        else:
            name = str(ip_address(await from_client.readexactly(4 if kind == 1 else 16)))
        self.wanted.append((name, int.from_bytes(await from_client.readexactly(2), "big")))
        to_client.write(bytes((5, self.reply or 0, 0, 1, 127, 0, 0, 1, 0, 80)))
        return not self.reply

    async def _four(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        await from_client.readexactly(1)
        port, address = await from_client.readexactly(2), await from_client.readexactly(4)
        await from_client.readuntil(b"\0")
        name = str(ip_address(address))
        if address[:3] == b"\0\0\0":
            name = (await from_client.readuntil(b"\0"))[:-1].decode()
        self.wanted.append((name, int.from_bytes(port, "big")))
        to_client.write(bytes((0, self.reply or 0x5A, 0, 0, 0, 0, 0, 0)))
        return not self.reply


def certify(folder: Path) -> None:
    """key.pem, and cert.pem for name.test."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=name.test"]
    made += ["-addext", "subjectAltName=DNS:name.test", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)


async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    """All that comes on one line, to the other."""
    while data := await source.read(65536):
        to.write(data)
    to.close()


class Tunnel(Site):
    """A proxy that makes tunnels (RFC 9110 9.3.6), all to one port.

    Args:
        behind: Bytes that come in the same packet behind its answer.
    """

    def __init__(self, port: int, behind: bytes = b"") -> None:
        super().__init__()
        self.port, self.behind = port, behind

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One tunnel."""
        self.requests.append((await from_client.readuntil(b"\r\n\r\n")).decode())
        to_client.write(b"HTTP/1.1 200 OK\r\n\r\n" + self.behind)
        from_site, to_site = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await asyncio.gather(pump(from_client, to_site), pump(from_site, to_client))
        finally:
            to_site.transport.abort()


def server_tls(folder: Path) -> ssl.SSLContext:
    """A server's, for name.test."""
    certify(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
