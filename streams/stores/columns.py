"""Columns of a table, made from rows: what each value is, which column it fits, and the rest. Pure.

A row's fields become columns as they first come with a value. A value that does not fit its column, and a field that
can have no column, go to the column `_rest`, as JSON by name: nothing is lost, and no crawl waits for a schema.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Kind = Literal["bool", "int", "float", "text", "json"]

MOST_COLUMNS = 150  # InnoDB has no room for more long texts in a row

MOST_NAME = 63  # Bytes of a column's name: PostgreSQL cuts longer ones, MySQL refuses them

OWN = ("_key", "_n", "_job", "_url", "_page", "_rest", "_gone")  # Columns of crawlog

LEAST, MOST = -(1 << 63), (1 << 63) - 1  # Of a column of integers

AS_THEY_ARE: dict[Kind | None, type] = {"bool": bool, "float": float}

EXACT = 1 << 53  # Integers up to this are exact as floats

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


def cells(row: dict[str, object], columns: Mapping[str, Kind | None]) -> list[object]:
    """The values of a row, which is emptied, in the order of the columns; `_rest` behind them."""
    made: list[object] = []
    rest: dict[str, object] = {}
    for name, kind in columns.items():
        value = row.pop(name, None)
        if value is not None and type(value) is not AS_THEY_ARE.get(kind):
            fits, written = cell(value, kind)
            if not fits:
                rest[name] = value
            value = written
        made.append(value)
    rest |= {name: value for name, value in row.items() if value is not None}
    made.append(json_text(rest) if rest else None)
    return made


def json_text(value: object) -> str:
    """JSON that stores accept: without U+0000, which PostgreSQL refuses in texts and JSON."""
    return _encode(value).decode("utf-8", "replace").replace("\\u0000", "\ufffd")


def _may_be(name: str, folded: set[str]) -> bool:
    """Whether a field can have a column: a short name that differs from others by more than case and accents.

    MySQL compares them so. It refuses a space at the end, and characters beyond U+FFFF.
    """
    is_short = 0 < len(name.encode("utf-8", "replace")) <= MOST_NAME
    is_plain = is_short and "\0" not in name and not name.endswith(" ") and max(name) <= "\uffff"
    return is_plain and _folded(name) not in folded


def _folded(name: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(one))
