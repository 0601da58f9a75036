"""The jars of the local engine: named in kafka.lock, fetched once into a cache, verified at every start.

`kafka.lock` holds one line per jar, `GROUP:ARTIFACT:VERSION SHA256`; Maven makes it from kafka.pom.xml. A jar comes
from a Maven repository or from a folder (flat, or laid out like a repository). It is written to a temporary name,
verified, then renamed. A file with a wrong SHA-256 never reaches the class path, nor does a file that another user
could change.
"""

import hashlib
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import cache
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from crawlog.streams import files as own_files
from crawlog.streams.errors import EngineError

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

PARALLEL = 8  # Jars fetched at a time: a repository's usual limit of connections to one client

TIMEOUT_S = 30.0  # Timeout of the repository's answer, and of each read

CHUNK_BYTES = 1 << 16  # Bytes of one read: between two a download can be ended

ATTEMPTS = 3  # Tries for one jar; a broken download counts too

Report = Callable[[str], None]


class Jar(NamedTuple):
    """A line of kafka.lock."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


@cache
def locked_jars() -> tuple[Jar, ...]:
    """The jars of kafka.lock."""
    lines = files(__package__).joinpath("kafka.lock").read_text().splitlines()
    return tuple(_jar(*line.split()) for line in lines)


def _jar(coordinates: str, sha256: str) -> Jar:
    group, artifact, version = coordinates.split(":")
    return Jar(group, artifact, version, sha256)


def kafka_version() -> str:
    return next(jar.version for jar in locked_jars() if jar.artifact.startswith("kafka_"))


def cache_folder(settings: "Settings") -> Path:
    """The folder of the jars: the setting `engine.cache`, else one in the user's cache folder.

    Raises: EngineError: the user has no home folder.
    """
    if settings.engine.cache:
        return settings.engine.cache.absolute()  # the broker runs in a folder of its own
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "crawlog" / "kafka" / kafka_version()
    except RuntimeError:
        raise EngineError(
            "No folder for Apache Kafka's jars: this user has no home folder.\nName one with `-s engine.cache=DIR`."
        ) from None


def fetch_jars(settings: "Settings", to: Path | None, report: Report) -> list[Path]:
    """All jars, verified, in a folder; missing or broken jars are fetched.

    Args:
        settings: Names the source, and the cache.
        to: The folder; None for the cache.
        report: Takes one line for the user.
    Raises: EngineError: no network, a broken jar, a folder that cannot be written.
    """
    folder = to or cache_folder(settings)
    try:
        _make(folder)
    except OSError as error:
        raise EngineError(_unwritable(folder, error)) from None
    if to is None:  # the JVM reads the jars after our check
        _check(folder)
    jars = locked_jars()
    pool, stop = ThreadPoolExecutor(PARALLEL), Event()
    try:
        whole = list(pool.map(lambda jar: _is_whole(folder / jar.name, jar), jars))
        missing = [jar for jar, is_whole in zip(jars, whole, strict=True) if not is_whole]
        if missing:
            source = settings.engine.maven_url or _default_repository()
            report(f"fetching Apache Kafka {kafka_version()}: {len(missing)} of {len(jars)} jars from {source}")
            waiting = {pool.submit(_fetch, source, jar, folder, stop): jar for jar in missing}
            for done in _with_bar(as_completed(waiting), len(missing)):
                done.result()
    except BaseException as error:
        stop.set()
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)  # a signal is obeyed at once
        raise
    pool.shutdown()
    return [folder / jar.name for jar in jars]


def _make(folder: Path) -> None:
    """Makes a folder that other users cannot write to, with any umask."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises if the path is no folder


def _check(folder: Path) -> None:
    try:
        own_files.check(folder)
    except OSError as error:
        raise EngineError(
            f"Apache Kafka's jars in {folder} are not used: {error}.\n"
            "Or name another folder with `-s engine.cache=DIR`."
        ) from None


def _is_whole(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            is_whole = hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
        own_files.check(path)
    except OSError:
        return False
    return is_whole


def _default_repository() -> str:
    try:
        from jgo.constants import MAVEN_CENTRAL_URL  # an extra
    except ImportError:
        raise EngineError(
            "No address to fetch Apache Kafka's jars from: the package jgo, which names it, is not installed.\n"
            "Install it with `pip install 'crawlog[local]'`, or set engine.maven_url to a repository or a folder."
        ) from None
    return str(MAVEN_CENTRAL_URL)


def _fetch(source: str, jar: Jar, folder: Path, stop: Event) -> None:
    """Fetches one jar into the folder; tries a broken one again before it raises."""
    failures: list[str] = []
    temporary = folder / f".{jar.name}.{os.getpid()}"
    try:
        for _ in range(ATTEMPTS):
            try:
                where = _copy(source, jar, temporary, stop)
            except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException) as error:
                failures.append(str(getattr(error, "reason", error)))
                continue
            temporary.chmod(0o644)
            if _is_whole(temporary, jar):
                temporary.replace(folder / jar.name)
                return
            failures.append(f"{where} is broken: its SHA-256 is not {jar.sha256}")
    except FileNotFoundError as error:
        raise EngineError(
            f"{error}.\nMake the folder with `crawlog engine fetch --to DIR` on a machine with a network."
        ) from None
    except OSError as error:
        raise EngineError(_unwritable(folder, error)) from None
    finally:
        temporary.unlink(missing_ok=True)
    raise EngineError(
        f"Cannot fetch {jar.name} from {source}: {failures[-1]} ({ATTEMPTS} attempts).\n"
        "Without a network: run `crawlog engine fetch --to DIR` on a machine that has one, copy DIR here, and pass "
        "`-s engine.maven_url=DIR`. Behind a proxy: set HTTPS_PROXY. A mirror: set engine.maven_url."
    )


def _copy(source: str, jar: Jar, to: Path, stop: Event) -> str:
    """Copies a jar from a repository or a folder; returns its source. Raises: EngineError: `stop` is set."""
    if "://" not in source:
        candidates = [Path(source) / jar.name, Path(source) / jar.path]
        found = next((path for path in candidates if path.is_file()), None)
        if found is None:
            raise FileNotFoundError(f"{jar.name} is not in the folder {source} (engine.maven_url)")
        shutil.copyfile(found, to)
        return str(found)
    url = f"{source.rstrip('/')}/{jar.path}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response, to.open("wb") as file:  # noqa: S310  # verified by its hash
        while not stop.is_set() and (chunk := response.read(CHUNK_BYTES)):
            file.write(chunk)
    if stop.is_set():
        raise EngineError(f"the download of {url} was ended")
    return url


def _with_bar(steps: Iterable[Future[None]], total: int) -> Iterable[Future[None]]:
    """The same steps, with a progress bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        return steps
    from rich.console import Console  # imported only when shown
    from rich.progress import track

    return track(steps, "Apache Kafka", total=total, console=Console(stderr=True), transient=True)


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"Cannot write Apache Kafka's jars to {folder}: {error.strerror or error}.\n"
        "Free some space (50 MB), or name another folder with `-s engine.cache=DIR`."
    )
