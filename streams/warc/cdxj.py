"""Lines of a CDXJ index as pywb reads them: SURT key, timestamp, JSON. Pure."""

import re
from datetime import UTC, datetime
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

import msgspec

_WWW = re.compile(r"www\d*\.")
_SAFE = "!\"$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_PATH_SESSION = re.compile(r"(.*/)\((?:(?:[a-z]\([0-9a-z]{24}\))+|[0-9a-z]{24})\)/([^?]+\.aspx.*)")
_QUERY_SESSIONS = tuple(
    re.compile(rf"(.*)(?:{one})(?:&(.*))?", re.IGNORECASE)
    for one in (
        "jsessionid=[0-9a-z]{32}",
        "phpsessid=[0-9a-z]{32}",
        "sid=[0-9a-z]{32}",
        "aspsessionid[a-z]{8}=[a-z]{24}",
        "cfid=[^&]+&cftoken=[^&]+",
    )
)
_PORTS = {"http": 80, "https": 443}


def surt(url: str) -> str:
    """The key of a canonical URL of http(s), by the rules of the Internet Archive's `surt`: pywb looks it up so."""
    parts = urlsplit(url)
    host = ",".join(reversed(_WWW.sub("", parts.hostname or "", count=1).split(".")))
    port = f":{parts.port}" if parts.port not in (None, _PORTS.get(parts.scheme)) else ""
    return f"{host}{port}){_path(parts.path)}{_query(parts.query)}"


def line(url: str, date: str, fields: dict[str, str]) -> bytes:
    """One line. Args: date: `WARC-Date`, whole seconds."""
    return b"%b %b %b\n" % (surt(url).encode(), re.sub(r"\D", "", date).encode(), msgspec.json.encode(fields))


def read(text: bytes) -> tuple[str, dict[str, str]]:
    """The date and the fields of a line that `line` made. Raises: ValueError: it did not."""
    _, stamp, fields = text.split(b" ", 2)
    date = datetime.strptime(stamp.decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return date.strftime("%Y-%m-%dT%H:%M:%SZ"), msgspec.json.decode(fields, type=dict[str, str])


def _plain(text: str) -> bytes:
    """Without escapes, also of escapes."""
    plain = text.encode()
    while (once := unquote_to_bytes(plain)) != plain:
        plain = once
    return plain


def _path(path: str) -> str:
    kept: list[bytes] = []
    for part in _plain(path).split(b"/")[1:]:
        if part == b".." and kept:
            kept.pop()
        elif part != b".":
            kept.append(part)
    *folders, last = kept or [b""]
    joined = quote_from_bytes(b"/".join((b"", *filter(None, folders), last)), safe=_SAFE).lower()
    if session := _PATH_SESSION.fullmatch(joined):
        joined = session[1] + session[2]
    return joined[:-1] if joined.endswith("/") and len(joined) > 1 else joined


def _query(query: str) -> str:
    query = quote_from_bytes(_plain(query), safe=_SAFE)
    for session in _QUERY_SESSIONS:
        if found := session.fullmatch(query):
            query = found[1] + (found[2] or "")
    query = "&".join("=".join(one) for one in sorted(tuple(one.split("=", 1)) for one in query.lower().split("&")))
    return f"?{query}" if query else ""
