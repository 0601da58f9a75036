"""One spelling per page: WHATWG serialisation, then the job's canonical rules, then the fingerprint.

The frontier stores, fetches and fingerprints the canonical URL. A change here changes which URLs are the same page, so
the fold's version must change with it.
"""

import re

import ada_url
import can_ada
import xxhash

from crawlog.schemas.urls import CanonicalRules

from .place import registrable_domain

_SCHEMES = ("http://", "https://")

# A path segment such as `.git`: can_ada does not resolve `.` and `..` in a path that has one.
_DOT_NAME = re.compile(r"[/\\]\.(?:[^./\\?#]|\.[^/\\?#])")

_SENDABLE = re.compile(r"[hH][tT][tT][pP][sS]?://[!-~]+")  # ASCII without spaces and control characters

# URLs that are their own serialisation: a name of letters without a port, no segment that begins with a dot. To see it
# costs a third of parsing the URL; nearly all absolute links are such.
_SERIALISED = re.compile(
    r"https?://(?:(?!xn--)[a-z0-9-]+\.)*+(?!xn--)[a-z][a-z0-9-]*+"
    r"(?:/(?!\.|%2[eE])[A-Za-z0-9_.~!$&()*+,;=:@%-]*+)++(?:\?[A-Za-z0-9_.~!$&()*+,;=:@%/?-]*+)?+"
)

_AUTHORITY = re.compile(r"[^/?\\]*")

_ESCAPED_HOST = re.compile(r"[^/\\?#]*[\t\n\r/\\]*[^/\\?#]*%")


_HOST_FROM = len("https://")

# Parameters that hold a session id, in upper or lower case, if their value looks like one.
SESSION_PARAMS = (
    "PHPSESSID",
    "JSESSIONID",
    "ASPSESSIONID*",
    "ASP.NET_SessionId",
    "CFID",
    "CFTOKEN",
    "osCsid",
    "zenid",
    "SESSIONID",
    "SESSION_ID",
    "SESSID",
    "SID",
)

# At least six letters and digits with a digit among them: `sid=news` is a page, `sid=4` its number.
_SESSION_PARAM = re.compile(
    "[?&](?:" + "|".join(re.escape(name).replace("\\*", "[^&=]*") for name in SESSION_PARAMS) + ")"
    "=(?=[^&]{0,200}[0-9])[0-9A-Za-z_.,-]{6,200}(?=&|$)",
    re.IGNORECASE,
)

# A path parameter, or ASP.NET's cookieless form `/(S(...))/`.
_SESSION_PATH = re.compile(
    r";(?:(?:jsessionid|phpsessid|sessionid)=[^/;]*|sid=(?=[^/;]{0,200}[0-9])[0-9A-Za-z_.,!-]{6,200}(?=[/;]|$))"
    r"|/\((?:[A-Z]\([0-9A-Za-z]{8,}\))+\)(?=/)",
    re.IGNORECASE,
)


class InvalidUrl(ValueError):
    """Not a URL, or not an http or https URL; the message is for people."""


def fingerprint(url: str) -> int:
    """Unsigned 64-bit fingerprint of a canonical URL: xxh3_64 of its UTF-8 bytes."""
    return xxhash.xxh3_64_intdigest(url.encode())


def serialise(url: str, base: str | None = None) -> str:
    """The URL as WHATWG serialises it, joined with `base`, without its fragment.

    Raises: InvalidUrl: it cannot be parsed, or its scheme is neither http nor https.
    """
    href = _absolute(url) if base is None else _joined(base, url)
    if not href.startswith(_SCHEMES):
        raise InvalidUrl(f"neither http nor https: {url[:200]!r}")
    return href[: href.index("#")] if "#" in href else href


def plain(href: str) -> str:
    """A serialised URL without login and without the final dot of its host: both lead to the same page.

    A login in a link or a redirect is never sent or stored, and a page has one spelling instead of one for each user. A
    host name that ends in several dots does not exist; it stays as it is.
    """
    if "@" not in href and "./" not in href and ".:" not in href:
        return href
    scheme, _, rest = href.partition("://")
    authority, slash, path = rest.partition("/")
    name, colon, port = authority.rpartition("@")[2].partition(":")
    if name.endswith(".") and not name.endswith("..") and name != ".":
        name = name[:-1]
    return f"{scheme}://{name}{colon}{port}{slash}{path}"


def joined_base(href: str, url: str) -> str:
    """The base URL of a page's links (WHATWG HTML 4.2.3); it may have any scheme but data and javascript.

    Args:
        href: The attribute of the page's `base` element.
        url: The URL of the page, used if `href` is not a URL or has one of those schemes.
    """
    try:
        base = _joined(url, href)
    except InvalidUrl:
        return url
    return url if base.startswith(("data:", "javascript:")) else base.partition("#")[0]


