"""The place of a URL: registrable domain (partition key, scope), host key (politeness, queues) and partition.

Every producer of crawl.urls must agree on these, so the partitioner is Kafka's own and the suffix list is one
package's. Changing either changes which worker owns a domain: the fold's version must change with it.
"""

import re
import unicodedata
from functools import cache
from typing import NamedTuple

import xxhash
from publicsuffixlist import PublicSuffixList

_MASK = 0xFFFFFFFF
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
_DOTS = re.compile("[.\u3002\uff0e\uff61]")  # What separates labels (UTS 46 2.3)

_DEFAULT_PORTS = {"http": "80", "https": "443"}
# Search for the slash that ends an origin from here; also right for http://, whose host has at least one character.
_ORIGIN_FROM = len("https://")


class Place(NamedTuple):
    """The place to which a URL belongs.

    Attributes:
        domain: Registrable domain; for an IP address, a public suffix or a single label, the name itself.
        host: `scheme://name:port`, always with the port, the name without a final dot.
        partition: The partition in every topic keyed by domain.
        domain_hash, host_hash: xxh3_64 of both, as in the state's keys.
    """

    domain: str
    host: str
    partition: int
    domain_hash: int
    host_hash: int


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def registrable_domain(host: str) -> str:
    """The registrable domain of a host name, private suffixes included.

    Args:
        host: As WHATWG serialises it, so an IPv6 address has brackets. A final dot (the DNS root) is ignored.
    """
    name = host.lower().removesuffix(".")
    if not name or name[0] == "[" or (name[-1].isdigit() and _IPV4.fullmatch(name)):
        return name
    if name.isascii():
        return _suffixes().privatesuffix(name) or name
    return _unicode_domain(name)


def _unicode_domain(name: str) -> str:
    """As many labels of a name that is not ASCII as its ASCII form's registrable domain has."""
    labels = _DOTS.split(name.rstrip("."))
    domain = _suffixes().privatesuffix(".".join(_ascii_label(label) for label in labels))
    return ".".join(labels[-domain.count(".") - 1 :]) if domain else name


def _ascii_label(label: str) -> str:
    """A label as the suffix list has it; it is not checked whether it can be registered."""
    label = unicodedata.normalize("NFKC", label).lower()
    return label if label.isascii() else f"xn--{label.encode('punycode').decode()}"


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 of a key, unsigned."""
    m = 0x5BD1E995
    length = len(key)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for word in memoryview(key)[:whole].cast("I"):  # 3.5 µs for 68 bytes; `int.from_bytes` takes 5.5
        k = word * m & _MASK
        h = h * m & _MASK ^ ((k ^ k >> 24) * m & _MASK)
    if whole != length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & _MASK
    h = (h ^ h >> 13) * m & _MASK
    return h ^ h >> 15


def partition_of(domain: str, partitions: int) -> int:
    """A domain's partition."""
    return hashed_to(domain.encode(), partitions)


def hashed(name: str) -> int:
    """xxh3_64 of a host key or a registrable domain, as it stands in the keys of rows."""
    return xxhash.xxh3_64_intdigest(name.encode())


def hashed_to(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client gives a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Places:
    """The place of each URL, remembered by origin.

    Args:
        partitions: The number of partitions of the topics keyed by domain.
        cached: Origins remembered. One more forgets all of them; each then costs 10 µs again.
    """

    def __init__(self, partitions: int, cached: int = 65_536) -> None:
        self.partitions = partitions
        self._cached = cached
        self._by_origin: dict[str, Place] = {}

    def of(self, url: str) -> Place:
        """The place of a WHATWG-serialised http(s) URL."""
        origin = url[: url.find("/", _ORIGIN_FROM)]
        place = self._by_origin.get(origin)
        if place is None:
            place = self._remember(origin)
        return place

    def _remember(self, origin: str) -> Place:
        scheme, _, authority = origin.partition("://")
        authority = authority.rpartition("@")[2]
        name, colon, port = authority.rpartition(":")
        if not colon or authority.endswith("]"):
            name, port = authority, _DEFAULT_PORTS[scheme]
        if name.endswith(".") and not name.endswith(".."):
            name = name[:-1] or name  # a final dot is the DNS root: the same host
        domain = registrable_domain(name)
        host = f"{scheme}://{name}:{port}"
        place = Place(domain, host, partition_of(domain, self.partitions), hashed(domain), hashed(host))
        if len(self._by_origin) >= self._cached:
            self._by_origin.clear()
        self._by_origin[origin] = place
        return place
