"""Typed columns of rows, for pyarrow: which type a column has is learnt from all rows. Imported where pyarrow is there.

bool, 64-bit int, float (ints beside floats, too), text    the same in Arrow
lists, dicts whose values have one type in all rows        list, struct
anything else                                              text: texts as they are, the rest as JSON
"""

from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

FIELDS = 200  # Most fields of a nested column: a dict of more has data for keys, and is JSON

Rows = list[dict[str, Any]]

_encode = msgspec.json.Encoder().encode


class _Mixed(Exception):  # no error: the column holds text
    """Values have no type in common."""


class ArrowColumns:
    """The columns of rows, in order of first appearance."""

    def __init__(self) -> None:
        self._types: dict[str, pa.DataType | None] = {}

    def learn(self, rows: Rows) -> None:
        """Take the types of some rows."""
        for key in dict.fromkeys(chain.from_iterable(rows)):
            known = self._types.get(key, pa.null())
            try:
                self._types[key] = None if known is None else _merged(known, _type(_values(rows, key)))
            except _Mixed:
                self._types[key] = None

    def schema(self) -> pa.Schema:
        """Of all rows that were learnt."""
        return pa.schema([(key, self._fitting(key) or pa.string()) for key in self._types])

    def table(self, rows: Rows) -> pa.Table:
        """Some of these rows, with all columns."""
        return pa.table({key: _array(_values(rows, key), self._fitting(key)) for key in self._types})

    def _fitting(self, key: str) -> pa.DataType | None:
        """The type of a column; None if it holds text."""
        kind = self._types[key]
        return kind if kind is not None and 0 < _leaves(kind) <= FIELDS else None


def _values(rows: Rows, key: str) -> list[Any]:
    try:
        return list(map(itemgetter(key), rows))  # twice as fast
    except KeyError:
        return [row.get(key) for row in rows]


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is None:
        texts = [one if one is None or type(one) is str else _encode(one).decode() for one in values]
        return pa.array(texts, type=pa.string())
    try:
        return pa.array(values, type=kind)
    except pa.ArrowInvalid:  # an integer of more than 53 bits, in a column of floating-point numbers
        return pa.array(_rounded(values), type=kind)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return float(value) if type(value) is int else value


def _type(values: list[Any]) -> pa.DataType:
    """The type of all values but null. Raises: _Mixed: they have none in common."""
    kinds = set(map(type, values)) - {NoneType}
    if kinds == {str}:
        return pa.string()
    if kinds == {float}:
        return pa.float64()
    if len(kinds) > 1 and kinds != {int, float}:
        raise _Mixed
    try:
        return pa.array(values if len(kinds) < 2 else _rounded(values)).type
    except (pa.ArrowException, OverflowError):
        raise _Mixed from None


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that has the values of both. Raises: _Mixed: there is none."""
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_merged(one.value_type, other.value_type))
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(fields.items())
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise _Mixed


def _leaves(kind: pa.DataType) -> int:
    """The number of fields; 0 if one has no type, as of a list that is always empty: no column can have it."""
    if types.is_list(kind):
        return _leaves(kind.value_type)
    if types.is_struct(kind):
        inner = [_leaves(field.type) for field in kind]
        return sum(inner) if all(inner) else 0
    return 0 if types.is_null(kind) else 1
