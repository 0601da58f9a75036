"""The history of a URL in words: how it was found, which rule dropped it, what became of each attempt."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.urls import MAX_PRIORITY
from crawlog.streams.printable import HIDDEN, utc_text
from crawlog.streams.redaction import named_request, shown_found
from crawlog.streams.url import MAX_URL_LENGTH, Canonicaliser, Place

from . import rows as r


def in_epoch(epoch: int) -> str:
    """The epoch, in brackets; nothing for the first one."""
    return f" (epoch {epoch})" if epoch else ""


def found_by(found: u.FoundUrl) -> str:
    """Where a URL was found, and by which request it is asked for."""
    request = named_request(found.id, found.request)
    asked = f" ({request})" if request else ""
    if found.source == "seed":
        return f"as a seed{asked}"
    where = f" on {found.parent}" if found.source == "link" else f" from {found.parent}"
    hops = f" ({found.hops} in a row)" if found.hops > 1 else ""
    return f"by {found.source}{hops}{where}{asked}"


def attempted(result: u.Result) -> str:
    """An attempt and what came of it."""
    request = f" of id {result.id:016x}" if result.id else ""
    parts = [f"attempt {result.attempt}{request}: {result.status}"]
    if result.http is not None:
        parts.append(f"HTTP {result.http}")
    if result.rule:
        parts.append(f"by {result.reason}: {result.rule}" if result.reason else f"by {result.rule}")
    elif result.reason:
        parts.append(result.reason)
    if result.cookies:
        names = ", ".join(f"{'-' if one.gone else ''}{one.name}" for one in result.cookies[:5])
        parts.append(f"cookies {names}" + (f" and {len(result.cookies) - 5} more" if result.cookies[5:] else ""))
    if result.took_s:
        parts.append(f"{result.took_s:.3f} s")
    if result.next_at > 0:
        parts.append(f"again in {result.delay_s:.1f} s")
    if result.host_wait_s:
        parts.append(f"the host rests {result.host_wait_s:.1f} s")
    return ", ".join(parts)


def dropping_rules(spec: u.JobSpec) -> str:
    """A job's rules in a line: those that may drop a URL."""
    names = ", ".join(spec.scope.names[:3]) + (", …" if len(spec.scope.names) > 3 else "")
    parts = [f"scope {spec.scope.kind}" + (f" ({names})" if names else "")]
    for name, value in (
        ("include", spec.scope.include),
        ("exclude", spec.scope.exclude),
        ("depth ≤", spec.max_depth),
        ("pages ≤", spec.max_pages),
        ("per domain ≤", spec.max_pages_per_domain),
    ):
        if value is not None and value != ():
            parts.append(f"{name} {' '.join(value) if isinstance(value, tuple) else value}")
    return ", ".join(parts) + ("" if spec.state == "running" else f"; {spec.state}")


def explained(verdict: str, rule: str, spec: u.JobSpec, found: u.FoundUrl, place: Place) -> str:
    """A verdict of the fold in words, with the value of the rule that decided."""
    if verdict == "queued":
        again = ", although it is done: it is asked for again" if found.again else ""
        eta = f", to be fetched from {utc_text(found.eta)} on" if found.eta > 0 else ""
        return f"queued{again}{eta}" + (f", not after {utc_text(found.expires)}" if found.expires > 0 else "")
    if verdict == "known":
        return "known already"
    if verdict == "nearer":
        return "known, but found nearer: its depth was lowered"
    scope, traps = spec.scope, spec.traps
    strays = f"and {place.host} has had its strays (traps.strays {traps.strays})"
    said = {
        "scope": f"{place.domain if scope.kind == 'domain' else place.host} is not in scope {scope.kind}",
        "depth": f"depth {found.depth} is over {spec.max_depth}",
        "redirects": f"{found.hops} redirects in a row are over {spec.max_redirects}",
        "url_length": f"longer than {min(spec.max_url_length, MAX_URL_LENGTH)} characters",
        "exclude": f"matches scope.exclude {' '.join(scope.exclude)}",
        "include": f"matches none of scope.include {' '.join(scope.include)}",
        "domain_budget": f"{place.domain} has had its {spec.max_pages_per_domain} URLs",
        "trap_params": f"{traps.max_params} query parameters or more",
        "trap_path": f"over {traps.max_segments} path segments, or one of them over {traps.max_repeats} times",
        "trap_hosts": f"{place.domain} has had its {traps.hosts} hosts",
        "trap_session": "its page is known with another session id, or with none",
        "trap_calendar": f"a date found on a date, {strays}",
        "trap_facets": f"another combination of the same parameters, {strays}",
        "trap_query": f"its query grows from page to page, {strays}",
        "trap_depth": f"its path grows from page to page, {strays}",
        "trap_repeats": f"it repeats the path of the page it was found on, {strays}",
    }.get(rule, "")
    return f"dropped by {rule}" + (f": {said}" if said else "")


def acting(rules: u.CanonicalRules, url: str) -> tuple[str, ...]:
    """Names of the canonical rules that change a URL, each tried alone."""
    off = u.CanonicalRules(drop_params=())
    plain = Canonicaliser(off).canonical(url)
    alone = (
        (name, Canonicaliser(msgspec.structs.replace(off, **{name: getattr(rules, name)})).canonical(url))
        for name in u.CanonicalRules.__struct_fields__
    )
    return tuple(f"canonical.{name}" for name, changed in alone if changed != plain)


# A row of the state for people who compare two states: its kind, the parts of its key, its value.


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
    b"b": ("filter block", (("job", 4), ("epoch", 2), ("filter", 1), ("block", 4))),
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
    "filter": lambda value: {"urls": msgspec.msgpack.decode(value)},
    "filter block": lambda value: {"bits_set": int.from_bytes(value, "little").bit_count()},
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
