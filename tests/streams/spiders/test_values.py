"""Values that travel through the log: what comes back is equal in value and type; what cannot travel is refused."""

import enum
import importlib
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsel import Selector

from crawlog import Settings
from crawlog.schemas.requests import RequestRecord, packed, unpacked
from crawlog.streams.spiders.item_classes import classes_of
from crawlog.streams.spiders.values import Carrier, Untravelled, Values


class Colour(enum.Enum):
    """An enum."""

    RED = "r"
    PAIR = (1, 2)


class Level(enum.IntFlag):
    """A flag, whose members may be joined."""

    LOW = 1
    HIGH = 2


@dataclass
class Book:
    """A dataclass with all kinds of fields."""

    title: str
    tags: list[str] = field(default_factory=list)
    words: int = field(default=0, init=False)
    shelf: ClassVar[str] = "a"
    count: InitVar[int] = 3

    def __post_init__(self, count: int) -> None:
        """Runs when it is made, and not again."""
        self.words = count


@dataclass(frozen=True, slots=True)
class Point:
    """A frozen one without a dict."""

    x: int
    y: Any = None


@attrs.define
class Shelf:
    """attrs, with a private name and a converter."""

    _name: str
    size: int = attrs.field(default=1, converter=int)
    books: list[Any] = attrs.Factory(list)


class Pair(msgspec.Struct, frozen=True):
    """A struct."""

    a: int
    b: Any = None


class Price(pydantic.BaseModel):
    """A model."""

    amount: Decimal
    currency: str = "EUR"


class Row(NamedTuple):
    """A named tuple."""

    key: str
    value: Any = 1


VALUES = Values(classes_of([("spider", sys.modules[__name__])]))


def there_and_back(value: Any, values: Values = VALUES) -> Any:
    """The value after a travel through the log and a queue row, which is msgpack."""
    record = RequestRecord(meta=values.packed_dict({"v": value}, "meta"))
    record.check()
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(packed(record)))
    again = unpacked(stored)
    assert again is not None
    return values.unpacked_dict(again.meta)["v"]


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, at all depths; nan is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return one == other or sorted(map(repr, one)) == sorted(map(repr, other))
    return repr(one) == repr(other) or bool(one == other)


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(),
    st.text(),
    st.text(st.characters(categories=["Cs", "L"])),
    st.binary(),
    st.datetimes(),
    st.datetimes(timezones=st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),  # one is equal to nothing, not even in a set that holds it: see the next test
    st.uuids(),
    st.sampled_from([*Colour, *Level, Level.LOW | Level.HIGH]),
)
_KEYS = st.one_of(st.text(), st.text().map("${}".format), st.sampled_from(["$bytes", "$object", "$dict", "$"]))


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(_KEYS, inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(), st.text(), st.tuples(st.integers())), inner, max_size=4),
        st.dictionaries(_KEYS, inner, max_size=4).map(OrderedDict),
        st.dictionaries(_KEYS, st.integers(), max_size=4).map(Counter),
        st.dictionaries(_KEYS, inner, max_size=4).map(partial(defaultdict, list)),
        st.sets(st.one_of(st.integers(), st.text(), st.binary()), max_size=4),
        st.frozensets(st.one_of(st.integers(), st.dates()), max_size=4),
        st.builds(Book, st.text(), st.lists(st.text(), max_size=2)),
        st.builds(Point, st.integers(), inner),
        st.builds(Shelf, st.text(), st.integers(), st.lists(inner, max_size=2)),
        st.builds(Pair, st.integers(), inner),
        st.builds(Price, amount=st.decimals(allow_nan=False, allow_infinity=False)),
        st.builds(Row, st.text(), inner),
    )


@given(st.recursive(_SCALARS, _nested, max_leaves=12))
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """Of any of the kinds, nested in any way."""
    back = there_and_back(value)
    assert same(back, value) or repr(back) == repr(value)
    assert type(back) is type(value)


@pytest.mark.parametrize("text", ["NaN", "-NaN", "sNaN", "NaN123"])
def test_a_decimal_that_is_no_number_comes_back(text: str) -> None:
    """With its sign and its digits."""
    assert repr(there_and_back([Decimal(text)])) == repr([Decimal(text)])


@given(st.recursive(_SCALARS, _nested, max_leaves=6))
def test_packed_values_are_the_same_bytes_each_time(value: Any) -> None:
    """Sets have no order: a page that is parsed twice must give one identity."""
    first = json.dumps(VALUES.packed(value))
    assert json.dumps(VALUES.packed(there_and_back(value))) == first


