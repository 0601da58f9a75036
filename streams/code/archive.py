"""A project's folder as an archive: a ZIP whose bytes depend on its files alone.

FOLDER ─► its files, without what is hidden, made or data ─► scrapy.cfg without its addresses ─► ZIP
EGG, ZIP ─► as it is; its settings from scrapy.cfg or EGG-INFO/entry_points.txt
"""

import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from configparser import ConfigParser, Error
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from crawlog.schemas.code import MAX_ARCHIVE_BYTES
from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

PROJECT = "scrapy.cfg"  # The file that names the settings of a Scrapy project

MAX_FILES = 5_000  # Files of an archive, at most

MAX_UNPACKED_BYTES = 256 << 20  # All files of an archive, unpacked

# Folders that are not packed, beside hidden ones, virtual environments, `*.egg-info` and data folders of crawlog.
LEFT_OUT = ("__pycache__", "node_modules", "build", "dist")

_FILES_LEFT_OUT = ("crawlog.toml",)  # Settings of crawlog: they may have passwords

# Made files, files that Python would run at its start, and keys.
_SUFFIXES_LEFT_OUT = (".pyc", ".pth", ".key", ".pem", ".p12", ".pfx")

_ENTRY_POINTS = ("EGG-INFO/entry_points.txt",)

# What `zipfile` raises for a broken archive.
BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)

# Others are refused: `zipfile` gives what bzip2 and LZMA unpack to in one piece, of any size.
COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})

_DATE = (1980, 1, 1, 0, 0, 0)


class ProjectArchive(NamedTuple):
    """An archive, and what it says of itself.

    Attributes:
        settings: Import path of Scrapy's settings; empty for a folder of crawlog's own spiders.
    """

    content: bytes
    settings: str


def pack(folder: Path) -> ProjectArchive:
    """The archive of a folder.

    Raises: Misconfigured: it has no code, too many files, a private key, a name that is not UTF-8, or is too large.
    """
    found = sorted(_files(folder))
    settings = _settings_in((folder / PROJECT).read_text(errors="replace")) if (folder / PROJECT).is_file() else ""
    if not any(path.suffix == ".py" for path in found):
        raise Misconfigured(f"{folder} has no Python file: it is neither a Scrapy project nor a folder of spiders")
    if len(found) > MAX_FILES:
        raise Misconfigured(f"{folder} has {len(found):,} files to deploy, more than {MAX_FILES:,}: is it the project?")
    size = sum(path.stat().st_size for path in found)
    if size > MAX_UNPACKED_BYTES:
        largest = max(found, key=lambda path: path.stat().st_size)
        raise Misconfigured(
            f"{folder} has {size / 1e6:.0f} MB to deploy, more than {MAX_UNPACKED_BYTES >> 20} MiB; the largest file "
            f"is {largest} ({largest.stat().st_size / 1e6:.0f} MB)"
        )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in found:
            name = path.relative_to(folder).as_posix()
            if not files.is_utf_8(name):
                shown = os.fsencode(path).decode(errors="backslashreplace")
                raise Misconfigured(f"the name of {shown} is not UTF-8, as those in an archive are: rename it")
            content = _config(settings) if name == PROJECT and settings else path.read_bytes()
            if _is_private_key(content):
                raise Misconfigured(f"{path} is a private key, and all readers of the log could read it: move it away")
            _add(archive, name, content)
    return ProjectArchive(_checked(out.getvalue()), settings)


def _config(settings: str) -> bytes:
    """The scrapy.cfg of an archive: its section [deploy] may have passwords, which are not for the log."""
    return f"[settings]\ndefault = {settings}\n".encode()


def _is_private_key(content: bytes) -> bool:
    start = content[:100].lstrip()
    return start.startswith(b"-----BEGIN") and b"PRIVATE KEY" in start


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    archive.writestr(entry, content)


def _files(folder: Path) -> Iterator[Path]:
    """The files that are packed; links are not followed, and not packed."""
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(Path(here, name))]
        for name in names:
            path = Path(here, name)
            is_plain = path.is_file() and not path.is_symlink()
            if is_plain and not _is_file_left_out(name):
                yield path


def _is_file_left_out(name: str) -> bool:
    return name.startswith(".") or name in _FILES_LEFT_OUT or name.lower().endswith(_SUFFIXES_LEFT_OUT)


def _is_left_out(folder: Path) -> bool:
    name = folder.name
    is_data = (folder / "VERSION").is_file() and (folder / "kafka").is_dir()
    return (
        name.startswith(".")
        or name in LEFT_OUT
        or name.endswith(".egg-info")
        or is_data
        or folder.is_symlink()
        or (folder / "pyvenv.cfg").is_file()
    )


def opened(content: bytes) -> ProjectArchive:
    """An archive that somebody made: an egg as `scrapyd-client` uploads it, a wheel, a ZIP of a project.

    Raises: Misconfigured: it is no such archive; it is not unpacked here.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(_checked(content))) as archive:
            names = set(archive.namelist())
            if PROJECT in names:
                return ProjectArchive(content, _settings_in(_text(archive, PROJECT)))
            points = next((name for name in sorted(names) if _has_entry_points(name)), "")
            settings = _entry_point(_text(archive, points)) if points else ""
    except (*BROKEN, OSError) as error:
        raise Misconfigured(f"the archive is broken, or no egg and no ZIP: {error}") from None
    if not settings and not any(name.endswith(".py") and "/" not in name for name in names):
        raise Misconfigured(
            "the archive names no Scrapy settings (a scrapy.cfg, or the entry point `[scrapy] settings` of an egg), "
            "and it has no spider files (*.py) at its top"
        )
    return ProjectArchive(content, settings)


def _has_entry_points(name: str) -> bool:
    path = PurePosixPath(name)
    is_wheel = len(path.parts) == 2 and path.parts[0].endswith(".dist-info") and path.name == "entry_points.txt"
    return name in _ENTRY_POINTS or is_wheel


def _checked(content: bytes) -> bytes:
    if not content:
        raise Misconfigured("the archive is empty")
    if len(content) > MAX_ARCHIVE_BYTES:
        raise Misconfigured(
            f"the archive has {len(content) / 1e6:.0f} MB, more than {MAX_ARCHIVE_BYTES >> 20} MiB: are data in it?"
        )
    return content


def _text(archive: zipfile.ZipFile, name: str) -> str:
    if archive.getinfo(name).compress_type not in COMPRESSIONS:
        raise Misconfigured(f"the archive holds {name!r:.200}: it is neither stored nor deflated")
    with archive.open(name) as file:
        return file.read(1 << 16).decode(errors="replace")


def _settings_in(text: str) -> str:
    """The settings that a scrapy.cfg names first. Raises: Misconfigured: it names none."""
    config = ConfigParser(interpolation=None)
    try:
        config.read_string(text)
        return _module(config.get("settings", "default"))
    except Error as error:
        raise Misconfigured(f"{PROJECT} names no settings: {str(error).splitlines()[0]}") from None


def _entry_point(text: str) -> str:
    """`[scrapy] settings = MODULE`, as in an egg; empty if there is none."""
    config = ConfigParser(interpolation=None, strict=False)
    try:
        config.read_string(text)
    except Error:
        return ""
    return _module(config.get("scrapy", "settings", fallback=""))


def _module(name: str) -> str:
    name = name.strip()
    if name and not all(part.isidentifier() for part in name.split(".")):
        raise Misconfigured(f"{name!r:.100} is no import path of Scrapy's settings")
    return name
