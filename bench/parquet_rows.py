"""The Parquet file of `-o rows.parquet` beside pyarrow's own writer of the same rows: `python -m bench.parquet_rows`.

pyarrow's own: each line decoded once, `Table.from_pylist` of as many rows, `write_table` with the same compression; its
types are those of the first rows alone. Ours are those of all rows. `mixed` is the worst case: a type changes in the
last row, so all rows are written twice. Each is timed in turn; medians.
"""

import hashlib
import io
import json
import statistics
import time
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from crawlog.streams.sink.formats import Parquet, ResultRows
from crawlog.streams.sink.formats.parquet import GROUP_BYTES
from crawlog.streams.sink_groups import SinkSpec

ROWS, ROUNDS, PIECE = 200_000, 5, 1 << 20


def page(n: int) -> dict[str, object]:
    """A row of the default spider."""
    sha256 = hashlib.sha256(str(n).encode()).hexdigest()
    head = {"url": f"https://shop.test/{n % 97}/item-{n}?page={n}", "status": 200, "error": None, "title": f"Item {n}"}
    return head | {"depth": n % 9, "links": n % 301, "fetched_at": 1_700_000_000.5 + n, "sha256": sha256}


def item(n: int) -> dict[str, object]:
    """A row with nested values and a text of some length."""
    text = " ".join(f"word{n * k % 997}" for k in range(40))
    price = {"amount": n % 1000 / 4, "currency": "EUR"}
    return {"sku": f"B{n}", "name": f"Book {n}", "price": price, "tags": [f"t{n % 7}", f"t{n % 11}"], "text": text}


def mixed(n: int) -> dict[str, object]:
    """A row of the default spider; one key of the last one has another type."""
    return page(n) | ({"depth": "?"} if n == ROWS - 1 else {})


def pieces(make: Callable[[int], dict[str, object]], number: int) -> list[bytes]:
    """The rows as the sink keeps them."""
    lines = io.BytesIO(b"".join(json.dumps(make(n)).encode() + b"\n" for n in range(number)))
    found = []
    while piece := lines.read(PIECE):
        found.append(piece + lines.readline())
    return found


def own(chunks: list[bytes]) -> None:
    """Crawlog's."""
    Parquet(SinkSpec("j", "/rows.parquet")).write(ResultRows(lambda: chunks), io.BytesIO())


def theirs(chunks: list[bytes]) -> None:
    """That of pyarrow."""
    decode, writer, part = msgspec.json.Decoder().decode, None, b""
    for at, chunk in enumerate(chunks):
        part += chunk
        if len(part) >= GROUP_BYTES or at == len(chunks) - 1:
            rows = [decode(line) for line in part.splitlines()]
            if rows[-1].get("depth") == "?":
                rows[-1]["depth"] = 0  # it cannot write such a row
            table = pa.Table.from_pylist(rows)
            writer = writer or pq.ParquetWriter(io.BytesIO(), table.schema, compression="zstd")
            writer.write_table(table)
            part = b""
    if writer:
        writer.close()


def main() -> None:
    """Prints the rates."""
    for make in (page, item, mixed):
        chunks = pieces(make, ROWS)
        took: dict[str, list[float]] = {"own": [], "theirs": []}
        for _ in range(ROUNDS):
            for name, write in (("own", own), ("theirs", theirs)):
                began = time.perf_counter()
                write(chunks)
                took[name].append(time.perf_counter() - began)
        rates = {name: ROWS / statistics.median(found) for name, found in took.items()}
        ratio = rates["own"] / rates["theirs"]
        print(f"{make.__name__}: {rates['own']:,.0f} rows/s, pyarrow's own {rates['theirs']:,.0f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
