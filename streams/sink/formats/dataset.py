"""A data set of Parquet files: `-o s3://bucket/shop/`, `-o file:///srv/shop/`, any address that ends in a slash.

    write ─► rows in memory ─► FILE_BYTES or FILE_S: part-SERIAL-NUMBER.parquet ─► _manifest-NUMBER.json ─► position
    finish ─► files with rows that were replaced or are gone are written anew ─► files that no manifest names go

Files lie in `job=NAME/day=YYYY-MM-DD/`. The manifest with the greatest number says which of them count, and how far the
rows are: a file that was written before a death, and stands in no manifest, is removed at the end. While the job goes
on, a row that a newer page replaced stands in an older file too; `_page` tells them apart.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from crawlog.streams.printable import shown_time
from crawlog.streams.stores import Feed, RemoteFile, RowChanges, Store, lost_place, needed

if TYPE_CHECKING:
    from crawlog.streams.sink_groups import SinkSpec

FILE_BYTES = 64 << 20  # JSON of the rows of one file, which are in memory until then

FILE_S = 300.0  # After so long rows are written, however few


class _Part(msgspec.Struct):
    """A file of rows.

    Attributes:
        number: Files with greater numbers have newer rows.
        crawl: As in `Feed`.
    """

    path: str
    number: int
    crawl: str
    rows: int


class _Manifest(msgspec.Struct):
    """Which files count.

    Attributes:
        gone: Keys without rows, with the number of the part before which theirs are.
    """

    number: int = 0
    crawl: str = ""
    serial: str = ""
    position: int = 0
    parts: list[_Part] = []
    gone: dict[str, int] = {}


class DataSet(Store):
    """See the module."""

    def __init__(self, spec: "SinkSpec") -> None:
        super().__init__(spec)
        self._remote = RemoteFile(spec.output)
        self._known = _Manifest()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._bytes = 0
        self._position = 0
        self._since = 0.0

    def check(self) -> None:
        """Makes the folder of the job, and removes what it writes there."""
        with self._remote.told():
            files, root = self._folder()
            files.create_dir(root, recursive=True)
            with files.open_output_stream(f"{root}/_check.json") as out:
                out.write(b"{}")
            files.delete_file(f"{root}/_check.json")

    def open(self, feed: Feed) -> int:
        """Takes the newest manifest over."""
        with self._remote.told():
            self._known = known = self._newest()
            if known.serial != feed.serial:
                self._keep(msgspec.structs.replace(known, serial=feed.serial, crawl=feed.crawl, position=0))
            self._rows, self._bytes = {}, 0
            self._position, self._since = self._known.position, time.monotonic()
        return self._position

    def write(self, changes: RowChanges) -> None:
        """Takes the rows; they are in the store once a file is full."""
        for one in changes.keys:
            key, page = one.key.decode("utf-8", "replace"), one.page_number
            own = [{"_url": key, "_n": number, "_page": page} for number in range(one.row_count)]
            self._rows[key] = [mine | row | mine for mine, row in zip(own, one.rows(), strict=True)]
            self._bytes += len(one.block)
        self._position = changes.end
        if self._bytes >= FILE_BYTES or time.monotonic() - self._since >= FILE_S:
            self._flush()

    def finish(self) -> None:
        """Writes what waits; then each row stands once, and no file of a worker that died is left."""
        self._flush()
        with self._remote.told():
            known = self._known
            parts = [part for part in known.parts if part.crawl == known.crawl or self.spec.on_gone == "keep"]
            kept = list(self._without_doubles(parts))
            self._keep(msgspec.structs.replace(known, parts=kept, gone={}))
            self._remove_others()

    def close(self) -> None:
        """Writes what waits, if it can; else it comes again."""
        with suppress(Exception):
            self._flush()

    def _folder(self) -> tuple[Any, str]:
        """The file system, and the path of the job in it."""
        files, root = self._remote.folder()
        return files, f"{root}/job={quote(self.spec.job, safe='')}"

    def _newest(self) -> _Manifest:
        found = _Manifest()
        files, _ = self._folder()
        for path in self._files("_manifest-"):
            with suppress(ValueError), files.open_input_stream(path) as file:
                found = max(found, msgspec.json.decode(file.read(), type=_Manifest), key=lambda one: one.number)
        return found

    def _files(self, prefix: str) -> list[str]:
        from pyarrow import fs

        files, root = self._folder()
        there = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        return [one.path for one in there if PurePosixPath(one.path).name.startswith(prefix)]

    def _keep(self, manifest: _Manifest) -> None:
        """Write the next manifest, and remove the ones before. Raises: RetryLater: another worker wrote one since."""
        newest = self._newest()
        if (newest.number, newest.serial) != (self._known.number, self._known.serial):
            raise lost_place(self)
        manifest.number = newest.number + 1
        files, root = self._folder()
        files.create_dir(root, recursive=True)
        before = self._files("_manifest-")
        with files.open_output_stream(f"{root}/_manifest-{manifest.number:09}.json") as out:
            out.write(msgspec.json.encode(manifest))
        for path in before:
            files.delete_file(path)
        self._known = manifest

    def _flush(self) -> None:
        with self._remote.told():
            known = self._known
            number = max((part.number for part in known.parts), default=0) + 1
            if self._position != known.position:
                parts = [*known.parts, *self._written([row for rows in self._rows.values() for row in rows], number)]
                gone = known.gone | {key: number for key, rows in self._rows.items() if not rows}
                self._keep(msgspec.structs.replace(known, parts=parts, gone=gone, position=self._position))
            self._rows, self._bytes, self._since = {}, 0, time.monotonic()

    def _written(self, rows: list[dict[str, Any]], number: int) -> Iterator[_Part]:
        """Write a file of rows, if there are some."""
        if not rows:
            return
        with needed("parquet"):
            from pyarrow import parquet

            from .arrow_columns import ArrowColumns
        columns = ArrowColumns()
        columns.learn(rows)
        files, root = self._folder()
        folder = f"{root}/day={shown_time(time.time()):%Y-%m-%d}"
        files.create_dir(folder, recursive=True)
        path = f"{folder}/part-{self._known.serial[:8]}-{number:06}-{self._known.number:09}.parquet"
        with files.open_output_stream(path) as out:
            parquet.write_table(columns.table(rows), out, compression="zstd")
        yield _Part(path, number, self._known.crawl, len(rows))

    def _without_doubles(self, parts: list[_Part]) -> Iterator[_Part]:
        """The files with each row once; those with rows that a newer page replaced are written anew."""
        placed = [(part, self._keys(part)) for part in parts]
        newest: dict[str, tuple[bool, int]] = {}
        for part, keys in placed:
            newest |= {key: max(newest.get(key, (False, -1)), self._age(part)) for key in set(keys)}
        gone = self._known.gone
        for part, keys in placed:
            counts = [newest[key] == self._age(part) and gone.get(key, 0) <= part.number for key in keys]
            yield from [part] if all(counts) else self._anew(part, counts)

    def _age(self, part: _Part) -> tuple[bool, int]:
        """Of two parts with rows of a key, the one with the greater age has those that count."""
        return part.crawl == self._known.crawl, part.number

    def _keys(self, part: _Part) -> list[str]:
        from pyarrow import parquet

        files, _ = self._folder()
        table = parquet.read_table(part.path, columns=["_url"], filesystem=files, partitioning=None)
        keys: list[str] = table["_url"].to_pylist()
        return keys

    def _anew(self, part: _Part, counts: list[bool]) -> Iterator[_Part]:
        """The file with only the rows that count."""
        import pyarrow as pa
        from pyarrow import parquet

        files, _ = self._folder()
        table = parquet.read_table(part.path, filesystem=files, partitioning=None).filter(pa.array(counts))
        if not table.num_rows:
            return
        path = f"{part.path.removesuffix('.parquet')}-{self._known.number}.parquet"
        with files.open_output_stream(path) as out:
            parquet.write_table(table, out, compression="zstd")
        yield _Part(path, part.number, part.crawl, table.num_rows)

    def _remove_others(self) -> None:
        files, _ = self._folder()
        named = {part.path for part in self._known.parts}
        for path in self._files("part-"):
            if path not in named:
                files.delete_file(path)
