"""The type of a column of rows, from the values that items have."""

from typing import Any

import pytest

from crawlog.query.tables import column

HUGE = 10**400


@pytest.mark.parametrize(
    ("values", "kind", "held"),
    [
        ([1, None], "int64", [1, None]),
        ([True, None], "bool", [True, None]),
        ([True, 2], "int64", [1, 2]),
        ([1, 2.5, None], "double", [1.0, 2.5, None]),
        ([1, "a", None], "string", ["1", "a", None]),
        ([1.5, True, "a"], "string", ["1.5", "true", "a"]),
        ([["a"], {"b": 1}, None], "extension<arrow.json>", ['["a"]', '{"b":1}', None]),
        ([["a"], "b"], "string", ['["a"]', "b"]),
        ([1 << 63, 1], "string", [str(1 << 63), "1"]),
        ([HUGE, 1.5], "string", [str(HUGE), "1.5"]),
        ([None], "null", [None]),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_column_has_the_narrowest_type_that_all_its_values_fit(values: list[Any], kind: str, held: list[Any]) -> None:
    """Else it is text: a text is itself, everything else is JSON; no number of an item can make it fail."""
    made = column(values)
    assert (str(made.type), made.to_pylist()) == (kind, held)
