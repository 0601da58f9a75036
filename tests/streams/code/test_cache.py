"""The cache of deployed code on a worker's machine."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crawlog.schemas.code import CodeManifest
from crawlog.streams.code import pack
from crawlog.streams.code.cache import made_folder


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """The archive of a folder with one spider."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text("NAME = 'shop'")
    return pack(folder).content


def test_a_folder_that_another_process_makes_is_waited_for(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no note of its files yet, and was removed as one that was changed."""
    manifest = CodeManifest("c", "shop", "1", "a" * 64, len(content), 0.0)
    is_unpacked, may_go_on = threading.Event(), threading.Event()
    read = []

    def archive(of: CodeManifest) -> bytes:
        read.append(of)
        return content

    def digest(_folder: Path) -> str:
        is_unpacked.set()
        assert may_go_on.wait(10)
        return "digest"

    monkeypatch.setattr("crawlog.streams.code.cache._digest", digest)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made_folder, tmp_path / "code", manifest, archive)
        assert is_unpacked.wait(10)
        second = pool.submit(made_folder, tmp_path / "code", manifest, archive)
        threading.Event().wait(0.3)
        may_go_on.set()
        assert (first.result(10) / "shop.py").is_file()
        assert second.result(10) == first.result()
    assert read == [manifest]
