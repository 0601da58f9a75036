"""A Parquet file as the result: `pip install ./examples/parquet_sink`, then `crawlog run URL… -o rows.parquet`."""

import json
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from crawlog import Sink

if TYPE_CHECKING:
    from crawlog.streams.sink import ResultRows

GROUP_ROWS = 10_000
"""Rows of one row group, and in memory at a time."""

TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
"""Type of a column by the type of its values; any other column holds texts as they are and the rest as JSON."""


class ParquetSink(Sink):
    """One column for each key, in order of first appearance; a missing value is null."""

    def write(self, rows: "ResultRows", out: BinaryIO) -> None:
        """Reads the rows twice: the types of the columns depend on all rows."""
        schema = _schema(rows)
        remaining = iter(rows)
        with pq.ParquetWriter(out, schema, compression="zstd") as writer:
            while group := list(islice(remaining, GROUP_ROWS)):
                columns = [[_cell(row.get(one.name), one.type) for row in group] for one in schema]
                writer.write_table(pa.table(columns, schema=schema))


def _schema(rows: "ResultRows") -> pa.Schema:
    kinds: dict[str, set[type]] = {}
    for row in rows:
        for key, value in row.items():
            kinds.setdefault(key, set()).add(type(value))
    return pa.schema([(key, _column(found - {type(None)})) for key, found in kinds.items()])


def _column(kinds: set[type]) -> pa.DataType:
    if kinds == {int, float}:
        return pa.float64()
    return TYPES.get(next(iter(kinds)), pa.string()) if len(kinds) == 1 else pa.string()


def _cell(value: object, column: pa.DataType) -> object:
    is_json = column == pa.string() and not (value is None or isinstance(value, str))
    return json.dumps(value, ensure_ascii=False) if is_json else value
