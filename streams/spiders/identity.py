"""Identity of a request: 64 bits, made where the request is made; nothing else computes another one.

A GET is its canonical URL, whatever it carries: `id` in records is then the URL's fingerprint, or 0 without a request.
"""

from collections.abc import Collection

import xxhash

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.url import fingerprint


def request_id(url: str, request: RequestRecord, named: Collection[str] = ()) -> int:
    """Identity of a request that may be known already; that of its URL for a GET without body and named headers.

    Args:
        url: Canonical.
        named: Names of headers that tell requests apart, in lower case.
    """
    telling = sorted((name.lower(), value) for name, value in request.headers if name.lower() in named)
    method = request.method.upper()
    if method == "GET" and not request.body and not telling:
        return fingerprint(url)
    state = xxhash.xxh3_64()
    _add(state, url.encode(), method.encode(), request.body)
    for name, value in telling:
        _add(state, name.encode(), value.encode())
    return state.intdigest() or 1


def unfiltered_id(parent: int, attempt: int, filtered: int, count: int) -> int:
    """Identity of a request that is sent although its fingerprint may be known.

    It depends on the parent and on nothing of the parent's other outputs, so a page that is parsed twice gives the same
    identities in any order; and a chain of pages that ask for themselves moves.

    Args:
        parent: Identity of the page that gave it: its id, or its URL's fingerprint.
        attempt: Attempt of that page.
        filtered: Identity it would have if it were filtered.
        count: Requests of this identity that the page gave before.
    """
    state = xxhash.xxh3_64()
    _add(state, b"unfiltered", *(number.to_bytes(8, "big") for number in (parent, attempt, filtered, count)))
    return state.intdigest() or 1


def _add(state: "xxhash.xxh3_64", *parts: bytes) -> None:
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
