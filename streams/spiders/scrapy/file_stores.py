"""Where FilesPipeline and ImagesPipeline keep files: a folder, S3, an address of fsspec. A file is whole, or not there.

    FILES_STORE, IMAGES_STORE ─► SCHEMES ─┬─► write: again and again for a while, then WORKER.trouble: the rows wait
                                          └─► stat: time and MD5, so that what is there is not downloaded again

Scrapy's own store of a folder writes in place: a kill leaves half a file, which the next run takes for a good one. Its
store of S3 needs botocore, which cannot be installed beside Faust.
"""

import asyncio  # runs in the child alone
import errno
import hashlib
import os
import posixpath
from collections.abc import Callable
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from scrapy.pipelines.files import FilesPipeline, FSFilesStore
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from crawlog.streams import files
from crawlog.streams.downloads import WORKER
from crawlog.streams.errors import Misconfigured

AGAIN_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # Pauses before a file is written again

# Errors of one file's name: another attempt meets them again, and other files do not.
_OF_NAME = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.EILSEQ})

_BY_UMASK = 0o666


class FileStore:
    """A store in which a file is written by one call."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def write(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        """Write a file. Blocks."""
        raise NotImplementedError

    def stat(self, path: str) -> dict[str, Any]:
        """Time and checksum of a file; empty if there is none. Blocks."""
        raise NotImplementedError

    def persist_file(self, path: Any, buf: BytesIO, _info: Any, meta: Any = None, headers: Any = None) -> Deferred[Any]:  # noqa: ARG002  # Scrapy's own signature
        """As Scrapy's."""
        write = partial(self.write, str(path), buf.getvalue(), headers or {})
        return deferred_from_coro(_written(write, f"{self.uri} cannot be written"))

    def stat_file(self, path: Any, _info: Any) -> Deferred[Any]:
        """As Scrapy's."""
        return deferred_from_coro(asyncio.to_thread(self.stat, str(path)))


async def _written(write: Callable[[], None], told: str) -> None:
    """Write until it works. If it does not, the rows of these items are made later.

    Raises: Exception: the last error.
    """
    for pause_s in AGAIN_S:
        try:
            return await asyncio.to_thread(write)
        except OSError as error:
            if error.errno in _OF_NAME:
                raise
        await asyncio.sleep(pause_s)
    try:
        await asyncio.to_thread(write)
    except Exception as error:
        WORKER.trouble = f"{told}: {error}"
        raise


class WholeFilesStore(FSFilesStore):
    """A folder of this machine."""

    def persist_file(self, path: Any, buf: BytesIO, _info: Any, *_: Any, **__: Any) -> Deferred[Any]:  # type: ignore[override]  # Scrapy awaits it
        """As Scrapy's; the file gets its name once it is whole."""
        whole = self._get_filesystem_path(path)

        def write() -> None:
            whole.parent.mkdir(parents=True, exist_ok=True)
            files.write(whole, buf.getvalue(), mode=_BY_UMASK)

        return deferred_from_coro(_written(write, f"{self.basedir} cannot be written"))


class S3Store(FileStore):
    """A bucket. Scrapy sets the attributes by the settings of the same names."""

    AWS_ACCESS_KEY_ID: str | None = None
    AWS_SECRET_ACCESS_KEY: str | None = None
    AWS_SESSION_TOKEN: str | None = None
    AWS_ENDPOINT_URL: str | None = None
    AWS_REGION_NAME: str | None = None
    AWS_USE_SSL: bool | None = None
    POLICY = "private"
    HEADERS: ClassVar = {"Cache-Control": "max-age=172800"}

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        bucket, _, prefix = uri.partition("://")[2].partition("/")
        self._at = f"{bucket}/{prefix}"  # the path follows without a slash, as in Scrapy
        endpoint = urlsplit(self.AWS_ENDPOINT_URL or os.environ.get("AWS_ENDPOINT_URL") or "")
        self._files = _library("pyarrow.fs").S3FileSystem(
            access_key=self.AWS_ACCESS_KEY_ID,
            secret_key=self.AWS_SECRET_ACCESS_KEY,
            session_token=self.AWS_SESSION_TOKEN,
            region=self.AWS_REGION_NAME or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
            endpoint_override=endpoint.netloc or None,
            scheme=endpoint.scheme or ("http" if self.AWS_USE_SSL is False else "https"),
            allow_delayed_open=True,  # a file of one part is sent by one request
        )

    def write(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        about = {**self.HEADERS, **headers, "ACL": self.POLICY}
        with self._files.open_output_stream(self._at + path, metadata=about) as stream:
            stream.write(content)

    def stat(self, path: str) -> dict[str, Any]:
        found = self._files.get_file_info(self._at + path)
        if not found.is_file:
            return {}
        with self._files.open_input_stream(self._at + path) as stream:
            return _stat(found.mtime.timestamp(), stream.read())


class AddressStore(FileStore):
    """Any address that fsspec knows, by the packages that are installed."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._files, self._at = _library("fsspec.core").url_to_fs(uri)

    def write(self, path: str, content: bytes, _: dict[str, str]) -> None:
        at = posixpath.join(self._at, path)
        self._files.makedirs(posixpath.dirname(at), exist_ok=True)
        self._files.pipe_file(at, content)

    def stat(self, path: str) -> dict[str, Any]:
        at = posixpath.join(self._at, path)
        if not self._files.isfile(at):
            return {}
        return _stat(self._files.modified(at).timestamp(), self._files.cat_file(at))


def _stat(modified_s: float, content: bytes) -> dict[str, Any]:
    return {"last_modified": modified_s, "checksum": hashlib.md5(content, usedforsecurity=False).hexdigest()}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise Misconfigured(
            f"FILES_STORE, IMAGES_STORE: an address needs {name.partition('.')[0]}: pip install 'crawlog[parquet]'"
        ) from None


def _folder(uri: str) -> Any:
    """The store of a folder; that of deployed code lies where the worker's settings say."""
    base, given = WORKER.files, Path(uri)
    if base is None:
        return WholeFilesStore(uri)
    if not base:
        raise Misconfigured(
            f"FILES_STORE, IMAGES_STORE = {uri!r:.100}: a deployed project keeps files where its workers' setting "
            "pipelines.files names a folder or an address; it is not set here"
        )
    if given.is_absolute() or "://" in uri or ".." in given.parts:
        raise Misconfigured(
            f"FILES_STORE, IMAGES_STORE = {uri!r:.100}: of a deployed project it is a folder in pipelines.files, such "
            "as 'images', or an address of the project's own"
        )
    placed = f"{base.rstrip('/')}/{given}/"
    scheme = urlsplit(placed).scheme
    return WholeFilesStore(placed) if scheme in ("", "file") else FilesPipeline.STORE_SCHEMES[scheme](placed)


class Schemes(dict[str, Any]):
    """Scrapy's stores by scheme, with ours in place of some; fsspec has those that are not there."""

    def __missing__(self, scheme: str) -> Any:
        return AddressStore


def install() -> None:
    """Have the pipelines use these stores."""
    ours = {"": _folder, "file": _folder, "s3": S3Store}
    FilesPipeline.STORE_SCHEMES = Schemes(FilesPipeline.STORE_SCHEMES | ours)
