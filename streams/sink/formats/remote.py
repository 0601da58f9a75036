"""Any format at an address of a file: `-o s3://bucket/rows.parquet`."""

import tempfile
from functools import cache
from typing import BinaryIO, cast

from crawlog.streams.stores import RemoteFile

from .result_rows import ResultRows, Sink


@cache
def remote(kind: type[Sink]) -> type[Sink]:
    """The class that writes what another one does to an address."""

    class Remote(Sink):
        def check(self) -> None:
            kind(self.spec).check()
            RemoteFile(self.spec.output).check()

        def write(self, rows: ResultRows, out: BinaryIO) -> None:  # noqa: ARG002  # that of `-`
            """Made beside the kept rows first: an upload that is given up half-way would be an object all the same."""
            with tempfile.TemporaryFile(dir=rows.folder) as made:
                file = cast("BinaryIO", made)
                kind(self.spec).write(rows, file)
                file.seek(0)
                RemoteFile(self.spec.output).put(file)

    return Remote
