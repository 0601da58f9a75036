"""Projects in the log: deploy one, list them with versions and spiders, hide, revoke, and pin a version for a job.

FOLDER or archive ─► its spiders, listed in a child process ─► signed ─► crawl.code ─► Deployed
crawl.code, notes of crawl.control ─► versions that are not hidden, the newest last ─► CodeRef

A version is hidden by a note that is later than its manifest: the same version, deployed again, is seen again.
"""

import contextlib
import hashlib
import shutil
import subprocess
import threading
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.code import CodeManifest, Name
from crawlog.schemas.control import CodeNote, JobCopy
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.schedules import JobSchedule
from crawlog.streams.errors import Misconfigured, SpiderDied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawlog.streams.cluster import LogIdentity
    from crawlog.streams.code import CodeLog, ProjectArchive, SigningKey
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings

LISTING = "crawlog.streams.spiders.deployed:load_listing"  # Loads what lists the spiders of a folder, in the child

MAX_SPIDERS = 1_000  # Spiders of a project, at most: the manifest has their names

# How far ahead a time counts that no trusted key has signed: a deletion at that time hides what comes before it.
STRANGERS_AHEAD_S = 86_400.0


class Deployed(msgspec.Struct):
    """A version that was deployed.

    Attributes:
        key: The public key that signed it.
        is_trusted: Whether workers with these settings and this data folder run it.
    """

    project: str
    version: str
    sha256: str
    spiders: tuple[str, ...]
    size: int = 0
    key: str = ""
    is_trusted: bool = True


class ProjectVersion(msgspec.Struct):
    """A version of a project, as lists show it.

    Attributes:
        at: UTC epoch seconds of its deployment.
        key: The public key that signed it.
        is_trusted: Whether that key is trusted here.
    """

    project: str
    version: str
    sha256: str
    spiders: tuple[str, ...]
    at: float
    size: int
    by: str = ""
    key: str = ""
    is_trusted: bool = True


class Removed(msgspec.Struct):
    """What became of deleted versions.

    Attributes:
        versions: Hidden from now on; of a revocation, also those that were hidden and that jobs may pin.
        pinned: Jobs whose records still pin their code: its bytes stay in the log for them.
    """

    versions: tuple[str, ...]
    pinned: tuple[str, ...] = ()


def deploy(
    settings: "Settings",
    source: bytes | Path,
    project: str = "",
    version: str = "",
    by: str = "",
    key: "SigningKey | None" = None,
) -> Deployed:
    """Put a project into the log, signed. Its code runs in a child process only, to list its spiders.

    Args:
        source: A folder, or an archive: an egg, or a ZIP of a folder.
        project: Its name; empty for the folder's own.
        version: Empty for the commit of a clean git repository, else for the time.
        by: Who deploys it, for people.
        key: Signs it; None for the data folder's own key.

    Raises: Misconfigured: it is no project, it is broken, or a name is not allowed. EngineError: the log is away.
    """
    from crawlog.streams.code import folder_key, opened, pack

    folder = source.expanduser().absolute() if isinstance(source, Path) else None
    project = _named("project", project or (_name(folder) if folder else ""))
    version = _named("version", version or _version(folder))
    if folder is not None and not folder.is_dir():
        raise Misconfigured(f"{folder} is no folder; deploy the folder of a project, the one with its scrapy.cfg")
    archive = pack(folder) if folder is not None else opened(bytes(source))
    spiders = _listed(settings, archive)
    if not spiders:
        raise Misconfigured(f"the project {project} has no spider; a Scrapy project lists them by SPIDER_MODULES")
    return _write(settings, archive, (project, version, by, spiders), key or folder_key(settings.run.data))


