"""FEEDS as outputs of the job; items as rows, by the rules of Scrapy's feed exports.

FEED_EXPORT_FIELDS ─► fields of the rows, where no feed has others or chooses items
FEEDS ─┬─► FeedOutput: where it goes, its format, fields, encoding
       └─ other fields, item_classes ─► rows have all fields, and the numbers of the feeds that accept the item
"""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from scrapy.exporters import BaseItemExporter
from scrapy.extensions.feedexport import ItemFilter
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder

from crawlog.schemas.job_orders import FEEDS_KEY, FeedLayout, FeedOutput

from ..values import as_json
from .kinds import Kinds

Fields = Iterable[str] | Mapping[str, str] | None  # Names of fields, or names with those of the row; None for all

# Keys of a feed that change what is written in Scrapy and have no effect here, with the way.
UNUSED = {
    "batch_item_count": "an output is one file",
    "item_export_kwargs": "outputs are written by crawlog",
    "postprocessing": "of Scrapy's plugins only GzipPlugin, alone, is known here",
}

_GZIP = "GzipPlugin"

_FORMATS = {"jsonlines": ".jsonl", "jl": ".jsonl"}  # Scrapy's names that are no suffix of ours

_CHOOSE = ("item_classes", "item_filter")


def feed_outputs(settings: BaseSettings, spider: Any) -> Iterator[FeedOutput]:
    """The outputs that FEEDS names. Raises: whatever a value of it, or the project's FEED_URI_PARAMS, raises."""
    for number, (uri, feed) in enumerate(_feeds(settings).items()):
        place = _place(uri, feed, settings, spider)
        name = str(feed.get("format") or Path(place).suffix.removeprefix("."))
        suffix = _FORMATS.get(name, f".{name}") + ".gz" * _is_gzipped(feed)
        layout = layout_of(settings, feed, suffix, number if any(map(feed.get, _CHOOSE)) else -1)
        yield FeedOutput(place, layout, overwrite=bool(feed.get("overwrite")))


def layout_of(
    settings: BaseSettings, feed: Mapping[str, Any] = MappingProxyType({}), suffix: str = "", number: int = -1
) -> FeedLayout:
    """How a feed, or an output without one, writes rows. Rows that have its fields already are kept as they are.

    Args:
        number: Of a feed that chooses items; else -1.
    """
    fields, is_whole = _listed(feed.get("fields", _of_settings(settings))) or [], _has_all_fields(settings)
    encoding = feed.get("encoding", settings["FEED_EXPORT_ENCODING"])
    has_columns = is_whole or suffix.startswith(".csv")  # its header has fields that no item has, too
    return FeedLayout(
        format=suffix,
        fields=tuple((str(key) if is_whole else str(name), str(name)) for key, name in fields if has_columns),
        feed=number if _choose(settings) else None,
        encoding="" if is_utf_8(encoding) else codecs.lookup(encoding).name,
        indent=min(max(int(feed.get("indent", settings["FEED_EXPORT_INDENT"]) or 0), 0), 16),
    )


def _place(uri: Any, feed: Mapping[str, Any], settings: BaseSettings, spider: Any) -> str:
    """As Scrapy's `FeedExporter`, but for the time, which is that of the job."""
    params = {name: getattr(spider, name) for name in dir(spider)}
    params |= {"time": "%(time)s", "batch_time": "%(time)s", "batch_id": 1}
    changed = load_object(feed.get("uri_params") or settings["FEED_URI_PARAMS"] or _unchanged)(params, spider)
    place = str(uri.absolute() if isinstance(uri, Path) else uri) % (params if changed is None else changed)
    return "-" if place.startswith("stdout:") else place.removeprefix("file://")


def _unchanged(params: dict[str, Any], _spider: Any) -> dict[str, Any]:
    return params


def _is_gzipped(feed: Mapping[str, Any]) -> bool:
    plugins = [getattr(one, "__name__", str(one)) for one in feed.get("postprocessing") or ()]
    return len(plugins) == 1 and plugins[0].endswith(_GZIP)


def notes(settings: BaseSettings) -> Iterator[str]:
    """A line for each key of the feeds that has no effect."""
    feeds = _feeds(settings)
    for key, way in UNUSED.items():
        if any(feed.get(key) and not (key == "postprocessing" and _is_gzipped(feed)) for feed in feeds.values()):
            yield f"FEEDS: {key} has no effect: {way}"
    if not all(feed.get("store_empty", settings.getbool("FEED_STORE_EMPTY")) for feed in feeds.values()):
        yield "FEEDS: store_empty has no effect: an output without rows is written, too"
    if settings["AWS_ACCESS_KEY_ID"] and any(str(uri).startswith("s3:") for uri in feeds):
        yield "FEEDS: the credentials of S3 come from the environment of the workers (AWS_ACCESS_KEY_ID …) alone"


def is_utf_8(encoding: Any) -> bool:
    """Whether an encoding is that of the outputs; None and "" are Scrapy's for UTF-8."""
    return not encoding or str(encoding).lower().replace("_", "-") in ("utf-8", "utf8")


def _feeds(settings: BaseSettings) -> dict[Any, Mapping[str, Any]]:
    return {uri: feed for uri, feed in settings.getdict("FEEDS").items() if isinstance(feed, Mapping)}


def _has_all_fields(settings: BaseSettings) -> bool:
    """Whether rows have all fields, as the feeds have different ones, or choose items."""
    usual = _of_settings(settings)
    return _choose(settings) or any(
        _listed(feed.get("fields", usual)) != _listed(usual) for feed in _feeds(settings).values()
    )


def _choose(settings: BaseSettings) -> bool:
    return any(feed.get(key) for feed in _feeds(settings).values() for key in _CHOOSE)


def _of_settings(settings: BaseSettings) -> Fields:
    given = settings.get("FEED_EXPORT_FIELDS")
    if isinstance(given, Iterable) and not isinstance(given, str | Mapping):
        has_order = not isinstance(given, set | frozenset)  # a set has another one in each process
        return (list(given) if has_order else sorted(given)) or None
    return settings.getdictorlist("FEED_EXPORT_FIELDS") or None


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
        settings: FEED_EXPORT_FIELDS names the fields and their order; FEEDS may want others.
    """

    def __init__(self, settings: BaseSettings) -> None:
        feeds = _feeds(settings).values()
        self._fields = _Fields(fields_to_export=None if _has_all_fields(settings) else _of_settings(settings))
        chosen = feeds if _choose(settings) else ()
        self._filters = [load_object(feed.get("item_filter", ItemFilter))(feed) for feed in chosen]
        self._encoder = ScrapyJSONEncoder()

    def row(self, item: Any) -> msgspec.Raw:
        """An item as a row: a JSON object.

        Raises: TypeError: JSON has no such value. ValueError: it holds itself. Any exception of a project's serializer.
        """
        row = dict(self._fields.get_serialized_fields(item))
        if self._filters:
            row[FEEDS_KEY] = [number for number, one in enumerate(self._filters) if one.accepts(item)]
        text = self._encoder.encode(row)
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