def _absolute(url: str) -> str:
    """The URL by the fast parser (can_ada), if the slower one (ada_url) gives the same; else by the slower one.

    can_ada follows an older standard: it has other IDNA tables (so ASCII names only) and does not escape `^`. It also
    does not resolve dot segments in a path with names that begin with a dot.
    """
    if (
        url.isascii()
        and "^" not in url
        and ("%" not in url or _ESCAPED_HOST.match(url) is None)
        and ("/." not in url or _DOT_NAME.search(url) is None)
    ):
        try:
            href = can_ada.parse(url).href
        except ValueError:
            return _joined(None, url)
        if "xn--" not in href:
            return href
    return _joined(None, url)


def _joined(base: str | None, url: str) -> str:
    try:
        if base is None:
            return ada_url.normalize_url(_scalars(url))
        return ada_url.join_url(_scalars(base), _scalars(url))
    except ValueError:
        raise InvalidUrl(f"not a URL: {url[:200]!r}") from None


def _scalars(text: str) -> str:
    """The text as WHATWG reads it: a lone surrogate is U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def verbatim(url: str) -> str:
    """The URL as written, without fragment and login: only its origin is serialised, and a missing path is `/`.

    Raises: InvalidUrl: as `serialise`; or the URL has characters that no request line may have.
    """
    if _SERIALISED.fullmatch(url):
        return url
    url = url.partition("#")[0]
    if not _SENDABLE.fullmatch(url):
        raise InvalidUrl(f"not a URL as it is sent: {url[:200]!r}")
    href = plain(serialise(url))
    rest = url[url.index("//") :].lstrip("/\\")
    path = rest[len(_AUTHORITY.match(rest)[0]) :]  # type: ignore[index]  # it matches nothing, too
    origin = href[: href.index("/", _HOST_FROM)]
    return origin + (path if path.startswith("/") else f"/{path}")


class Canonicaliser:
    """Turns spellings into canonical URLs by one job's rules."""

    def __init__(self, rules: CanonicalRules) -> None:
        self._rules = rules
        self._dropped = _dropped_pattern(rules.drop_params)
        names = "|".join(re.escape(name) for name in rules.index_files)
        self._index = re.compile(f"/(?:{names})$") if names else None
        self._rewrites = bool(
            rules.drop_sessions or rules.sort_query or rules.index_files or rules.drop_www or rules.drop_slash
        )
        self._is_plain = not (self._rewrites or rules.verbatim)

    def canonical(self, url: str, base: str | None = None) -> str:
        """The canonical URL.

        Raises: InvalidUrl: as `serialise`.
        """
        if self._is_plain and base is None and _SERIALISED.fullmatch(url):
            return self.dropped(url) if "?" in url else url
        if self._rules.verbatim:
            return verbatim(url if base is None else serialise(url, base))
        href = self.dropped(plain(serialise(url, base)))
        return self._rewritten(href) if self._rewrites else href

    def dropped(self, href: str) -> str:
        """A URL without the parameters that the job drops; the rest is unchanged."""
        if self._dropped is None or "?" not in href:
            return href
        path, _, query = href.partition("?")
        if self._dropped.search("&" + query) is None:
            return href
        kept = [param for param in query.split("&") if self._dropped.match("&" + param) is None]
        rest = "&".join(kept)
        return f"{path}?{rest}" if rest else path

    def _rewritten(self, href: str) -> str:
        """Apply the rules that are off by default until none changes the URL: one rule may make another apply."""
        while (other := self._once(href)) != href:
            href = serialise(other)
        return href

    def _once(self, href: str) -> str:
        rules = self._rules
        if rules.drop_sessions:
            href = sessionless(href)
        if rules.drop_www:
            href = _without_www(href)
        path, mark, query = href.partition("?")
        if rules.drop_slash and path.endswith("/"):
            root = path.index("/", _HOST_FROM)
            path = path[:root] + (path[root:].rstrip("/") or "/")
        if self._index is not None:
            path = self._index.sub("/", path)
        if rules.sort_query and "&" in query:
            query = "&".join(sorted(query.split("&"), key=_param_name))
        return f"{path}{mark}{query}"


def sessionless(href: str) -> str:
    """A canonical URL without session ids in parameters and path; nearly every URL is unchanged."""
    path, mark, query = href.partition("?")
    if ";" in path or "(" in path:
        href = _SESSION_PATH.sub("", path) + mark + query
    if "?" not in href or _SESSION_PARAM.search(href) is None:
        return href
    path, _, query = href.partition("?")
    rest = "&".join(param for param in query.split("&") if _SESSION_PARAM.match("&" + param) is None)
    return f"{path}?{rest}" if rest else path


def _param_name(param: str) -> str:
    return param.partition("=")[0]


def _without_www(href: str) -> str:
    """A URL without a leading `www.`, unless `www` is a part of the registered name."""
    start = href.index("/") + 2
    if not href.startswith("www.", start):
        return href
    host = href[start : href.index("/", start)].partition(":")[0]
    if host.startswith("www.."):
        return href
    return href if registrable_domain(host) == host else href[:start] + href[start + 4 :]


def _dropped_pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    """Matches `&` and a dropped parameter's name; None when nothing is dropped."""
    if not names:
        return None
    forms = [re.escape(name[:-1]) + "[^&=]*" if name.endswith("*") else re.escape(name) for name in names]
    return re.compile(f"&(?:{'|'.join(forms)})(?=[=&]|$)")
