"""`crawlog probe KIND`: asks the pure core; one JSON line in, one JSON line out, in order.

It needs no broker and no Faust. An invalid line, an empty one too, is answered with `{"error": …}`. A null field
counts as absent.
"""

import base64
import binascii
import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

import msgspec

from crawlog.schemas.urls import CanonicalRules
from crawlog.streams.html import Links, charset, extracted, sitemap
from crawlog.streams.printable import one_line
from crawlog.streams.requests import address_refusal, literal_refusal
from crawlog.streams.robots import RobotsRules
from crawlog.streams.url import Canonicaliser, InvalidUrl, Places, registrable_domain, serialise

if TYPE_CHECKING:
    from crawlog.agents.sandbox import Trial

_USAGE = 2
_LINK_SOURCES = ("a", "area")
_encode = msgspec.json.Encoder().encode
_ANY_HOST = "http://robots.invalid/"  # Base of the URLs in `robots` questions, which may be paths alone


class BadQuestion(ValueError):
    """The line does not fit its kind; the message says why."""


def _decode(line: bytes) -> dict[str, Any]:
    """A question. Unlike msgspec, json accepts lone surrogates, which pages contain and the URL standard covers."""
    if not line.strip():
        raise BadQuestion("the line is empty; a question is a JSON object")
    asked = json.loads(line)
    if not isinstance(asked, dict):
        raise BadQuestion("a question is a JSON object")
    return asked


def _text(asked: dict[str, Any], name: str, default: str | None = None) -> str:
    value = asked.get(name)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise BadQuestion(f"{name!r} must be a string")
    return value


def _body(asked: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(_text(asked, "body"), validate=True)
    except binascii.Error as error:
        raise BadQuestion(f"'body' is not base64: {error}") from None


def _normalize(asked: dict[str, Any]) -> dict[str, Any]:
    base = asked.get("base")
    return {"url": serialise(_text(asked, "url"), None if base is None else _text(asked, "base"))}


@lru_cache(256)
def _rules(body: bytes) -> RobotsRules:
    return RobotsRules.parse(body)


def _robots(asked: dict[str, Any]) -> dict[str, Any]:
    rules = _rules(_body(asked))
    url, token = _text(asked, "url"), _text(asked, "user_agent")
    with suppress(InvalidUrl):  # other schemes, such as ftp:, are judged as written
        url = serialise(url, _ANY_HOST)
    return {"allowed": rules.allowed(url, token)[0], "crawl_delay": rules.crawl_delay_s(token)}


@lru_cache(1)
def _trial() -> "Trial":
    from crawlog.agents.sandbox import Trial
    from crawlog.streams.settings import Parse

    return Trial(Parse())


class _AsWritten(Canonicaliser):
    """Applies no rule at all; every crawl applies at least `plain`."""

    def canonical(self, url: str, base: str | None = None) -> str:
        return serialise(url, base)


_places = Places(1)
_links_as_written = Links(_AsWritten(CanonicalRules(drop_params=())), _places, cached=2)


def _refusal(body: bytes, content_type: str, url: str) -> str:
    """The reason not to parse a page; empty if it may be parsed."""
    from crawlog.streams.errors import TrialError

    try:
        return _trial().refused(body, content_type, _places.of(url).domain)
    except TrialError as error:
        return str(error)


def _links(asked: dict[str, Any]) -> dict[str, Any]:
    url = serialise(_text(asked, "url"))
    body, content_type = _body(asked), _text(asked, "content_type", "")
    refusal = _refusal(body, content_type, url)
    if refusal:
        raise BadQuestion(refusal)
    page = extracted(body, content_type, url, _LINK_SOURCES)
    return {"links": [link.url for link in _links_as_written.resolve(page.base, page.hrefs)]}


def _domain(asked: dict[str, Any]) -> dict[str, Any]:
    return {"domain": registrable_domain(_text(asked, "host"))}


def _decoded(asked: dict[str, Any]) -> dict[str, Any]:
    encoding, text = charset.decode(_body(asked), _text(asked, "content_type", ""))
    return {"encoding": encoding, "text": text}


def _egress(asked: dict[str, Any]) -> dict[str, Any]:
    if asked.get("address") is not None:
        reason = address_refusal(_text(asked, "address"), allow_private=False)
    else:
        reason = _url_refusal(_text(asked, "url"))
    return {"allowed": reason is None, "reason": reason}


def _url_refusal(url: str) -> str | None:
    try:
        href = serialise(url)
    except InvalidUrl as error:
        return str(error)
    authority = href.partition("://")[2].partition("/")[0].rpartition("@")[2]
    name, colon, _ = authority.rpartition(":")
    host = name if colon and not authority.endswith("]") else authority
    return literal_refusal(host, allow_private=False)


def _sitemap(asked: dict[str, Any]) -> dict[str, Any]:
    url = serialise(_text(asked, "url"))
    listed = sitemap.parse(_body(asked), url, _text(asked, "content_type", ""))
    urls = [{"loc": one.loc, "lastmod": one.lastmod} if one.lastmod else {"loc": one.loc} for one in listed.urls]
    return {"urls": urls, "sitemaps": [one.loc for one in listed.sitemaps]}


KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "normalize": _normalize,
    "robots": _robots,
    "links": _links,
    "sitemap": _sitemap,
    "domain": _domain,
    "egress": _egress,
    "decode": _decoded,
}


def answer(kind: str, line: bytes) -> bytes:
    """The answer to one line, JSON without a line end.

    Raises: KeyError: there is no such kind.
    """
    handler = KINDS[kind]
    try:
        return one_line(_encode(handler(_decode(line))))
    except (ValueError, RecursionError) as error:  # the line causes all of these: bad JSON, a bad URL, a bad field
        return one_line(_encode({"error": str(error) or type(error).__name__}))


def run(kind: str, stdin: IO[bytes], stdout: IO[bytes]) -> int:
    """Answers every line of standard input, each at once; returns the exit code."""
    if kind not in KINDS:
        stdout.write(_encode({"error": f"no probe kind {kind!r}; there are: {', '.join(KINDS)}"}) + b"\n")
        return _USAGE
    for line in stdin:
        stdout.write(answer(kind, line) + b"\n")
        stdout.flush()
    return 0
