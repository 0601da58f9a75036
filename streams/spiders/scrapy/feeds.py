"""FEEDS and FEED_EXPORT_FIELDS: the fields of the rows, and what of the feeds an output cannot do.

`fields` of each feed ─┬─ alike ─► fields of the rows
FEED_EXPORT_FIELDS ────┴─ where feeds differ, or have none
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scrapy.settings import BaseSettings

Fields = Iterable[str] | Mapping[str, str] | None
"""Names of fields, or names with those of the row; None for all."""

UNUSED = {
    "batch_item_count": "an output is one file",
    "encoding": "outputs are written in UTF-8",
    "item_classes": "each item is a row; a pipeline that raises DropItem leaves items out",
    "item_export_kwargs": "outputs are written by crawlog",
    "item_filter": "each item is a row; a pipeline that raises DropItem leaves items out",
    "postprocessing": "outputs are written by crawlog",
}
"""Keys of a feed that change what is written in Scrapy and have no effect here, with the way."""


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
    """Whether rows are the same, in the same order."""
    return _listed(one) == _listed(other)


def _listed(fields: Fields) -> list[Any] | None:
    if fields is None:
        return None
    return [(name, name) for name in fields] if not isinstance(fields, Mapping) else list(fields.items())
