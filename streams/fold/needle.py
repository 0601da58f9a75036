"""Finds the records of a log that may concern one registrable domain by their bytes, before decoding."""

import re

_OTHER_HOST = re.compile(rb'//[^/"?#]*%')
"""A host with an escape in it, which may spell any name."""

_OTHER_IP = re.compile(
    rb'//(?:[^/"?#]*@)?(?!(?:(?:0|[1-9]\d{0,2})\.){3}(?:0|[1-9]\d{0,2})[:/"?#])\d[0-9a-fx.]*[:/"?#]', re.IGNORECASE
)
"""A host that WHATWG may read as an IPv4 address."""


_IPV6 = re.compile(rb'//(?:[^/"?#]*@)?\[')
"""An IPv6 address, in whatever form."""

_OF_JOBS = re.compile(rb'"(?:spec|rewind|order)"')
"""Records that change jobs, whatever their domain."""


class Needle:
    """Tells by its bytes whether a record may concern a domain.

    A canonical URL contains its domain unchanged. A record that may spell the domain in another way (another script, an
    escape in the host or in the JSON, another form of an IP address) is decoded.
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain.encode()
        is_ipv4 = domain.rpartition(".")[2].isdigit()
        self._odd = _IPV6 if domain.startswith("[") else _OTHER_IP if is_ipv4 else _OTHER_HOST

    def may_concern(self, value: bytes | None) -> bool:
        """False only if the value has no URL of the domain and is no job record, order or epoch record."""
        if not value:
            return False
        if self._domain in value or not value.isascii() or b"\\" in value or _OF_JOBS.search(value) is not None:
            return True
        return self._domain in value.lower() or self._odd.search(value) is not None
