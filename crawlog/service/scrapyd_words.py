"""The wire of Scrapyd's API: the parameters of a request as it reads them, and its errors.

query, form ─► Arguments ─► one parameter after the other, in Scrapyd's words where one is missing or wrong
"""

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import BodyPartReader, web

from .routing import BODY_BYTES

MAX_FIELDS = 1_000  # Most parameters of a request

_CHUNK_BYTES = 1 << 18

T = TypeVar("T")


class ScrapydError(Exception):
    """A request that is refused; Scrapyd answers it with status 200 and a message."""


class Arguments:
    """Parameters of a request, taken one after the other; those that nobody took are arguments of the spider."""

    def __init__(self, fields: dict[bytes, list[bytes]]) -> None:
        self._fields = dict(fields)

    def text(self, name: str) -> str:
        """A parameter that is required; the first value counts."""
        return self._required(name, bytes.decode)

    def optional(self, name: str) -> str | None:
        """A parameter, or None."""
        return self.text(name) if name.encode() in self._fields else None

    def number(self, name: str, default: float) -> float:
        return self._required(name, float) if name.encode() in self._fields else default

    def content(self, name: str) -> bytes:
        return self._required(name, bytes)

    def texts(self, name: str) -> list[str]:
        """All values of a parameter."""
        values = self._fields.pop(name.encode(), [])
        return [_converted(name, value, bytes.decode) for value in values]

    def rest(self) -> dict[str, str]:
        """All others, the first value of each."""
        fields, self._fields = self._fields, {}
        texts = {_converted("a name", key, bytes.decode): values[0] for key, values in fields.items()}
        return {key: _converted(key, value, bytes.decode) for key, value in texts.items()}

    def _required(self, name: str, kind: Callable[[bytes], T]) -> T:
        values = self._fields.pop(name.encode(), None)
        if values is None:
            raise ScrapydError(f"'{name}' parameter is required")
        return _converted(name, values[0], kind)


def _converted(name: str, value: bytes, kind: Callable[[bytes], T]) -> T:
    try:
        return kind(value)
    except ValueError as error:
        raise ScrapydError(f"{name} is invalid: {error}") from error


async def arguments_of(request: web.Request, limit: int) -> Arguments:
    """The parameters of a request: those of its body replace those of its query.

    Args:
        limit: Longest body, bytes.

    Raises: ScrapydError: the body is too long, or no form.
    """
    fields = _fields(request.rel_url.raw_query_string.encode("utf-8", "surrogateescape"))
    try:
        if request.content_type == "application/x-www-form-urlencoded":
            fields |= _fields(await _body(request, min(limit, BODY_BYTES)))
        elif request.content_type == "multipart/form-data":
            fields |= await _parts(request, limit)
    except web.RequestPayloadError as error:
        raise ScrapydError("the body is not as its Transfer-Encoding says") from error
    except (ValueError, AssertionError, RuntimeError) as error:  # a part's Content-Transfer-Encoding is unknown
        raise ScrapydError(f"the form cannot be read: {error}") from error
    return Arguments(fields)


def _fields(encoded: bytes) -> dict[bytes, list[bytes]]:
    """The parameters by name, as bytes: what is no UTF-8 is told apart later. `;` separates them, too, as there."""
    encoded = encoded.replace(b";", b"&")
    pairs = [pair.partition(b"=") for pair in encoded.split(b"&", MAX_FIELDS) if b"=" in pair]
    if encoded.count(b"&") >= MAX_FIELDS:
        raise ScrapydError(f"more than {MAX_FIELDS} parameters")
    fields: dict[bytes, list[bytes]] = {}
    for name, _, value in pairs:
        fields.setdefault(_unquoted(name), []).append(_unquoted(value))
    return fields


def _unquoted(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


async def _body(request: web.Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit:
            raise ScrapydError(f"the form is longer than {limit >> 20} MiB")
    return bytes(body)


async def _parts(request: web.Request, limit: int) -> dict[bytes, list[bytes]]:
    fields: dict[bytes, list[bytes]] = {}
    size = count = 0
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or part.name is None:
            raise ScrapydError("the form has a part without a name")
        count += 1
        if count > MAX_FIELDS:
            raise ScrapydError(f"more than {MAX_FIELDS} parameters")
        body = bytearray()
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            body += chunk
            size += len(chunk)
            if size > limit:
                raise ScrapydError(f"the body is longer than {limit >> 20} MiB")
        fields.setdefault(part.name.encode("utf-8", "surrogateescape"), []).append(bytes(part.decode(body)))
    return fields
