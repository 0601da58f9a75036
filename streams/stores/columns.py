"""Columns of a table, made from rows: what each value is, which column it fits, and the rest. Pure.

A row's fields become columns as they first come with a value. A value that does not fit its column, and a field that
can have no column, go to the column `_rest`, as JSON by name: nothing is lost, and no crawl waits for a schema.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

Kind = Literal["bool", "int", "float", "text", "json"]

MOST_COLUMNS = 150  # InnoDB has no room for more long texts in a row

MOST_NAME = 63  # Bytes of a column's name: PostgreSQL cuts longer ones, MySQL refuses them

OWN = ("_key", "_n", "_job", "_url", "_page", "_rest", "_gone")  # Columns of crawlog

LEAST, MOST = -(1 << 63), (1 << 63) - 1  # Of a column of integers

EXACT = 1 << 53  # Integers up to this are exact as floats

MOST_PLANS = 1_000  # Shapes of rows whose plans are kept

Write = Callable[[Any], object]

_nul = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # escaped, and no backslash before it is

_encode = msgspec.json.Encoder().encode


def kind_of(value: object) -> Kind | None:
    """What column a first value makes; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if LEAST <= value <= MOST else "json"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"


def new_columns(rows: Iterable[Mapping[str, object]], known: Mapping[str, Kind | None]) -> dict[str, Kind]:
    """The columns that these rows want beside the known ones, and known ones of integers that are to be of floats.

    Args:
        known: By name; None for a column of the user's own type.
    """
    found: dict[str, Kind] = {}
    shapes: set[tuple[object, ...]] = set()  # most rows are like others
    folded = {_folded(name) for name in (*known, *OWN)}
    for row in rows:
        shape = (*row, *map(type, row.values()))
        if shape in shapes:
            continue
        shapes.add(shape)
        for name, value in row.items():
            kind = kind_of(value)
            there = found.get(name, known.get(name))
            if kind is None:
                continue
            if there == "int" and kind == "float":
                found[name] = "float"
            elif name not in known and name not in found and _may_be(name, folded) and len(folded) < MOST_COLUMNS:
                found[name] = kind
                folded.add(_folded(name))
    return found


def cell(value: object, kind: Kind | None) -> tuple[bool, object]:
    """Whether a value fits a column, and what is written there; JSON as text."""
    if kind == "text":
        return True, value.replace("\0", "\ufffd") if isinstance(value, str) else json_text(value)
    if kind == "json":
        return True, json_text(value)
    there = kind_of(value)
    if kind == "float" and isinstance(value, int) and there == "int":
        is_exact = abs(value) <= EXACT
        return is_exact, float(value) if is_exact else None
    return (True, value) if there == kind else (False, None)


class RowCells:
    """Makes the values of rows for columns. Most rows have the fields and types of others: a plan of one does for all.

    Args:
        columns: Which do not change.
    """

    def __init__(self, columns: Mapping[str, Kind | None]) -> None:
        self._columns = columns
        self._plans: dict[tuple[object, ...], list[tuple[int, int, Write | None]] | None] = {}

    def of(self, row: dict[str, object]) -> list[object]:
        """The values of a row in the order of the columns; `_rest` behind them."""
        shape = (*row, *map(type, row.values()))
        plan = self._plans[shape] if shape in self._plans else self._planned(shape, row)
        if plan is None:
            return self._one_by_one(row)
        values = [*row.values()]
        made: list[object] = [None] * (len(self._columns) + 1)
        try:
            for to, at, write in plan:
                made[to] = values[at] if write is None else write(values[at])
        except OverflowError:
            return self._one_by_one(row)
        return made

    def _planned(
        self, shape: tuple[object, ...], row: dict[str, object]
    ) -> list[tuple[int, int, "Write | None"]] | None:
        """Where each value goes, and how it is written; None if that depends on more than its type."""
        places = {name: number for number, name in enumerate(self._columns)}
        plan: list[tuple[int, int, Write | None]] | None = []
        for at, (name, value) in enumerate(row.items()):
            kind = self._columns.get(name)
            write = _WRITES.get((kind, type(value)), json_text if kind in ("text", "json") else _UNPLANNED)
            if value is not None and write is _UNPLANNED:
                plan = None
                break
            if value is not None and plan is not None:
                plan.append((places[name], at, write))
        if len(self._plans) < MOST_PLANS:
            self._plans[shape] = plan
        return plan

    def _one_by_one(self, row: dict[str, object]) -> list[object]:
        made: list[object] = []
        rest = {name: value for name, value in row.items() if value is not None and name not in self._columns}
        for name, kind in self._columns.items():
            value = row.get(name)
            fits, written = cell(value, kind) if value is not None else (True, None)
            if not fits:
                rest[name] = value
            made.append(written)
        made.append(json_text(rest) if rest else None)
        return made


def json_text(value: object) -> str:
    """JSON that stores accept: without U+0000, which PostgreSQL refuses in texts and JSON."""
    text = _encode(value).decode("utf-8", "replace")
    return _nul.sub("\\1\ufffd", text) if "\\u0000" in text else text


def _text(value: str) -> str:
    return value.replace("\0", "\ufffd")


def _integer(value: int) -> int:
    """Raises: OverflowError: no column of integers has it."""
    if LEAST <= value <= MOST:
        return value
    raise OverflowError


def _unplanned(value: object) -> object:
    raise AssertionError(value)


_UNPLANNED = _unplanned

# How a value of a type is written into a column of a kind; None for as it is.
_WRITES: dict[tuple[Kind | None, type], Write | None] = {
    ("bool", bool): None,
    ("float", float): None,
    ("int", int): _integer,
    ("text", str): _text,
}


def _may_be(name: str, folded: set[str]) -> bool:
    """Whether a field can have a column: a short name that differs from others by more than case and accents.

    MySQL compares them so. It refuses a space at the end, and characters beyond U+FFFF.
    """
    is_short = 0 < len(name.encode("utf-8", "replace")) <= MOST_NAME
    is_plain = is_short and "\0" not in name and not name.endswith(" ") and max(name) <= "\uffff"
    return is_plain and _folded(name) not in folded


def _folded(name: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(one))
