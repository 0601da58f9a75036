"""The text formats through gzip or zstd: `rows.csv.gz`, `rows.jsonl.zst`."""

from collections.abc import Callable
from typing import Any, BinaryIO

from backports import zstd
from zlib_ng import gzip_ng

from .result_rows import ResultRows, Sink


def _gzip(out: BinaryIO) -> Any:
    opened: Any = gzip_ng.GzipNGFile  # without type hints
    return opened(filename="", mode="wb", compresslevel=6, fileobj=out, mtime=0)  # equal rows, equal bytes


def _zstd(out: BinaryIO) -> Any:
    return zstd.ZstdFile(out, "wb")


PACKERS: dict[str, Callable[[BinaryIO], Any]] = {".gz": _gzip, ".zst": _zstd}  # By suffix


def packed(kind: type[Sink], packer: str) -> type[Sink]:
    """The class that writes what another one does, compressed."""

    class Packed(Sink):
        depends_on = kind.depends_on

        def write(self, rows: ResultRows, out: BinaryIO) -> None:
            with PACKERS[packer](out) as inner:
                kind(self.spec).write(rows, inner)

    return Packed
