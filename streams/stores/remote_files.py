"""A file at an address: `s3://bucket/rows.jsonl`, `gs://…`, and what else fsspec opens (`memory://`, `sftp://`, `abfs://`).

S3 and Google's store are reached by pyarrow: s3fs wants another dateutil than Faust. Credentials come from the
environment of this process or the machine's role, and stand in no address and no message.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO

from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.printable import without_secrets

from .base import ANSWER_S, CONNECT_S, needed

_CLOUDS = ("s3", "gs")

_HINTS = {
    "NETWORK_CONNECTION": "Is it up, and AWS_ENDPOINT_URL right?",
    "ACCESS_DENIED": "Are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's role, those of this bucket?",
    "Protocol not known": "A store or a file system of this name is not installed.",
}


class RemoteFile:
    """One file of a file system that is no folder of this machine.

    Attributes:
        place: The address without login, for messages.
    """

    def __init__(self, address: str) -> None:
        self.place = without_secrets(address)
        self._address = address
        self._scheme, _, self._path = address.partition("://")

    def check(self) -> None:
        """Raises: Misconfigured: the file system cannot be reached, refuses us, or has no such bucket."""
        with self.told():
            files = self._files()
            if self._scheme not in _CLOUDS:
                files.makedirs(files._parent(self._path), exist_ok=True)  # noqa: SLF001  # fsspec's own, on each of them
            elif files.get_file_info(bucket := self._path.partition("/")[0]).type.name == "NotFound":
                raise Misconfigured(f"{self.place}: there is no bucket {bucket}; make it, or name another one")

    def put(self, made: BinaryIO) -> None:
        """Store what a file holds, whole or not at all. Raises: Misconfigured: as `check`."""
        with self.told():
            files = self._files()
            if self._scheme in _CLOUDS:
                with files.open_output_stream(self._path) as out:  # the object is there when it is closed
                    shutil.copyfileobj(made, out, 1 << 20)
            else:
                with files.transaction, files.open(self._path, "wb") as out:
                    shutil.copyfileobj(made, out, 1 << 20)

    def _files(self) -> Any:
        if self._scheme not in _CLOUDS:
            with needed("parquet"):
                import fsspec
            files, self._path = fsspec.core.url_to_fs(self._address, skip_instance_cache=True)
            return files
        if "@" in self._path.partition("/")[0]:
            raise Misconfigured(
                f"{self.place}: credentials come from the environment of the workers (AWS_ACCESS_KEY_ID …), not from an"
                " address"
            )
        with needed("parquet"):
            from pyarrow import fs
        if self._scheme == "gs":
            return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=ANSWER_S))
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not (endpoint or region):
            region = fs.resolve_s3_region(self._path.partition("/")[0])
        return fs.S3FileSystem(
            endpoint_override=endpoint,
            region=region,
            connect_timeout=CONNECT_S,
            request_timeout=ANSWER_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
        )

    def folder(self) -> tuple[Any, str]:
        """A file system as pyarrow has them, and the path of the address in it. Raises: Misconfigured: as `check`."""
        files = self._files()
        if self._scheme not in _CLOUDS:
            from pyarrow import fs

            files = fs.PyFileSystem(fs.FSSpecHandler(files))
        return files, self._path.rstrip("/")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of the file system, as the user reads them. Raises: Misconfigured: one of them."""
        try:
            yield
        except CrawlError:
            raise
        except Exception as error:  # each file system has its own
            text = str(error).replace(self._address, self.place) or type(error).__name__
            hints = "".join(f" {hint}" for mark, hint in _HINTS.items() if mark in text)
            raise Misconfigured(
                f"{self.place}: cannot be written: {text}.{hints}\n"
                "Nothing is lost: all rows are in the log, and the same command writes them once it can."
            ) from error
