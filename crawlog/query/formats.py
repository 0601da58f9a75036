"""Writes an answer: as a table for people, as Parquet with the types of DuckDB, or in any format that `-o` knows."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import escaped
from crawlog.streams.sink import is_file, sink_for, write_file, write_rows
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.stores import Store
from crawlog.terminal import rows as standard_output
from crawlog.terminal import table

from .duck import QueryAnswer

MOST_SHOWN = 1_000  # Rows of a table for people

MOST_CHARS = 80  # Of a cell there

_encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
_decode = msgspec.json.Decoder().decode


def write_answer(answer: QueryAnswer, kind: str, output: str = "", *, formulas: bool = False) -> int:
    """Writes all rows in a format; returns their number.

    Args:
        kind: `csv`, `json`, `jsonl` or `parquet`; empty for that of the file's suffix.
        output: A file, which is replaced when it is whole; empty for standard output.
        formulas: As `results.csv_formulas`.

    Raises: Misconfigured: no such format, no place for the file, or the SQL failed at a row. OSError: a full disk.
    """
    if kind == "parquet" or output.lower().endswith(".parquet"):
        return _write_parquet(answer, output)
    is_address = bool(output) and not kind and not is_file(output)
    named = f"answer.{kind}" if kind else output if is_address else str(Path(output).absolute())
    sink = sink_for(SinkSpec("", named, formulas=formulas), checks=not (kind or is_address))
    if is_address or isinstance(sink, Store):
        raise Misconfigured(f"-o {output}: an answer goes to a file or to standard output, not to a store")
    with tempfile.TemporaryFile() as file:
        rows = _Spooled(answer, file)
        if output:
            write_file(rows, sink, Path(output))
        else:
            write_rows(rows, sink, standard_output())
        return rows.rows


class _Spooled:
    """The rows as JSON lines in a file: a format may read them several times."""

    def __init__(self, answer: QueryAnswer, file: BinaryIO) -> None:
        self.rows = 0
        self._file = file
        names = answer.columns
        of_json = [at for at, kind in enumerate(answer.types) if kind == "JSON"]
        for row in answer.rows():
            for at in of_json:
                row[at] = row[at] and _decode(row[at])
            file.write(_encode(dict(zip(names, row, strict=True))) + b"\n")
            self.rows += 1

    def chunks(self) -> Iterator[bytes]:
        self._file.seek(0)
        while lines := self._file.readlines(1 << 20):
            yield b"".join(lines)


def _write_parquet(answer: QueryAnswer, output: str) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    if not output and sys.stdout.isatty():
        raise Misconfigured("Parquet is not for a terminal: name a file with -o FILE.parquet, or use a pipe")
    schema = pa.schema([field.with_name(name) for field, name in zip(answer.schema, answer.columns, strict=True)])
    made = Path(f"{output}.partial")
    rows = 0
    try:
        with parquet.ParquetWriter(made if output else sys.stdout.buffer, schema, compression="zstd") as writer:
            for batch in answer.batches():
                writer.write_batch(batch.rename_columns(answer.columns))
                rows += batch.num_rows
    except pa.ArrowNotImplementedError as error:
        raise Misconfigured(
            f"Parquet has no such type: {error}. Convert it in the SQL, e.g. CAST(x AS VARCHAR)"
        ) from error
    finally:
        if output and sys.exc_info()[0] is not None:
            made.unlink(missing_ok=True)
    if output:
        made.replace(output)
    return rows


class ShownTable(NamedTuple):
    """A table for people. Attributes: is_cut: Whether there are more rows."""

    lines: list[str]
    rows: int
    is_cut: bool


def shown(answer: QueryAnswer) -> ShownTable:
    """The first rows as aligned text, cells cut."""
    cells = [tuple(answer.columns)]
    is_cut = False
    rows = answer.rows()
    for row in rows:
        if is_cut := len(cells) > MOST_SHOWN:
            break
        cells.append(tuple(map(_cell, row)))
    numbers = ("INT", "FLOAT", "DOUBLE", "DECIMAL")
    right = tuple(
        at for at, kind in enumerate(answer.types) if any(name in kind for name in numbers) and "[" not in kind
    )
    return ShownTable(table(cells, right=right), len(cells) - 1, is_cut)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = escaped(value if isinstance(value, str) else str(value))
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"
