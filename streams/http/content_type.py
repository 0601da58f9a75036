"""The type that a response says its body has, where it says several (Fetch, "extract a MIME type").

Servers and proxies add a second header, or join two values with a comma. Browsers take the last type.
"""

import re
from collections.abc import Sequence

from .sniff import essence

_VALUE = re.compile(r'(?:[^",]++|"(?:[^"\\]|\\.)*+(?:"|\\?\Z))++', re.DOTALL)
"""A part of a header between commas; a comma in quotes is none."""

_TYPE = re.compile(r"[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]*(?:;|\Z)")
_PARAMETER = re.compile(r';([^;="]*+)(?:=("(?:[^"\\]|\\.)*+"?[^;]*+|[^;]*+))?', re.DOTALL)


def said_type(headers: Sequence[str]) -> str:
    """The value of Content-Type that counts, as sent; empty where there is none.

    Of several types that is the last one which is valid and not `*/*`, with the charset of equal types before it if it
    has none. Without such a type it is the first header.
    """
    if not headers:
        return ""
    if len(headers) == 1 and "," not in headers[0]:  # nearly every response
        return headers[0]
    value = charset = ""
    for said in (one.strip(" \t") for header in headers for one in _VALUE.findall(header)):
        if _TYPE.match(said) is None or essence(said) == "*/*":
            continue
        own = _charset(said)
        charset = own or (charset if essence(said) == essence(value) else "")
        value = said if own or not charset else f"{said};charset={charset}"
    return value or headers[0]


def _charset(value: str) -> str:
    """The first charset of a value, as sent."""
    names = (found[2] or "" for found in _PARAMETER.finditer(value) if found[1].strip().lower() == "charset")
    return next(filter(None, names), "")
