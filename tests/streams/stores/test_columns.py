"""Columns of tables: which value goes where, and what is left."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.stores.columns import Kind, RowCells, cell, json_text, new_columns

COLUMNS: dict[str, Kind | None] = {"n": "int", "p": "float", "t": "text", "j": "json", "b": "bool"}

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers())


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"n": 1, "p": 2.5, "t": "x", "j": [1], "b": True}, [1, 2.5, "x", "[1]", True, None]),
        ({"p": 2, "t": 3}, [None, 2.0, "3", None, None, None]),
        ({"n": 1 << 70, "b": None}, [None, None, None, None, None, '{"n":1180591620717411303424}']),
        ({"n": True, "p": "dear", "q": {}}, [None, None, None, None, None, '{"q":{},"n":true,"p":"dear"}']),
    ],
)
def test_a_value_goes_to_its_column_or_to_the_rest(row: dict[str, object], wanted: list[object]) -> None:
    """Texts take everything, columns of decimals take integers that are exact there."""
    assert RowCells(COLUMNS).of(dict(row)) == wanted


@given(st.lists(st.dictionaries(st.sampled_from([*COLUMNS, "q"]), VALUES), max_size=8))
def test_a_plan_of_a_shape_gives_what_each_value_alone_gives(rows: list[dict[str, object]]) -> None:
    """Whatever rows came before."""
    cells = RowCells(COLUMNS)
    for row in rows:
        made = cells.of(dict(row))
        for number, (name, kind) in enumerate(COLUMNS.items()):
            value = row.get(name)
            assert made[number] == (cell(value, kind)[1] if value is not None else None)
        left = {name for name, value in row.items() if value is not None}
        left -= {name for name in left if name in COLUMNS and cell(row[name], COLUMNS[name])[0]}
        assert set(json.loads(str(made[-1] or "{}"))) == left


@given(st.recursive(st.text() | st.just("\\u0000") | st.just("\0"), st.lists))
def test_json_for_stores_is_json_without_zero(value: object) -> None:
    """A text that only looks like an escaped U+0000 stays as it is."""
    assert json.loads(json_text(value)) == json.loads(json.dumps(_without(value)))


def _without(value: object) -> object:
    if isinstance(value, list):
        return [_without(one) for one in value]
    return str(value).replace("\0", "\ufffd")


def test_integers_become_decimals_where_one_comes() -> None:
    """The column is widened; other types stay, and their values go to the rest."""
    assert new_columns([{"n": 1, "t": "x"}, {"n": 2.5, "t": 3}], {}) == {"n": "float", "t": "text"}
    assert new_columns([{"n": 2.5}], {"n": "int"}) == {"n": "float"}
    assert new_columns([{"n": "x"}], {"n": "int"}) == {}
