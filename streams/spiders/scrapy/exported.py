"""Items as rows, by the rules of Scrapy's feed exports; or as tagged values, for the pipelines' process.

item ─┬─ no pipelines ─► fields, serializers, Scrapy's JSON encoder ─► row
└─ pipelines ────► values with their class ─► crawl.items ─► pipelines ─► row
"""

import json
from typing import Any

import msgspec
from scrapy.exporters import BaseItemExporter
from scrapy.settings import BaseSettings
from scrapy.utils.serialize import ScrapyJSONEncoder

from ..values import as_json
from .feeds import fields_of
from .kinds import Kinds


class _Fields(BaseItemExporter):
    """Scrapy's choice and serialisation of fields, without a file."""

    def export_item(self, item: Any) -> None:
        """Nothing: only the fields are used."""


class Exporter:
    """Makes rows of items.

    Args:
        settings: FEED_EXPORT_FIELDS, or FEEDS, name the fields and their order.
    """

    def __init__(self, settings: BaseSettings) -> None:
        self._fields = _Fields(fields_to_export=fields_of(settings))
        self._encoder = ScrapyJSONEncoder()

    def row(self, item: Any) -> msgspec.Raw:
        """An item as a row: a JSON object.

        Raises: TypeError: JSON has no such value. ValueError: it holds itself. Any exception of a project's serializer.
        """
        text = self._encoder.encode(dict(self._fields.get_serialized_fields(item)))
        if any(mark in text for mark in _NO_JSON):
            text = json.dumps(as_json(json.loads(text)))
        return msgspec.Raw(text.encode())


_NO_JSON = ("NaN", "Infinity", "\\ud")
"""Marks of what Scrapy's encoder writes and JSON does not have: such numbers, and lone surrogates."""


def raw_item(item: Any, kinds: Kinds) -> msgspec.Raw:
    """An item for the pipelines' process, with its class.

    Raises: TypeError: a value cannot travel.
    """
    return msgspec.Raw(msgspec.json.encode({"$item": kinds.values.packed(item, "the item")}))


def item_of(raw: bytes, kinds: Kinds) -> Any:
    """The item of `raw_item`. Raises: ValueError: not of this form, or of a class that the project does not have."""
    content = msgspec.json.decode(raw)
    if type(content) is not dict or "$item" not in content:
        raise ValueError("no raw item")
    return kinds.values.unpacked(content["$item"])
