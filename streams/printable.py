"""Text that is safe to show: without the control characters of pages and records, and without secrets."""

import re
from datetime import UTC, datetime, tzinfo

HIDDEN = "********"

LAST_S = 253_402_000_000.0  # A moment of the year 9999, UTC epoch seconds: no calendar here knows much later ones

_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}

# C0, DEL, C1; characters that change the text direction; line and paragraph separators; lone surrogates.
_control = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """The text on one line, with control characters escaped as in JSON; escaped JSON keeps its data."""
    return text if text.isprintable() else _control.sub(_written, text)


def shown_time(at: float, zone: tzinfo | None = UTC) -> datetime:
    """A time of a record, which anybody may have written: within the years 1970 to 9999.

    Args:
        at: UTC epoch seconds.
        zone: None for this machine's time.
    """
    return datetime.fromtimestamp(min(max(at, 0.0), LAST_S), zone)


def utc_text(at: float) -> str:
    """The same in UTC, to the second."""
    return f"{shown_time(at):%Y-%m-%d %H:%M:%S}"


def iso_text(at: float) -> str:
    """The same by ISO 8601, to the millisecond: `2026-11-29T05:10:11.250Z`."""
    return shown_time(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_line(line: bytes) -> bytes:
    """JSON with three non-ASCII characters escaped at which some readers end a line (`str.splitlines`)."""
    if b"\xc2\x85" in line:
        line = line.replace(b"\xc2\x85", b"\\u0085")
    if b"\xe2\x80" in line:
        line = line.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return line


def without_secrets(url: str) -> str:
    """A URL with user, password and query hidden; the path stays."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    place, mark, _ = rest.partition("?")
    login, at, host = place.rpartition("@")
    return f"{scheme}://{HIDDEN if login else ''}{at}{host}{mark}{HIDDEN if mark else ''}"


def _written(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
