"""The proxy that a request names itself: the egress guard judges it, because any page may have given it.

    a record's `proxy` ─► one of the exits? ─ yes ─► used as it is
                              │ no
                              ▼
                          port, spelling, addresses of its name ─► refused, or used for this request alone

A proxy of the operator (`exits.proxies`) may have a private address, but only at the port that the setting names.
"""

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.exits import Exits
from crawlog.streams.http import Answer
from crawlog.streams.requests import Proxy, address_refusal, literal_refusal, method_refusal, port_refusal, read_proxy

from .connections import GuardedResolver, Refused
from .failures import lost_proxy, refused


class JudgedProxy(NamedTuple):
    """A request's proxy.

    Attributes:
        address: Where a SOCKS proxy is connected to; empty for the name itself.
        refusal: Why it is not used; empty if it is.
        is_lost: Whether its name has no address now.
    """

    proxy: Proxy
    address: str = ""
    refusal: str = ""
    is_lost: bool = False


class RequestProxies:
    """Judges the proxies of requests.

    Args:
        exits: Those of the worker.
        timeout_s: Time to resolve a proxy's name.
    """

    def __init__(self, exits: Exits, resolver: GuardedResolver, timeout_s: float) -> None:
        self._exits = exits
        self._resolver = resolver
        self._timeout_s = timeout_s

    async def judged(self, record: RequestRecord, allow_private: bool) -> JudgedProxy | None:
        """The proxy of a request; None if it names none.

        Args:
            allow_private: Whether its job and this worker may ask private addresses.
        """
        if not record.proxy:
            return None
        try:
            proxy = read_proxy(record.proxy)
        except ValueError as error:
            return JudgedProxy(Proxy(""), refusal=str(error))
        if (named := self._exits.proxy_at(proxy.url)) is not None:
            return JudgedProxy(proxy if proxy.user else named)
        name = urlsplit(proxy.url).hostname or ""
        refusal = port_refusal(proxy.url) or literal_refusal(name, allow_private)
        if refusal is not None:
            return JudgedProxy(proxy, refusal=refusal)
        if ":" in name or name.replace(".", "").isdigit():
            return JudgedProxy(proxy, name)
        return await self._resolved(proxy, name, allow_private)

    async def _resolved(self, proxy: Proxy, name: str, allow_private: bool) -> JudgedProxy:
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await self._resolver.addresses(name)
        except Refused as error:
            return JudgedProxy(proxy, refusal=str(error))
        except (OSError, TimeoutError):
            return JudgedProxy(proxy, is_lost=True)
        refusals = [address_refusal(address, allow_private) for address in addresses]
        if refused := next(filter(None, refusals), None):  # one is enough: any of them may be connected to
            return JudgedProxy(proxy, refusal=f"{name} resolves to {refused}")
        return JudgedProxy(proxy, addresses[0]) if addresses else JudgedProxy(proxy, is_lost=True)


def unsent(record: RequestRecord, judged: JudgedProxy | None) -> Answer | None:
    """The answer to a request that is not sent as its record says; None if it is sent."""
    if refusal := method_refusal(record.method):
        return refused(f"bad_method: {refusal}")
    if judged is None:
        return None
    if judged.refusal:
        return refused(f"bad_proxy: {judged.refusal}")
    return lost_proxy() if judged.is_lost else None
