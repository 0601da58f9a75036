"""Values that travel through the log: Python values to JSON with tags, and back. `meta`, `cb_kwargs` and raw items.

    value ─► Values.packed ─► JSON: itself, or a tag: an object with one key, such as {"$bytes": "aGk="}
    JSON  ─► Values.unpacked ─► an equal value of the same type

| value | tag |
|---|---|
| None, bool, int of 64 bits, finite float, str, list, dict with str keys | none |
| other dicts, and those that look like a tag | `{"$dict": [[key, value], …]}` |
| OrderedDict; Counter; defaultdict | `{"$ordered": dict}`; `{"$counter": dict}`; `{"$default": [factory, dict]}` |
| bytes; tuple; set; frozenset | `{"$bytes": base64}`; `{"$tuple": […]}`, `{"$set": […]}`, `{"$frozenset": […]}` |
| range | `{"$range": [start, stop, step]}` |
| datetime, date, time; timedelta | `{"$datetime": ISO 8601}`, …; `{"$timedelta": [days, seconds, microseconds]}` |
| Decimal; UUID | `{"$decimal": "1.50"}`; `{"$uuid": hex}` |
| larger int; nan and inf; text with lone surrogates | `{"$int": hex}`; `{"$float": "nan"}`; `{"$text": base64}` |
| dataclass, attrs, msgspec, pydantic, named tuple | `{"$object": [class, {field: value}]}` |
| enum | `{"$enum": [class, value]}` |

Classes are those of a list that is made when the spider is loaded (`classes_of`); unpacking looks names up in it and
imports nothing. No user code runs but that of these classes. A time zone with a name becomes its offset.
Subclasses of str, bytes, int and float become the plain type. A defaultdict keeps a factory that is a builtin type.
"""

import base64
import json
import math
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any
from uuid import UUID

from crawlog.schemas.requests import MAX_NESTING

from .item_classes import shape_of

# A value deeper than this is refused: its tag adds up to four levels to what `RequestRecord.check` counts.
_DEEPEST = MAX_NESTING - 4

_MIN_INT, _MAX_INT = -(1 << 63), (1 << 64) - 1  # What msgpack holds: the state has queue rows in msgpack


class Untravelled(TypeError):
    """A value that cannot travel through the log; the message names its place and its type."""


@dataclass(frozen=True)
class Carrier:
    """How one more kind of object travels: as the fields that `fields` gives, under a tag of its own.

    Attributes:
        tag: Without the `$`.
        is_one: Whether objects of a class are of this kind.
        fields: The object's content, made of values.
        make: The object from its content. Raises: Exception: the content is wrong.
    """

    tag: str
    is_one: Callable[[type], bool]
    fields: Callable[[Any], Any]
    make: Callable[[Any], Any]


MOST_WARNINGS = 10  # Names of fields with lone surrogates that a process warns of, each once

_warned: dict[str | tuple[str, type[Warning], int], int] = {}


