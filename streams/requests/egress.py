"""The addresses and ports that may be connected to: the public internet; private networks only if the user allows.

Checked three times, because each check alone can be evaded: the host of a URL (an IP literal needs no resolver), every
address that a name resolves to, and the address of the connected peer. Cloud metadata addresses are never allowed.
"""

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from crawlog.streams.url import serialise

IPv4 = ipaddress.IPv4Address
IPv6 = ipaddress.IPv6Address

_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254", "fe80::a9fe:a9fe",  # most, OpenStack among them
        "fd00:ec2::254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23",  # Amazon, and its containers' credentials
        "fd20:ce::254",  # Google
        "168.63.129.16",  # Azure's WireServer, a public address
        "192.0.0.192", "fd00:c1::a9fe:a9fe",  # Oracle
        "100.100.100.200",  # Alibaba
        "169.254.0.23",  # Tencent
        "169.254.42.42", "fd00:42::42",  # Scaleway
    )
)  # fmt: skip
_METADATA_NAMES = frozenset(
    (
        "metadata", "metadata.goog", "metadata.google.internal",  # Google
        "instance-data", "instance-data.ec2.internal",  # Amazon
        "metadata.tencentyun.com", "api.metadata.cloud.ibm.com", "rancher-metadata",
        "metadata.packet.net", "metadata.platformequinix.com",
    )
)  # fmt: skip
_PRIVATE_NAMES = ("localhost", "internal")

_V4_REFUSED = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
# All global unicast addresses; other IPv6 addresses are refused unless they hold an IPv4 address.
_V6_PUBLIC = ipaddress.IPv6Network("2000::/3")
_V6_REFUSED = tuple(ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_MAPPED = tuple(ipaddress.IPv6Network(text) for text in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


# Ports of other protocols (Fetch 2.9, port blocking): a mail server would read our request as its own commands.
_BAD_PORTS = frozenset(
    (
        0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109,
        110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530,
        531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190,
        5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
    )
)  # fmt: skip


def port_refusal(origin: str) -> str | None:
    """Why a port is refused; None if it is allowed, as the default ports of http and https are.

    Args:
        origin: Of a canonical URL, `http://name:port`; without a port where it is the scheme's own.
    """
    port = origin.rpartition(":")[2]
    return f"port {port} is another protocol's" if port.isdigit() and int(port) in _BAD_PORTS else None


def literal_refusal(host: str, allow_private: bool) -> str | None:
    """Why a URL's host is refused without asking DNS; None if its spelling allows it.

    Args:
        host: A host name or IP literal in any spelling that a URL may have; IPv6 with or without brackets.
    """
    name = _whatwg(host)
    if name is None:
        return f"not a host: {host[:100]!r}"
    address = name.strip("[]")
    if _parsed(address) is not None:
        return address_refusal(address, allow_private)
    name = name.removesuffix(".")
    if name in _METADATA_NAMES:
        return f"metadata name {name}"
    if not allow_private and name.rpartition(".")[2] in _PRIVATE_NAMES:
        return f"private name {name}"
    return None


def address_refusal(address: str, allow_private: bool) -> str | None:
    """Why an address is refused; None if it is allowed.

    Args:
        address: As a resolver or a socket gives it; an IPv6 zone (`%eth0`) does not count.
    """
    ip = _parsed(address.partition("%")[0])
    if ip is None:
        return f"not an address: {address[:100]!r}"
    inside = _inside(ip) if isinstance(ip, IPv6) else None
    if ip in _METADATA or inside in _METADATA:
        return f"metadata address {ip}"
    if allow_private:
        return None
    return None if _is_public(ip, inside) else f"private address {ip}"


def _is_public(ip: IPv4 | IPv6, inside: IPv4 | None) -> bool:
    if isinstance(ip, IPv4):
        return not any(ip in network for network in _V4_REFUSED)
    if inside is not None and (any(ip in network for network in _MAPPED) or ip in _LOCAL_NAT64):
        return _is_public(inside, None)
    return ip in _V6_PUBLIC and not any(ip in network for network in _V6_REFUSED)


def _inside(ip: IPv6) -> IPv4 | None:
    """The IPv4 address inside an IPv6 address; None if there is none."""
    packed = ip.packed
    if ip in _LOCAL_NAT64:  # RFC 6052 2.2, prefix of 48 bits; any other layout there is unknowable
        return IPv4(packed[6:8] + packed[9:11]) if not packed[8] and not any(packed[11:]) else None
    if ip in _SIX_TO_FOUR:
        return IPv4(packed[2:6])
    if ip in _TEREDO:
        return IPv4(bytes(byte ^ 0xFF for byte in packed[12:]))
    if ip in _COMPATIBLE or any(ip in network for network in _MAPPED):
        return IPv4(packed[12:])
    return None


def _parsed(address: str) -> IPv4 | IPv6 | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


@lru_cache(4096)
def _whatwg(host: str) -> str | None:
    """A host as a canonical URL has it: `0x7f.1` is 127.0.0.1; None when no URL may have it."""
    if ":" in host and not host.startswith("["):
        host = f"[{host.partition('%')[0]}]"
    if any(char in host for char in "/?#@\\"):
        return None
    try:
        return urlsplit(serialise(f"http://{host}/")).hostname or None
    except ValueError:
        return None
