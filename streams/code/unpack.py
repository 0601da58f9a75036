"""Unpacks an archive into a folder, atomically, or refuses it: its names and sizes are checked, not believed.

archive ─► names: plain, below the folder, no link, no `.pth` ─► a folder beside it ─► renamed ─► FOLDER
"""

import io
import os
import secrets
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from crawlog.streams.errors import Misconfigured

from .archive import BROKEN, COMPRESSIONS, MAX_FILES, MAX_UNPACKED_BYTES, PROJECT

MAX_RATIO = 200  # Bytes unpacked for one byte of the archive, at most; source code has 10

RATIO_FROM = 1 << 20  # Bytes up to which the ratio does not matter

MAX_NAME = 512  # Longest name in an archive, characters

PART_BYTES = 1 << 20

MAX_PART_BYTES = 255  # Longest name of one file or folder, as file systems have it

# What a broken archive, or one whose files have names of its folders, raises.
_NOT_WRITTEN = (*BROKEN, FileExistsError, NotADirectoryError)

_FORBIDDEN = frozenset('\\:*?"<>|\x7f') | {chr(number) for number in range(32)}


def unpack(content: bytes, folder: Path, settings: str = "") -> None:
    """Unpack into a folder that does not exist yet. If another process makes it meanwhile, that one stays.

    Args:
        settings: Import path of Scrapy's settings: an egg gets the scrapy.cfg that it lacks.

    Raises: Misconfigured: the archive is refused; nothing is left behind. OSError: a full disk.
    """
    made = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}")
    made.mkdir(mode=0o700)
    try:
        _write_all(content, made)
        if settings and not (made / PROJECT).exists():
            _write(made / PROJECT, iter([f"[settings]\ndefault = {settings}\n".encode()]))
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    except _NOT_WRITTEN as error:
        raise Misconfigured(f"the archive is broken and cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_all(content: bytes, made: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_FILES:
            raise Misconfigured(f"the archive has {len(entries):,} files, more than {MAX_FILES:,}")
        budget = _Budget(len(content))
        seen: set[str] = set()
        for entry in entries:
            parts = _parts(entry)
            low = "/".join(parts).lower()
            if low in seen and not entry.is_dir():
                raise Misconfigured(f"the archive has the name {entry.filename!r:.200} twice")
            seen.add(low)
            path = made.joinpath(*parts)
            if "__pycache__" in parts:
                continue  # compiled for another Python, as a rule
            if entry.is_dir():
                path.mkdir(parents=True, exist_ok=True, mode=0o755)
                continue
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            _write(path, _read(archive, entry, budget))


class _Budget:
    """The bytes that an archive may still give: what its directory says of sizes is not believed."""

    def __init__(self, packed: int) -> None:
        self._most = min(MAX_UNPACKED_BYTES, max(packed * MAX_RATIO, RATIO_FROM))
        self._used = 0

    def spend(self, size: int) -> None:
        self._used += size
        if self._used > self._most:
            raise Misconfigured(
                f"the archive unpacks to more than {self._most / 1e6:.0f} MB: "
                f"{MAX_UNPACKED_BYTES >> 20} MiB and {MAX_RATIO} times its size are allowed"
            )


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: _Budget) -> Iterator[bytes]:
    with archive.open(entry) as file:
        while part := file.read(PART_BYTES):
            budget.spend(len(part))
            yield part


def _write(path: Path, parts: Iterator[bytes]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
        for part in parts:
            file.write(part)


def _parts(entry: zipfile.ZipInfo) -> list[str]:
    """The parts of an entry's name. Raises: Misconfigured: it is no plain name of a file or folder below."""
    name = entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    parts = name.rstrip("/").split("/")
    fault = ""
    is_long = len(name) > MAX_NAME or max(len(os.fsencode(part)) for part in parts) > MAX_PART_BYTES
    if is_long or any(char in _FORBIDDEN for char in name):
        fault = "such a name is not allowed"
    elif name.startswith("/") or any(part in {"", ".", ".."} for part in parts):
        fault = "it leaves its folder"
    elif kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        fault = "it is a link or a device"
    elif parts[-1].lower().endswith(".pth"):
        fault = "Python would run it at its start"
    elif entry.flag_bits & 1:
        fault = "it is encrypted"
    elif entry.compress_type not in COMPRESSIONS:
        fault = "it is neither stored nor deflated"
    if fault:
        raise Misconfigured(f"the archive holds {name!r:.200}: {fault}")
    return parts