def as_json(value: Any) -> Any:
    """A value of Python's json without what JSON lacks: nan and inf are null, lone surrogates question marks.

    Of the latter a warning tells: a text was changed.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not _is_unicode(text) and len(_warned) <= MOST_WARNINGS:
        _warn_of_halves(value)
    return json.loads(text.encode("utf-8", "replace"), parse_constant=lambda _: None)


def _warn_of_halves(item: Any) -> None:
    fields = item.items() if isinstance(item, dict) else ()
    name = next((key for key, one in fields if not _is_unicode(json.dumps([key, one], ensure_ascii=False))), "")
    told = f"an item's {name!r:.80} has half a character (a lone surrogate), which no row can hold: `?` stands for it"
    with suppress(UnicodeWarning):  # where warnings are errors, the item is worth more
        warnings.warn_explicit(told, UnicodeWarning, "spider", 0, registry=_warned)


class Values:
    """Packs and unpacks values.

    Args:
        classes: Those whose objects may travel, by their names in the log.
        carriers: Further kinds of objects.

    Attributes:
        on_mutable: Called with each list, dict, set and object that is packed, and its place; for warnings.
    """

    def __init__(self, classes: Mapping[str, type] | None = None, carriers: Sequence[Carrier] = ()) -> None:
        self._classes = dict(classes or {})
        self._names = {kind: name for name, kind in self._classes.items()}
        self._carriers = (*_DICTS, *carriers)
        self._by_tag = {f"${carrier.tag}": carrier for carrier in self._carriers}
        self.on_mutable: Callable[[Any, str], None] | None = None

    # Python to JSON.

    def packed(self, value: Any, place: str = "the value") -> Any:
        """The value as JSON builtins.

        Args:
            place: Its name in error messages, such as `meta`.

        Raises: Untravelled: it, or a part of it, cannot travel.
        """
        return self._pack(value, place, 1)

    def packed_dict(self, values: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The values of a dict whose own keys are no tags. Raises: Untravelled: a key is no str, or a value cannot."""
        for key in values:
            if not isinstance(key, str):
                raise Untravelled(f"{place} has the key {key!r:.80}: keys are str")
        return {key: self._pack(value, f"{place}[{key!r:.80}]", 2) for key, value in values.items()}

    def _pack(self, value: Any, place: str, level: int) -> Any:
        kind = type(value)
        if kind is str:
            return value if _is_unicode(value) else {"$text": _base64(value.encode("utf-8", "surrogatepass"))}
        if value is None or kind is bool:
            return value
        if kind is int:
            return _int(value)
        if level > _DEEPEST:
            raise Untravelled(f"{place:.300}: nested more than {_DEEPEST} levels deep, or it holds itself")
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return simple(value)
        if kind in _SEVERAL or kind is dict:
            return self._pack_several(kind, value, place, level)
        return self._pack_object(kind, value, place, level)

    def _pack_several(self, kind: type, value: Any, place: str, level: int) -> Any:
        if kind is not tuple and kind is not frozenset:
            self._note(value, place)
        if kind is dict:
            if all(type(key) is str and _is_unicode(key) for key in value) and not _looks_like_tag(value):
                return {key: self._pack(one, f"{place}[{key!r:.80}]", level + 1) for key, one in value.items()}
            pairs = value.items()
            return {
                "$dict": [
                    [
                        self._pack(key, f"a key of {place}", level + 3),
                        self._pack(one, f"{place}[{key!r:.80}]", level + 3),
                    ]
                    for key, one in pairs
                ]
            }
        if kind is list:
            return [self._pack(one, f"{place}[{at}]", level + 1) for at, one in enumerate(value)]
        parts = [self._pack(one, f"{place}[{at}]", level + 2) for at, one in enumerate(value)]
        if kind is not tuple:
            parts.sort(key=repr)  # the same set gives the same bytes
        return {_SEVERAL[kind]: parts}

    def _pack_object(self, kind: type, value: Any, place: str, level: int) -> Any:
        for carrier in self._carriers:
            if carrier.is_one(kind):
                self._note(value, place)
                return {f"${carrier.tag}": self._pack(carrier.fields(value), place, level + 1)}
        if isinstance(value, Enum):
            return {"$enum": [self._name(kind, place), self._pack(value.value, place, level + 2)]}
        shape = shape_of(kind)
        if shape is not None:
            name = self._name(kind, place)
            self._note(value, place)
            fields = {
                key: self._pack(one, f"{place}.{key}", level + 3) for key, one in shape.fields(kind, value).items()
            }
            return {"$object": [name, fields]}
        for plain in _PLAIN:
            if isinstance(value, plain):
                return self._pack(plain(value), place, level)
        raise Untravelled(f"{place:.300} is {_told(kind, value)}")

    def _name(self, kind: type, place: str) -> str:
        name = self._names.get(kind)
        if name is None:
            raise Untravelled(
                f"{place:.300} is a {kind.__module__}.{kind.__qualname__}: objects of a class travel if it is defined"
                " or imported at the top of a module of the project; pass a dict"
            )
        return name

    def _note(self, value: Any, place: str) -> None:
        if self.on_mutable is not None:
            self.on_mutable(value, place)

    # JSON to Python.

    def unpacked(self, value: Any) -> Any:
        """The value of JSON builtins. Raises: ValueError: not of this form, or of a class that is not known."""
        try:
            return self._unpack(value)
        except RecursionError:
            raise ValueError("a value that is nested too deeply") from None

    def unpacked_dict(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """As `packed_dict` took it. Raises: ValueError: as `unpacked`."""
        return {key: self.unpacked(value) for key, value in values.items()}

    def _unpack(self, value: Any) -> Any:
        if type(value) is list:
            return [self._unpack(one) for one in value]
        if type(value) is not dict:
            return value
        if not _looks_like_tag(value):
            return {key: self._unpack(one) for key, one in value.items()}
        [(tag, content)] = value.items()
        try:
            return self._tagged(tag, content)
        except ValueError:
            raise
        except RecursionError:
            raise
        except Exception as error:  # the content has another form, or a class refuses it
            raise ValueError(f"{tag} has no such content: {type(error).__name__}: {error}") from error

    def _tagged(self, tag: str, content: Any) -> Any:
        read = _READ.get(tag)
        if read is not None:
            return read(content)
        make = _MAKE.get(tag)
        if make is not None:
            return make([self._unpack(one) for one in _a_list(content)])
        if tag == "$dict":
            return {self._unpack(key): self._unpack(one) for key, one in _a_list(content)}
        if tag in self._by_tag:
            return self._by_tag[tag].make(self._unpack(content))
        return self._of_class(tag, content)

    def _of_class(self, tag: str, content: Any) -> Any:
        if tag not in {"$object", "$enum"}:
            raise ValueError(f"no such tag: {tag:.100}")
        name, inner = _a_list(content)
        kind = self._classes.get(name)
        if kind is None:
            raise ValueError(f"the spider has no class {name!r:.200}: a value of it was written by another version")
        if tag == "$enum":
            return kind(self._unpack(inner))
        shape = shape_of(kind)
        if shape is None or type(inner) is not dict:
            raise ValueError(f"{name!r:.200} is no class with fields")
        return shape.make(kind, {key: self._unpack(one) for key, one in inner.items()})


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _looks_like_tag(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _unbase64(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def _int(value: int) -> Any:
    return value if _MIN_INT <= value <= _MAX_INT else {"$int": hex(value)}


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": str(value)}


def _with_offset(value: datetime) -> datetime:
    """A time zone with a name as its offset: a name would have to be looked up in files."""
    offset = value.utcoffset()
    return value if value.tzinfo is None or offset is None else value.replace(tzinfo=timezone(offset))


def _datetime(value: datetime) -> Any:
    value = _with_offset(value)
    offset = value.utcoffset()
    if value.fold or (offset is not None and offset.microseconds):  # ISO 8601 has no fold; Python reads no such offset
        plain = value.replace(tzinfo=None, fold=0).isoformat()
        return {"$datetime": [plain, None if offset is None else offset // timedelta(microseconds=1), value.fold]}
    return {"$datetime": value.isoformat()}


def _time(value: time) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Untravelled(f"the time {value!r} has a zone whose offset depends on the day: pass a datetime")
    return {"$time": [value.replace(fold=0).isoformat(), 1] if value.fold else value.isoformat()}


def _untime(content: Any) -> time:
    if isinstance(content, str):
        return time.fromisoformat(content)
    text, fold = _a_list(content)
    return time.fromisoformat(text).replace(fold=fold)


def _undatetime(content: Any) -> datetime:
    if isinstance(content, str):
        return datetime.fromisoformat(content)
    text, offset_us, fold = _a_list(content)
    zone = None if offset_us is None else timezone(timedelta(microseconds=offset_us))
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _a_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("a tag whose content is no list")
    return value


_SIMPLE: dict[type, Callable[[Any], Any]] = {
    float: _float,
    bytes: lambda value: {"$bytes": _base64(value)},
    range: lambda value: {"$range": [_int(int(part)) for part in (value.start, value.stop, value.step)]},
    datetime: _datetime,
    date: lambda value: {"$date": value.isoformat()},
    time: _time,
    timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
}

_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, int, float, str)}  # Of a defaultdict, by their names


def _default_fields(value: defaultdict[Any, Any]) -> list[Any]:
    name = next((name for name, kind in _FACTORIES.items() if value.default_factory is kind), "")
    return [name, dict(value)]


def _undefault(content: Any) -> defaultdict[Any, Any]:
    name, values = _a_list(content)
    return defaultdict(_FACTORIES.get(name), values)


# Dicts of Python's own with a class.
_DICTS = (
    Carrier("ordered", lambda kind: kind is OrderedDict, dict, OrderedDict),
    Carrier("counter", lambda kind: kind is Counter, dict, Counter),
    Carrier("default", lambda kind: kind is defaultdict, _default_fields, _undefault),
)

_PLAIN: tuple[Any, ...] = (str, bytes, int, float)

_SEVERAL: dict[type, str] = {list: "", tuple: "$tuple", set: "$set", frozenset: "$frozenset"}

_READ: dict[str, Callable[[Any], Any]] = {
    "$text": lambda content: _unbase64(content).decode("utf-8", "surrogatepass"),
    "$int": lambda content: int(content, 16),
    "$float": lambda content: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content],
    "$bytes": _unbase64,
    "$datetime": _undatetime,
    "$date": date.fromisoformat,
    "$time": _untime,
    "$timedelta": lambda content: timedelta(*content),
    "$decimal": Decimal,
    "$uuid": UUID,
}

_MAKE: dict[str, Callable[[Iterable[Any]], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$range": lambda parts: range(*parts),
}


def _told(kind: type, value: Any) -> str:
    """What a value is, and what to pass in its place."""
    name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    for kinds, way in _WAYS:
        if kind.__name__ in kinds or any(base.__name__ in kinds for base in kind.__mro__):
            return f"a {name}: {way}"
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return (
            f"a function ({value.__qualname__}): functions do not travel; pass a name, and look it up in the callback"
        )
    if isinstance(value, GeneratorType):
        return f"a {name}: pass a list"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}: pass what you need of it"
    return f"a {name}, which does not travel: pass text, numbers, lists and dicts"


# What does not travel, by the names of classes, and what to pass in its place.
_WAYS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"Response"}), "a page does not travel; pass its url, or what you need of it"),
    (
        frozenset({"Selector", "SelectorList", "LexborNode", "LexborHTMLParser"}),
        "it belongs to its page; pass its text: .get() or .getall()",
    ),
    (frozenset({"ItemLoader"}), "it holds its page; pass loader.load_item(), and make a new loader with item="),
    (frozenset({"partial"}), "functions do not travel; pass their arguments"),
    (frozenset({"Deferred", "Future", "Task"}), "await it, and pass its result"),
    (frozenset({"Spider"}), "the callback has it as self"),
)
