"""A row of the state for people who compare two states: its kind, the parts of its key, its value."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from crawlog.schemas.urls import MAX_PRIORITY
from crawlog.streams.http import shown_found
from crawlog.streams.printable import HIDDEN

from . import rows as r


class DescribedRow(NamedTuple):
    """One row.

    Attributes:
        key: The parts of its key by name; hashes in hexadecimal.
        value: Its fields; of a page only the length.
    """

    kind: str
    key: dict[str, Any]
    value: Any


_KINDS = {
    b"m": ("meta", ()),
    b"j": ("job", (("job", 4),)),
    b"c": ("counts", (("job", 4),)),
    b"n": ("domain", (("job", 4), ("epoch", 2), ("domain", 8))),
    b"e": ("page", (("job", 4), ("epoch", 2), ("domain", 8), ("page", 4))),
    b"l": ("filter", (("job", 4), ("epoch", 2))),
    b"b": ("filter page", (("job", 4), ("epoch", 2), ("page", 4))),
    b"f": ("depth", (("job", 4), ("epoch", 2), ("domain", 8), ("fingerprint", 8))),
    b"g": ("host queue", (("job", 4), ("host", 8))),
    b"q": ("queued", (("job", 4), ("host", 8), ("priority", 4), ("sequence", 8))),
    b"w": ("waiting", (("job", 4), ("host", 8), ("sequence", 8))),
    b"d": ("due", (("job", 4), ("due_ms", 8), ("host", 8), ("sequence", 8))),
    b"h": ("host", (("host", 8),)),
    b"s": ("joined", (("job", 4),)),
    b"k": ("cookie jar", (("job", 4), ("domain", 8))),
    b"t": ("strays", (("job", 4), ("host", 8))),
    b"u": ("facets", (("job", 4), ("host", 8), ("path", 8))),
    b"v": ("hosts", (("job", 4), ("domain", 8))),
    b"p": ("parked", (("sequence", 8),)),
}
_HASHES = frozenset({"domain", "fingerprint", "host", "path"})

_VALUES: dict[str, Callable[[bytes], Any]] = {
    "page": lambda value: {"count": len(value) // 8},
    "filter page": lambda value: {"filter_bytes": len(value)},
    "parked": lambda value: shown_found(r.read_parked(value)),
    "cookie jar": lambda value: {
        "cookies": [{**cookie._asdict(), "value": HIDDEN} for cookie in r.read_jar(value).cookies]
    },
}

_STRUCTS = {
    "meta": r.read_meta,
    "job": r.read_job,
    "counts": r.read_counts,
    "domain": r.read_domain,
    "filter": r.read_domain,
    "host queue": r.read_host_queue,
    "queued": r.read_queued,
    "waiting": r.read_queued,
    "host": r.read_host,
}


def decoded(key: bytes, value: bytes) -> DescribedRow:
    """The row by names; a value that does not decode is shown in hexadecimal, for a compared state may be wrong."""
    kind, parts = _KINDS.get(key[:1], ("unknown", ()))
    named: dict[str, Any] = {}
    at = 1
    for name, size in parts:
        number = int.from_bytes(key[at : at + size], "big")
        named[name] = f"{number:016x}" if name in _HASHES else number
        at += size
    if key[at:]:
        named["name"] = key[at:].decode(errors="backslashreplace")
    if kind == "queued":
        named["priority"] = MAX_PRIORITY - named["priority"]
    return DescribedRow(kind, named, _value(kind, value))


def _value(kind: str, value: bytes) -> Any:
    if not value:
        return None
    try:
        if kind in _VALUES:
            return _VALUES[kind](value)
        read = _STRUCTS.get(kind)
        if read is not None:
            row = read(value)
            fields = {name: msgspec.to_builtins(getattr(row, name)) for name in row.__struct_fields__}
            if isinstance(row, r.QueueRow):  # a request may hold secrets
                fields["request"] = f"{len(row.request)} bytes" if row.request else ""
            return fields | {"few": len(row.few) // 8} if isinstance(row, r.DomainRow) else fields
        return msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, ValueError):
        return value.hex()
