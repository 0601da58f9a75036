"""A Parquet file: `rows.parquet`. Its columns have the types of all rows."""

from contextlib import ExitStack
from typing import BinaryIO

from crawlog.streams.stores import needed

from .result_rows import ResultRows, Sink

GROUP_BYTES = 8 << 20  # JSON of one row group, and in memory at a time


class Parquet(Sink):
    """One column for each key, in order of first appearance; a missing value is null. `arrow_columns` has the types."""

    def check(self) -> None:
        """As `Sink.check`; and pyarrow must be there."""
        with needed("parquet"):
            import pyarrow as pa  # noqa: F401  # is it there?
        super().check()

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """The types of the columns depend on all rows. Most jobs have the same ones from the first group on, so it is
        written while they are learnt; only where they change are the rows read and written once more.
        """
        with needed("parquet"):
            from pyarrow import parquet

            from .arrow_columns import ArrowColumns

        columns, is_whole = ArrowColumns(), True
        with ExitStack() as opened:
            schema = writer = None
            for part in rows.lists(GROUP_BYTES):
                columns.learn(part)
                if writer is None:
                    schema = columns.schema()
                    writer = opened.enter_context(parquet.ParquetWriter(out, schema, compression="zstd"))
                is_whole = is_whole and schema == columns.schema()
                if is_whole:
                    writer.write_table(columns.table(part))
        if is_whole and writer is not None:
            return
        out.seek(0)
        out.truncate()
        with parquet.ParquetWriter(out, columns.schema(), compression="zstd") as writer:
            for part in rows.lists(GROUP_BYTES):
                writer.write_table(columns.table(part))