def _write(
    settings: "Settings", archive: "ProjectArchive", said: tuple[str, str, str, tuple[str, ...]], key: "SigningKey"
) -> Deployed:
    from crawlog.streams.code import code_notes, refusal, trusted_keys

    project, version, by, spiders = said
    digest, trusted = hashlib.sha256(archive.content).hexdigest(), trusted_keys(settings)
    with _code_log(settings) as log:
        notes = code_notes(settings)
        hidden = [note.at for note in (notes.get((project, version)), notes.get((project, ""))) if note is not None]
        ours = [one for one in log.entries if one.signed.key == key.public or not refusal(one.signed, trusted)]
        older = [one.manifest.at for one in ours if one.manifest.project == project]
        at = max([time.time(), *(before + 0.001 for before in (*hidden, *older))])
        manifest = CodeManifest(
            log.cluster, project, version, digest, len(archive.content), at, spiders, archive.settings, by[:200]
        )
        signed = key.sign(manifest)
        log.write(archive.content, signed, _producer(settings))
        log.look()
        _sweep(settings, log)
        is_trusted = not refusal(signed, trusted)
    return Deployed(project, version, digest, spiders, len(archive.content), key.public, is_trusted)


def versions(settings: "Settings", project: str = "") -> list[ProjectVersion]:
    """The versions of a project, or of all, that are not hidden: by project, the newest last.

    Where keys are trusted here, only what they signed counts, if there is any: any writer of the topic may add more.
    """
    from crawlog.streams.code import code_notes, refusal, trusted_keys

    with _code_log(settings) as log:
        entries = log.entries
    trusted, notes = trusted_keys(settings), code_notes(settings)
    newest: dict[tuple[str, str], ProjectVersion] = {}
    for entry in sorted(entries, key=lambda one: one.manifest.at):
        one = entry.manifest
        is_trusted = not refusal(entry.signed, trusted)
        before = newest.get((one.project, one.version))
        if (
            (project and one.project != project)
            or _is_hidden(one, notes)
            or (before and before.is_trusted > is_trusted)
        ):
            continue
        newest.pop((one.project, one.version), None)
        newest[one.project, one.version] = ProjectVersion(
            one.project, one.version, one.sha256, one.spiders, one.at, one.size, one.by, entry.signed.key, is_trusted
        )
    found = list(newest.values())
    known = {one.project for one in found if one.is_trusted}
    return sorted(
        (one for one in found if one.is_trusted or one.project not in known), key=lambda one: (one.project, one.at)
    )


def list_projects(settings: "Settings") -> list[str]:
    return sorted({one.project for one in versions(settings)})


def list_versions(settings: "Settings", project: str) -> list[str]:
    """Versions of a project, the newest last; none if there is no such project."""
    return [one.version for one in versions(settings, project)]


def list_spiders(settings: "Settings", project: str, version: str | None = None) -> list[str]:
    """Names of a project's spiders. Raises: Misconfigured: there is no such version."""
    return sorted(_one(settings, project, version).spiders)


def resolve(settings: "Settings", project: str, version: str | None = None) -> CodeRef:
    """The version that a new job pins; the newest one if none is named. Raises: Misconfigured: there is none."""
    found = _one(settings, project, version)
    return CodeRef(found.project, found.version, found.sha256)


def _one(settings: "Settings", project: str, version: str | None) -> ProjectVersion:
    found = versions(settings, project)
    if not found:
        raise Misconfigured(
            f"there is no project {project!r:.130} in the log; `crawlog projects list` names those there are"
        )
    if version is None:
        return found[-1]
    for one in found:
        if one.version == version:
            return one
    if refused := _refused(settings, project, version):
        raise Misconfigured(f"the project {project} has the version {version!r:.130} in the log, but {refused}")
    has = ", ".join(one.version for one in found[-10:])
    raise Misconfigured(f"the project {project} has no version {version!r:.130}; it has {has}")


