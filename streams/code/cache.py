"""Deployed code on a worker's machine: from the pinned version of a job to the folder that its child runs.

CodeRef ─► manifest: trusted key? this cluster? the same project, version, hash? ─► archive ─► `<data>/code/<sha256>/`
└► at each start of a child; the folder is made once, and refused or made again if something in it was changed
"""

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas import control
from crawlog.schemas.control import CodeNote
from crawlog.schemas.job_orders import CodeRef
from crawlog.streams import files
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Topics, read_records

from . import keys
from .code_log import CodeLog
from .unpack import unpack

if TYPE_CHECKING:
    from crawlog.schemas.code import CodeManifest
    from crawlog.streams.settings import Settings

# How the pages of a refused job come back, and its first requests.
AGAIN = (
    "then `crawlog dead redrive --all --reason code_refused --execute`, and `crawlog submit --job NAME` for a job "
    "whose `start` was refused"
)


class CodeFolder(NamedTuple):
    """Unpacked code that may run.

    Attributes:
        project: `PROJECT VERSION`, for messages.
    """

    path: Path
    project: str


class CodeCache:
    """Gives the folder of a version. May be used from several threads, and by several processes on one data folder.

    Args:
        is_of_command: Whether the operator's own command loads the code: it has no pages that could come back.
    """

    def __init__(self, settings: "Settings", *, is_of_command: bool = False) -> None:
        self._settings = settings
        self._is_of_command = is_of_command
        self._lock = threading.Lock()
        self._log: CodeLog | None = None

    def folder(self, ref: CodeRef) -> CodeFolder:
        """The folder of a version that may run here. Blocks: it reads the log.

        Raises: Misconfigured: it may not run here; the message says why, and what to do. EngineError: no answer.
        """
        with self._lock:
            try:
                return CodeFolder(self._made(self._allowed(ref)), f"{ref.project} {ref.version}")
            except Misconfigured as error:
                raise Misconfigured(f"code_refused: {ref.project:.100} {ref.version:.100}: {error}") from None

    def _allowed(self, ref: CodeRef) -> "CodeManifest":
        if self._log is None:
            self._log = CodeLog(self._settings)
        self._log.look()
        then = "" if self._is_of_command else f", {AGAIN}"
        entry = self._log.find(ref.project, ref.version, ref.sha256)
        if entry is None:
            raise Misconfigured(
                f"the log has no such version with the hash {ref.sha256:.12}: deploy it again with `crawlog deploy "
                f"--project {ref.project:.100} --version {ref.version:.100}`{then}"
            )
        trusted = keys.trusted_keys(self._settings)
        if why := keys.refusal(entry.signed, trusted):
            raise Misconfigured(self._untrusted(why))
        if entry.manifest.cluster != self._log.cluster:
            raise Misconfigured(f"it was signed for another cluster: deploy it here{then}")
        if _is_revoked(self._settings, entry.manifest):
            raise Misconfigured(f"it was revoked: deploy another version{then}")
        return entry.manifest

    def _untrusted(self, why: str) -> str:
        if self._is_of_command:
            return (
                f"this command may not load it: {why}. If you trust that key, start the command with "
                "`-s security.trusted_keys=KEY`, or with CRAWLOG_SECURITY__TRUSTED_KEYS in its environment; else "
                "deploy the project with a key of yours"
            )
        return (
            f"workers here may not run it: {why}. If you trust that key, add it to security.trusted_keys of the "
            f"workers and start them again; else deploy the project with a key of yours; {AGAIN}"
        )

    def _made(self, manifest: "CodeManifest") -> Path:
        assert self._log is not None
        return made_folder(self._settings.run.data.absolute() / "code", manifest, self._log.archive)


def made_folder(cache: Path, manifest: "CodeManifest", archive: "Callable[[CodeManifest], bytes]") -> Path:
    """The folder in the cache; made if it is not there, and made again if it is not what was unpacked.

    Args:
        archive: Reads the archive of a version.
    """
    files.own(cache)
    folder, note = cache / manifest.sha256, cache / f"{manifest.sha256}.files"
    if _is_same(folder, note):
        return folder
    with _locked(cache / f"{manifest.sha256}.lock"):
        if not _is_same(folder, note):  # else another process has made it meanwhile
            content = archive(manifest)
            if folder.exists():
                _remove(folder)
            unpack(content, folder, manifest.settings)
            files.write(note, _digest(folder) + "\n")
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process makes the folder. The lock goes with its process."""
    file = files.opened(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _remove(folder: Path) -> None:
    """Move a folder away, then remove it: another process may make it anew at once."""
    away = folder.with_name(f".{folder.name}.old.{os.getpid()}")
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _is_same(folder: Path, note: Path) -> bool:
    """Whether a folder is as it was unpacked, and nobody else can change it."""
    try:
        if not folder.exists():
            return False
        files.check_inside(folder)
        return files.read(note).strip() == _digest(folder)
    except OSError:
        return False


def _digest(folder: Path) -> str:
    """The digest of all files below, with their names."""
    state = hashlib.sha256()
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(here, name)
            try:
                content = b"" if path.is_symlink() else files.read_trusted(path)
            except PermissionError as error:
                raise Misconfigured(f"the cache of code is not used: {error}; or remove {folder}") from None
            state.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return state.hexdigest()


def _is_revoked(settings: "Settings", manifest: "CodeManifest") -> bool:
    """Whether a note in crawl.control forbids a version. Only these notes are decoded."""
    notes = code_notes(settings)
    found = [notes.get((manifest.project, manifest.version)), notes.get((manifest.project, ""))]
    return any(note is not None and note.revokes(manifest.at) for note in found)


def code_notes(settings: "Settings") -> dict[tuple[str, str], CodeNote]:
    """The newest notes on versions (project, version) and whole projects (project, empty)."""
    topic = Topics(settings.kafka.prefix).control
    start, end = log_bounds(settings, topic, [0])[0]
    found: dict[tuple[str, str], CodeNote] = {}
    for record in read_records(settings, topic, 0, start, end):
        key = record.key() or b""
        if not key.startswith(b"code/"):
            continue
        try:
            note = control.decode(key, record.value())
        except ValueError:
            continue  # the live readers of crawl.control send it to crawl.dead
        if isinstance(note, CodeNote) and control.key(note) == key:
            found[note.project, note.version] = note
        elif note is None:
            project, _, version = key[len(b"code/") :].decode(errors="replace").partition("/")
            found.pop((project, version), None)
    return found
