"""Headers, logins, proxies and ciphers of requests.

Three rules protect secrets. A login is sent to the one origin it was given for (scheme, host and
port: RFC 6454), so to no other after a redirect. Cookies are kept by job and registrable domain, so none set for a
public suffix reaches another domain. A proxy's password goes to that proxy only. None of them is in a record or a log.
"""

import base64
import re
import ssl
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from crawlog.streams.url import InvalidUrl, plain, serialise

# Headers that crawlog sets, or that have their own setting.
OWN_HEADERS = frozenset(
    {"host", "user-agent", "authorization", "proxy-authorization", "cookie", "content-length", "transfer-encoding",
     "connection", "accept-encoding"}
)  # fmt: skip

# Replies of a SOCKS proxy that blame the host, not the proxy (RFC 1928 6; SOCKS 4 has only 91).
REACHED_NOT = frozenset({3, 4, 5, 6, 8, 91})

TUNNELLED_NOT = frozenset({502, 503, 504})  # Such statuses of an HTTP proxy that was asked for a tunnel

_header = re.compile(
    r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e\xa0-\xff](?:[\x20-\x7e\xa0-\xff]*[\x21-\x7e\xa0-\xff])?)?"
)


def read_header(text: str) -> tuple[str, str]:
    """Name and value of `Name: value` (RFC 9110 5).

    Raises: ValueError: it is none, or one that is not for a setting; the message does not repeat its value.
    """
    found = _header.fullmatch(text.strip())
    if found is None:
        raise ValueError("a header is `Name: value`, on one line of Latin-1")
    if found[1].lower() in OWN_HEADERS:
        raise ValueError(
            f"{found[1]} cannot be set here; see fetch.user_agent, fetch.logins, fetch.cookies, exits.proxies"
        )
    return found[1], found[2] or ""


def read_user_agent(text: str) -> str:
    """The value of a User-Agent header.

    Raises: ValueError: no header has it (RFC 9110 5.5: no line ends, no control characters; Latin-1 alone has bytes).
    """
    if not re.fullmatch(r"[\x20-\x7e\xa0-\xff]*", text):
        raise ValueError("a header is one line of Latin-1 without control characters")
    return text


class Login(NamedTuple):
    """A user of one origin."""

    origin: str
    header: str

    @property
    def user(self) -> str:
        return base64.b64decode(self.header.removeprefix("Basic ")).decode().partition(":")[0]


_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}


def origin_of(url: str) -> str:
    """`scheme://host:port` of a URL, in lower case, the port always written."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or _PORTS.get(scheme, 80)
    name = (parts.hostname or "").lower()
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def read_login(url: str) -> Login:
    """The login in `https://USER:PASSWORD@HOST[:PORT]`; parts may be percent-encoded.

    Raises: ValueError: there is none; the message does not repeat it.
    """
    try:
        parts = urlsplit(url.strip())
        origin = origin_of(plain(serialise(url)))
    except (ValueError, InvalidUrl):
        raise ValueError("a login is https://USER:PASSWORD@HOST[:PORT]") from None
    if parts.scheme not in ("http", "https") or not parts.username or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError("a login is https://USER:PASSWORD@HOST[:PORT]; what is reserved in it is percent-encoded")
    return Login(origin, basic(unquote(parts.username), unquote(parts.password or "")))


def without_login(href: str) -> tuple[str, str]:
    """A WHATWG-serialised URL without its user and password, and these as `read_login` takes them; empty without."""
    scheme, _, rest = href.partition("://")
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    if not at:
        return href, ""
    return f"{scheme}://{host}{slash}{path}", f"{scheme}://{login}@{host}" if login.partition(":")[0] else ""


def basic(user: str, password: str) -> str:
    """The value of an Authorization header (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Proxy(NamedTuple):
    """A proxy: its address, and the user there, if any. That of an exit worker has the scheme `exit`, and its nonce."""

    url: str
    user: str = ""
    password: str = ""

    @property
    def is_socks(self) -> bool:
        """Whether it connects for us, so that every byte is the site's: by SOCKS, or as an exit worker."""
        return self.url.startswith(("socks", "exit:"))

    @property
    def resolves(self) -> bool:
        """Whether it resolves names itself: all but `socks5` and `socks4`, as in curl."""
        return not self.url.startswith(("socks5:", "socks4:"))


def read_proxy(url: str) -> Proxy:
    """The proxy in `SCHEME://[USER:PASSWORD@]HOST[:PORT]`.

    Raises: ValueError: it is none; the message does not repeat it.
    """
    shape = f"a proxy is http://[USER:PASSWORD@]HOST[:PORT], or with one of {', '.join(_PORTS)}"
    try:
        parts = urlsplit(url.strip())
        origin = origin_of(url.strip())
    except ValueError:
        raise ValueError(shape) from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ValueError(shape)
    proxy = Proxy(origin, unquote(parts.username or ""), unquote(parts.password or ""))
    if proxy.is_socks and not (proxy.user + proxy.password).isascii():
        raise ValueError("the login of a SOCKS proxy may have ASCII characters only")
    return proxy


# The setting `network.tls`: which servers are spoken to over TLS 1.2.

COMPATIBLE, MODERN = "compatible", "modern"

# The ciphers of Chromium and of Python, those with forward secrecy first. Level 1 takes RSA keys of 1,024 bits.
_OF_CHROMIUM = (
    "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:RSA+AESGCM:RSA+AES:!aNULL:!eNULL:!aDSS:!aPSK:!AESCCM:@SECLEVEL=1"
)

# Takes servers without secure renegotiation. The hole is theirs, and it needs a client that renegotiates: ours never
# does.
_WITHOUT_RFC_5746 = getattr(ssl, "OP_LEGACY_SERVER_CONNECT", 0x4)  # Python names it since 3.12


def choose_ciphers(context: ssl.SSLContext, tls: str) -> None:
    """Sets the ciphers of a client's context, and whether it takes servers without RFC 5746.

    Args:
        tls: `compatible`, `modern`, or ciphers by OpenSSL's names, of which those without a certificate are left out.

    Raises: ssl.SSLError: none of the ciphers is known.
    """
    if tls == MODERN:
        return  # Python's own choice
    context.set_ciphers(_OF_CHROMIUM if tls == COMPATIBLE else f"{tls}:!aNULL:!eNULL")
    context.options |= _WITHOUT_RFC_5746