def _refused(settings: "Settings", project: str, version: str) -> str:
    """Why a version in the log that is not deleted does not count here; empty if there is none, or it does."""
    from crawlog.streams.code import code_notes, refusal, trusted_keys

    trusted, notes = trusted_keys(settings), code_notes(settings)
    with _code_log(settings) as log:
        of_name = [one for one in log.entries if (one.manifest.project, one.manifest.version) == (project, version)]
    signed = [one.signed for one in of_name if not _is_hidden(one.manifest, notes)]
    return next((why for one in signed if (why := refusal(one, trusted))), "")


def delete_version(settings: "Settings", project: str, version: str, by: str = "", *, revoke: bool = False) -> Removed:
    """Hide a version; its bytes leave the log once no job pins it.

    Args:
        revoke: Whether no worker starts it any more, for jobs that pin it too; one that is deleted can be revoked.

    Raises: Misconfigured: there is no such version.
    """
    if not (revoke and is_in_log(settings, project, version)):
        _one(settings, project, version)
    return _hide(settings, project, version, by, revoke=revoke)


def delete_project(settings: "Settings", project: str, by: str = "", *, revoke: bool = False) -> Removed:
    """The same for all versions of a project. Raises: Misconfigured: there is no such project."""
    if not (revoke and is_in_log(settings, project)):
        _one(settings, project, None)
    return _hide(settings, project, "", by, revoke=revoke)


def is_in_log(settings: "Settings", project: str, version: str = "") -> bool:
    """Whether the log has a version that a trusted key has signed, hidden or not; any one if none is named."""
    return any(version in ("", one.version) for one in _signed(settings, project))


def _signed(settings: "Settings", project: str) -> "list[CodeManifest]":
    """The manifests of a project in the log that a trusted key has signed, hidden or not."""
    from crawlog.streams.code import refusal, trusted_keys

    trusted = trusted_keys(settings)
    with _code_log(settings) as log:
        entries = log.entries
    return [one.manifest for one in entries if one.manifest.project == project and not refusal(one.signed, trusted)]


def _hide(settings: "Settings", project: str, version: str, by: str, *, revoke: bool) -> Removed:
    from crawlog.streams.code import code_notes
    from crawlog.streams.control import write_control
    from crawlog.streams.log import Topics

    shown, signed = versions(settings, project), _signed(settings, project)
    seen = [one.version for one in shown]
    if revoke:
        seen = [one.version for one in signed if one.version not in seen] + seen
    gone = tuple(one for one in dict.fromkeys(seen) if version in ("", one))
    at = max(time.time(), _last_deployed(shown, signed) + 0.001)
    note = CodeNote(project, version, revoked=revoke, at=at, by=by[:200], revoked_at=at if revoke else 0.0)
    before = code_notes(settings).get((project, version))
    if before is not None and before.revoked and not revoke:
        note = msgspec.structs.replace(note, revoked=True, revoked_at=before.revoked_at or before.at)
    write_control(_producer(settings), Topics(settings.kafka.prefix), [note])
    with _code_log(settings) as log:
        pinned = _sweep(settings, log)
    return Removed(gone, tuple(sorted(job for job, ref in pinned if ref.project == project and ref.version in gone)))


def _last_deployed(shown: "list[ProjectVersion]", signed: "list[CodeManifest]") -> float:
    """When a version of a project was deployed last, hidden ones included; by another machine's clock, perhaps."""
    times = [min(one.at, time.time() + STRANGERS_AHEAD_S) for one in shown]
    return max([*times, *(one.at for one in signed)], default=0.0)


