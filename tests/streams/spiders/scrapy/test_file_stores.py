"""Where the files of FilesPipeline and ImagesPipeline go: whole or not at all, and what happens where they cannot."""

import errno
import hashlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from scrapy.pipelines.files import FilesPipeline, FSFilesStore
from scrapy.utils.defer import ensure_awaitable

from crawlog.streams import files
from crawlog.streams.downloads import WORKER
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders.scrapy import file_stores

CONTENT = b"whole"


@pytest.fixture(autouse=True)
def of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy's table, the worker of this process, and no pauses."""
    monkeypatch.setattr(FilesPipeline, "STORE_SCHEMES", FilesPipeline.STORE_SCHEMES)
    monkeypatch.setattr(WORKER, "files", None)
    monkeypatch.setattr(WORKER, "trouble", "")
    monkeypatch.setattr(file_stores, "AGAIN_S", (0.0,) * 6)
    file_stores.install()


def store_of(uri: str) -> Any:
    """As FilesPipeline finds it."""
    return FilesPipeline._get_store(FilesPipeline, uri)  # type: ignore[arg-type]  # it uses the table of the class


async def kept(store: Any, path: str) -> dict[str, Any]:
    """What the store knows of a file that was written."""
    await ensure_awaitable(
        store.persist_file(path, BytesIO(CONTENT), None, {"width": 1}, {"Content-Type": "image/jpeg"})
    )
    found: dict[str, Any] = await ensure_awaitable(store.stat_file(path, None))
    return found


@pytest.mark.parametrize("uri", ["{}/there", "file://{}/there", "memory://there/{}"])
async def test_a_store_knows_what_it_keeps(uri: str, tmp_path: Path) -> None:
    """Its time and its MD5: FILES_EXPIRES and the items have them."""
    store = store_of(uri.format(tmp_path))
    assert await ensure_awaitable(store.stat_file("full/none.jpg", None)) == {}
    found = await kept(store, "full/a.jpg")
    assert found["checksum"] == hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    assert found["last_modified"] > 0


async def test_a_folder_has_a_file_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy's own store would leave half of it. The mode is that of other files of the user."""
    store = store_of(str(tmp_path))
    assert isinstance(store, FSFilesStore)
    real, seen = Path.replace, list[list[str]]()

    def replace(self: Path, target: Path) -> Path:
        seen.append([path.name for path in tmp_path.glob("full/[!.]*")])
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    await kept(store, "full/a.jpg")
    assert seen == [[]]
    (tmp_path / "plain").write_bytes(CONTENT)
    assert (tmp_path / "full" / "a.jpg").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "full" / "a.jpg").read_bytes() == CONTENT


def failing(times: int, error: OSError) -> Callable[..., None]:
    """A write that fails so often."""
    left = [times]

    def write(path: Path, content: bytes, mode: int) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        path.write_bytes(content)

    return write


async def test_a_file_is_written_again_where_the_store_is_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody notices."""
    monkeypatch.setattr(files, "write", failing(6, OSError(errno.ENOSPC, "No space left on device")))
    assert await kept(store_of(str(tmp_path)), "full/a.jpg")
    assert WORKER.trouble == ""


async def test_a_full_disk_is_trouble_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy would write a row without the file; here the rows are made once there is room."""
    monkeypatch.setattr(files, "write", failing(99, OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        await kept(store_of(str(tmp_path)), "full/a.jpg")
    assert WORKER.trouble == f"{tmp_path} cannot be written: [Errno 28] No space left on device"


async def test_a_name_that_no_file_can_have_is_that_files_error(tmp_path: Path) -> None:
    """No other row waits for it."""
    with pytest.raises(OSError, match="too long"):
        await kept(store_of(str(tmp_path)), "n" * 300)
    assert WORKER.trouble == ""


def test_deployed_code_keeps_files_where_its_worker_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own is one in there; an address of its own is its own."""
    monkeypatch.setattr(WORKER, "files", str(tmp_path))
    store_of("pictures")
    assert (tmp_path / "pictures").is_dir()
    monkeypatch.setattr(WORKER, "files", "memory://all")
    assert store_of("pictures").uri == "memory://all/pictures/"
    assert store_of("memory://mine").uri == "memory://mine"


@pytest.mark.parametrize(
    ("place", "uri", "said"),
    [
        ("", "pictures", "pipelines.files names a folder or an address; it is not set"),
        ("/tmp/all", "/etc/pictures", "it is a folder in pipelines.files"),
        ("/tmp/all", "../pictures", "it is a folder in pipelines.files"),
        ("/tmp/all", "file:///etc", "it is a folder in pipelines.files"),
    ],
)
def test_deployed_code_names_no_other_place(place: str, uri: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own folder is gone when its process ends."""
    monkeypatch.setattr(WORKER, "files", place)
    with pytest.raises(Misconfigured, match=said):
        store_of(uri)


def test_an_address_whose_library_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is downloaded."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(file_stores, "import_module", missing)
    for uri in ("s3://bucket/files/", "memory://files"):
        with pytest.raises(Misconfigured, match=r"pip install 'crawlog\[parquet\]'"):
            store_of(uri)
