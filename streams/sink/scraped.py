"""Items as scraped to plain rows, without the spider's classes: for exports of jobs whose items pass pipelines.

    {"$item": {"$object": ["shop:Book", {"price": {"$decimal": "1.50"}}]}} ─► {"price": "1.50"}

`streams/spiders/values.py` has the tags. A row that is plain already stays as it is.
"""

import base64
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def plain_row(item: bytes) -> bytes:
    """The row of a raw item: a JSON object.

    Raises: ValueError: not JSON, or no object.
    """
    row = _plain(_decode(item))
    if not isinstance(row, dict):
        raise ValueError(f"an item is not a JSON object: {item[:80]!r}")  # noqa: TRY004  # the record is wrong
    return _encode(row)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (tag := next(iter(value))).startswith("$"):
        return _untagged(tag, value[tag])
    return {key: _plain(one) for key, one in value.items()}


def _untagged(tag: str, content: Any) -> Any:
    if tag in ("$bytes", "$text") and isinstance(content, str):
        return base64.b64decode(content).decode(errors="replace")
    if tag == "$int" and isinstance(content, str):
        return str(int(content, 16))  # not every reader of JSON has integers of this size
    if tag == "$dict" and isinstance(content, list):
        return {str(_plain(key)): _plain(one) for key, one in content}
    if tag == "$timedelta" and isinstance(content, list):
        days, seconds, microseconds = content
        return days * 86_400 + seconds + microseconds / 1e6
    is_of_class = isinstance(content, list) and len(content) == 2 and isinstance(content[0], str)
    if is_of_class and tag not in ("$tuple", "$set", "$frozenset"):
        return _plain(content[1])
    return _plain(content)