def _sweep(settings: "Settings", log: "CodeLog") -> list[tuple[str, CodeRef]]:
    """Remove what is hidden or replaced and no job pins; returns the jobs that pin code."""
    from crawlog.streams.code import code_notes, refusal, trusted_keys
    from crawlog.streams.control import read_control
    from crawlog.streams.log import Topics

    control = read_control(settings, Topics(settings.kafka.prefix))
    copies = [one for one in control.of(JobCopy) if one.spec.state != "deleted"]
    pins = [(one.job, one.spec.code) for one in copies if one.spec.code is not None]
    schedules = ((one.name, job.spec.code) for one in control.of(JobSchedule) for job in one.jobs)
    pins += [(f"schedule {name}", code) for name, code in schedules if code is not None]
    pinned = {ref for _, ref in pins}
    notes, trusted = code_notes(settings), trusted_keys(settings)
    ours = [entry.manifest for entry in log.entries if not refusal(entry.signed, trusted)]
    newest = {(one.project, one.version): one.at for one in sorted(ours, key=lambda one: one.at)}
    gone = [
        one
        for one in ours
        if CodeRef(one.project, one.version, one.sha256) not in pinned
        and (_is_hidden(one, notes) or one.at < newest[one.project, one.version])
    ]
    if gone:
        log.remove(gone, _producer(settings))
        log.look()
    return pins


def _is_hidden(manifest: CodeManifest, notes: dict[tuple[str, str], CodeNote]) -> bool:
    for key in ((manifest.project, manifest.version), (manifest.project, "")):
        note = notes.get(key)
        if note is not None and note.hidden and note.at >= manifest.at:
            return True
    return False


def _named(what: str, name: str) -> str:
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise Misconfigured(
            f"{name!r:.130} is no name of a {what}: letters, digits and _ . + ! - only, at most 128 of them, and "
            "none of . + ! - at its start"
        ) from None


def _name(folder: Path) -> str:
    """The folder's name as it was given: a link has one of its own."""
    return folder.resolve().name if folder.name == ".." else folder.name


def _version(folder: Path | None) -> str:
    """The commit of a clean git repository, else the time."""
    if folder is not None and shutil.which("git"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            git = ["git", "-C", str(folder)]
            changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, timeout=10, check=True)
            if not changed.stdout.strip():
                said = subprocess.run(
                    [*git, "log", "-1", "--format=%h", "."], capture_output=True, timeout=10, check=True
                )
                if said.stdout.strip():
                    return said.stdout.decode().strip()
    return str(int(time.time()))


def _listed(settings: "Settings", archive: "ProjectArchive") -> tuple[str, ...]:
    """Names of an archive's spiders, as a child process says; it is unpacked into a folder of its own for that."""
    from crawlog.agents.sandbox import LOAD_S, ChildRules, SpiderChild
    from crawlog.streams.code import unpack
    from crawlog.streams.spiders import SpiderRef

    work = Path(mkdtemp(prefix="crawlog-deploy-"))
    try:
        folder = work / "code"
        unpack(archive.content, folder, archive.settings)
        with SpiderChild(SpiderRef("", folder=str(folder)), ChildRules.of(settings, None), loader=LISTING) as child:
            found = msgspec.json.decode(child.call("spiders", limit_s=LOAD_S), type=list[str])
    except SpiderDied as error:
        raise Misconfigured(f"the project's spiders cannot be listed: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if len(found) > MAX_SPIDERS or sum(map(len, found)) > 100_000:
        raise Misconfigured(f"the project has {len(found):,} spiders, more than {MAX_SPIDERS:,}")
    return tuple(sorted(found))


# One view of crawl.code in a process: it reads only what is new.

_lock = threading.Lock()
_logs: dict["LogIdentity", "CodeLog"] = {}


@contextlib.contextmanager
def _code_log(settings: "Settings") -> "Iterator[CodeLog]":
    """The log's content up to now, for one caller at a time."""
    from crawlog.streams.cluster import log_identity
    from crawlog.streams.code import CodeLog
    from crawlog.streams.log import Topics

    with _lock:
        identity = log_identity(settings, Topics(settings.kafka.prefix).code)
        log = _logs.get(identity)
        if log is None:
            log = _logs[identity] = CodeLog(settings)
        log.look(settings)
        yield log


def _producer(settings: "Settings") -> "Producer":
    from crawlog.streams.log import CommandProducer

    return CommandProducer(settings, "crawlog-projects")
