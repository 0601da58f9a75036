"""Items as rows, by the rules of Scrapy's feed exports, with the fields of FEEDS and FEED_EXPORT_FIELDS.

`fields` of each feed ─┬─ alike ─► fields of the rows
FEED_EXPORT_FIELDS ────┴─ where feeds differ, or have none
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from scrapy.exporters import BaseItemExporter
from scrapy.settings import BaseSettings
from scrapy.utils.serialize import ScrapyJSONEncoder

from ..values import as_json
from .kinds import Kinds

Fields = Iterable[str] | Mapping[str, str] | None  # Names of fields, or names with those of the row; None for all

# Keys of a feed that change what is written in Scrapy and have no effect here, with the way.
UNUSED = {
    "batch_item_count": "an output is one file",
    "encoding": "outputs are written in UTF-8",
    "item_classes": "each item is a row; a pipeline that raises DropItem leaves items out",
    "item_export_kwargs": "outputs are written by crawlog",
    "item_filter": "each item is a row; a pipeline that raises DropItem leaves items out",
    "postprocessing": "outputs are written by crawlog",
}


def fields_of(settings: BaseSettings) -> Fields:
    """The fields on which all feeds agree; else FEED_EXPORT_FIELDS."""
    first, *others = _all_fields(settings)
    return first if all(_is_same(first, fields) for fields in others) else _of_settings(settings)


def notes(settings: BaseSettings) -> Iterator[str]:
    """A line for each key of the feeds that has no effect."""
    first, *others = _all_fields(settings)
    if not all(_is_same(first, fields) for fields in others):
        yield "FEEDS: the feeds have different fields: rows have those of FEED_EXPORT_FIELDS"
    for key, way in UNUSED.items():
        given = [feed[key] for feed in _feeds(settings) if feed.get(key)]
        if not all(key == "encoding" and is_utf_8(one) for one in given):
            yield f"FEEDS: {key} has no effect: {way}"


def files(settings: BaseSettings) -> Iterator[str]:
    """The files that FEEDS and FEED_URI name; `FILE.jsonl` for one that `-o` cannot name."""
    for uri in filter(None, (*settings.getdict("FEEDS"), settings.get("FEED_URI"))):
        name = str(uri).removeprefix("file://")
        yield name if name.endswith((".jsonl", ".json", ".csv")) and not {"%", ":"} & set(name) else "FILE.jsonl"


def is_utf_8(encoding: Any) -> bool:
    """Whether an encoding is that of the outputs; None and "" are Scrapy's for UTF-8."""
    return not encoding or str(encoding).lower().replace("_", "-") in ("utf-8", "utf8")


def _feeds(settings: BaseSettings) -> list[Mapping[str, Any]]:
    return [feed for feed in settings.getdict("FEEDS").values() if isinstance(feed, Mapping)]


def _all_fields(settings: BaseSettings) -> list[Fields]:
    """The fields of each feed; those of FEED_EXPORT_FIELDS where there is none."""
    usual = _of_settings(settings)
    return [feed.get("fields", usual) for feed in _feeds(settings)] or [usual]


def _of_settings(settings: BaseSettings) -> Fields:
    given = settings.get("FEED_EXPORT_FIELDS")
    if isinstance(given, Iterable) and not isinstance(given, str | Mapping):
        has_order = not isinstance(given, set | frozenset)  # a set has another one in each process
        return (list(given) if has_order else sorted(given)) or None
    return settings.getdictorlist("FEED_EXPORT_FIELDS") or None


def _is_same(one: Fields, other: Fields) -> bool:
    return _listed(one) == _listed(other)


def _listed(fields: Fields) -> list[Any] | None:
    if fields is None:
        return None
    return [(name, name) for name in fields] if not isinstance(fields, Mapping) else list(fields.items())


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


# Marks of what Scrapy's encoder writes and JSON does not have: such numbers, and lone surrogates.
_NO_JSON = ("NaN", "Infinity", "\\ud")


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