TAGS = (
    "$bytes", "$text", "$int", "$float", "$decimal", "$uuid", "$date", "$datetime", "$time", "$timedelta", "$tuple",
    "$set", "$frozenset", "$dict", "$object", "$enum", "$request", "$unknown", "$", "$ordered", "$counter", "$default",
    "$range",
)  # fmt: skip
_NAMES = st.sampled_from(["spider:Book", "os:system", "spider:Colour"])
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=3),
        st.dictionaries(
            st.sampled_from(TAGS), st.one_of(inner, st.lists(st.one_of(inner, _NAMES), max_size=3)), max_size=1
        ),
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_is_a_value_or_a_value_error(value: Any) -> None:
    """And nothing is imported."""
    before = set(sys.modules)
    with suppress(ValueError):
        VALUES.unpacked(value)
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "path", ["os:system", "subprocess:Popen", "builtins:eval", "spider:os", "spider:Values", "", 5]
)
def test_a_class_that_is_not_the_projects_is_not_looked_for(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes to Kafka chooses the text, not what is run."""
    monkeypatch.setattr(importlib, "import_module", lambda *_: pytest.fail("imported"))
    for tag in ("$object", "$enum"):
        with pytest.raises(ValueError, match=r"no class|no such content"):
            VALUES.unpacked({tag: [path, {}]})


def test_a_deep_value_is_an_error() -> None:
    """In both directions."""
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        VALUES.unpacked(deep)
    with pytest.raises(Untravelled, match="more than 96 levels deep, or it holds itself"):
        VALUES.packed(deep)
    itself: dict[str, Any] = {}
    itself["me"] = itself
    with pytest.raises(Untravelled, match="or it holds itself"):
        VALUES.packed(itself)


def test_what_is_packed_passes_the_check_of_records() -> None:
    """The deepest value that is taken is not too deep for a record."""
    value: Any = 1
    deepest: Any = None
    for _ in range(200):
        value = (value,)
        try:
            record = RequestRecord(meta=VALUES.packed_dict({"v": value}, "meta"))
        except Untravelled:
            break
        record.check()
        deepest = value
    assert deepest is not None


def _generator() -> Any:
    yield 1


class Stranger:
    """Has no fields."""


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Selector(text="<a>"), "parsel.selector.Selector: it belongs to its page; pass its text"),
        (Selector(text="<a>").css("a"), "SelectorList: it belongs to its page"),
        (lambda: 1, r"function \(.*<lambda>\): functions do not travel"),
        (partial(print, 1), "functools.partial: functions do not travel"),
        (print, "function"),
        (_generator(), "generator: pass a list"),
        (json, "the module json"),
        (Stranger(), "test_values.Stranger, which does not travel"),
        (Stranger, "type, which does not travel"),
        (UUID.hex, "which does not travel"),
        (ValueError("x"), "ValueError, which does not travel"),
    ],
)
def test_what_cannot_travel_is_refused_by_name_and_type(value: Any, says: str) -> None:
    """With its place, and what to pass."""
    with pytest.raises(Untravelled, match=says) as refused:
        VALUES.packed_dict({"a": [{"b": value}]}, "meta")
    assert "meta['a'][0]['b'] is a" in str(refused.value) or "is the module" in str(refused.value)


def test_a_class_outside_the_project_is_refused() -> None:
    """Its name could not be looked up by another process."""
    with pytest.raises(
        Untravelled, match=r"test_values\.Book: objects of a class travel if it is defined or imported at the top"
    ):
        Values().packed({"book": Book("x")}, "meta")


def test_a_class_that_a_module_of_the_project_imports_travels() -> None:
    """By its name there, however often; a class of another module of the project keeps its own name."""
    items, spider = ModuleType("shop.items"), ModuleType("shop.spider")
    own = type("Own", (Book,), {"__module__": "shop.items"})
    vars(items).update(Own=own)
    vars(spider).update(Own=own, Volume=Book, Settings=Settings, number=1)
    classes = classes_of([("shop.items", items), ("spider", spider)])
    assert classes == {"shop.items:Own": own, "spider:Volume": Book}
    assert Values(classes).packed(Book("x"))["$object"][0] == "spider:Volume"
    assert there_and_back(Book("x"), Values(classes)) == Book("x")


def test_keys_are_text() -> None:
    """Of `meta` and `cb_kwargs` themselves; dicts in them may have others."""
    with pytest.raises(Untravelled, match="meta has the key 1: keys are str"):
        VALUES.packed_dict({1: 2}, "meta")  # type: ignore[dict-item]  # which mypy would tell


def test_a_subclass_of_text_becomes_text() -> None:
    """Parsers give such: the value is the same."""

    class Smart(str):  # noqa: SLOT000  # as parsers have it
        pass

    assert VALUES.packed(Smart("x")) == "x"
    assert type(VALUES.packed(Smart("x"))) is str


def test_a_time_zone_with_a_name_becomes_its_offset() -> None:
    """The same instant; a name would be looked up in files."""
    there = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    back = there_and_back(there)
    assert back == there
    assert back.tzinfo == timezone(timedelta(hours=2))


def test_another_version_of_a_class_takes_what_it_has() -> None:
    """A new field has its default, one that is gone is left out; a new one without a default is an error."""

    @dataclass
    class Old:
        title: str
        gone: int = 1

    @dataclass
    class New:
        title: str
        tags: list[str] = field(default_factory=list)

    @dataclass
    class Strict:
        title: str
        year: int

    stored = Values({"spider:Book": Old}).packed(Old("x"))
    assert Values({"spider:Book": New}).unpacked(stored) == New("x", [])
    with pytest.raises(ValueError, match="has no value for its field 'year'"):
        Values({"spider:Book": Strict}).unpacked(stored)


def test_nothing_of_a_class_runs_when_it_comes_back() -> None:
    """A dataclass is made by its fields: `__post_init__` would count twice."""
    book = Book("x", count=5)
    assert there_and_back(book).words == 5


def test_a_carrier_adds_a_kind_of_objects() -> None:
    """As Scrapy's items and requests are added."""

    class Bag(dict[str, Any]):
        pass

    carrier = Carrier("bag", lambda kind: kind is Bag, dict, Bag)
    values = Values(carriers=[carrier])
    back = there_and_back([Bag(a=(1,))], values)
    assert back == [Bag(a=(1,))]
    assert type(back[0]) is Bag
    with pytest.raises(ValueError, match="no such tag"):
        Values().unpacked({"$bag": {}})


def test_mutable_objects_are_told_of() -> None:
    """For the warning that two requests share one."""
    met: list[tuple[Any, str]] = []
    values = Values(classes_of([("spider", sys.modules[__name__])]))
    values.on_mutable = lambda value, place: met.append((value, place))
    shared: list[int] = []
    values.packed_dict({"a": shared, "b": (1,), "c": {"d": {1}}}, "meta")
    assert [place for _, place in met] == ["meta['a']", "meta['c']", "meta['c']['d']"]
    assert met[0][0] is shared


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": "aGk="},
        {"$bytes": 1, "b": 2},
        {"$object": ["os:system", {}]},
        {"$dict": [[1, 2]]},
        {"$": 1},
        {1: 2, "1": 3},
        {},
        {"a\ud800": 1},
        float("nan"),
        -0.0,
        1 << 64,
        -(1 << 63) - 1,
        Decimal("NaN"),
        Decimal("1.500"),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, fold=1),  # noqa: DTZ001  # without one
        datetime(2026, 1, 1, fold=1, tzinfo=timezone(timedelta(microseconds=-1))),
        [Decimal("sNaN")],
        date.min,
        time(1, 2, 3, 4, tzinfo=UTC),
        [time(1, fold=1), float("nan")],
        timedelta.max,
        range(400, 600),
        [range(9, -(1 << 80), -3), range(True)],
        {frozenset({(1, b"x")}): {None: ...}}.keys() and {(1, 2): [b"x"]},
    ],
)
def test_some_hard_values(value: Any) -> None:
    """Above all dicts of the user that look like tags."""
    back = there_and_back(value)
    assert same(back, value) or repr(back) == repr(value)


def test_a_defaultdict_keeps_a_builtin_factory() -> None:
    """Another one is a function, which does not travel."""
    back = there_and_back({"d": defaultdict(list, a=[1]), "e": defaultdict(lambda: 1, a=2)})
    assert back["d"]["b"] == []
    assert (back["e"], back["e"].default_factory) == ({"a": 2}, None)


def test_a_time_of_day_in_a_named_zone_is_refused() -> None:
    """Its offset depends on the day."""
    with pytest.raises(Untravelled, match="pass a datetime"):
        VALUES.packed([time(1, tzinfo=ZoneInfo("Europe/Berlin"))])
