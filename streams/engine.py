"""The local engine: Apache Kafka itself, one KRaft node as a child process, all its files under `<data>/kafka/`.

    engine.json   what stays: cluster id, ports
    broker.json   the running broker: pid and the time it started; gone after a clean stop
    log/          Kafka's data
    tmp/          what Java unpacks, emptied at every start: a killed broker leaves it
    broker.log    what the broker says
    server.properties, log4j2.properties   written anew at every start
    power-cut     the machine went down while the broker ran, and what that broke is not mended yet
    lock          held while a command starts or stops the broker

One broker per data folder. It runs in a session of its own, so it outlives a killed command, and the next command on
the folder adopts it. A process is our broker if its pid, its start time and the cluster id that its port answers with
agree. The ports are kept across restarts, so that clients find a broker again that died.
"""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from . import broker, files
from .broker import Identity
from .errors import EngineError
from .jars import Report, cache_folder, fetch_jars, kafka_version
from .java import FLAGS, Archive, archive, class_path, find_java

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["Engine", "fetch_jars", "reserve", "running", "start"]

STOP_TIMEOUT_S = 10.0
"""A clean stop takes 0.3 s; a broker that takes this long is killed, which Kafka recovers from."""

POWER_CUT = "power-cut"

ADOPT_TIMEOUT_S = 10.0
"""How long a broker that runs may take to answer a command that only looks for it."""


def _nothing() -> None:
    pass


class Engine:
    """A running local broker.

    Attributes:
        data: Its data folder.
        identity: Cluster id and ports.
        adopted: It ran already when this command came.
    """

    def __init__(
        self, data: Path, identity: Identity, process: psutil.Process, archived: Archive | None = None
    ) -> None:
        self.data = data
        self.identity = identity
        self.adopted = archived is None
        self._process = process
        self._archive = archived

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return self.identity.bootstrap

    @property
    def cluster_id(self) -> str:
        """The cluster's id, made at the first start on the folder."""
        return self.identity.cluster_id

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return int(self._process.pid)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return broker.is_alive(self._process)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops the broker: SIGTERM, and SIGKILL when it has not ended in time."""
        with _locked(self.data) as folder:
            clean = broker.end(self._process, timeout_s)
            if clean:
                (folder / "broker.json").unlink(missing_ok=True)
        if clean and self._archive:
            self._archive.make()

    @property
    def lost_power(self) -> bool:
        """Whether the machine went down while the broker ran, and nobody has mended what that broke."""
        return (_folder(self.data) / POWER_CUT).exists()

    def mended(self) -> None:
        """What a power cut broke has been mended."""
        (_folder(self.data) / POWER_CUT).unlink(missing_ok=True)

    def point(self, settings: "Settings") -> "Settings":
        """The settings with this broker as their cluster."""
        return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap": self.bootstrap})})


def start(settings: "Settings", data: Path, report: Report, meanwhile: Callable[[], object] = _nothing) -> Engine:
    """The folder's broker, ready: the one that runs, else a new one, on the ports of the last.

    Args:
        settings: Sections `engine` and `kafka`.
        data: The data folder (`run.data`).
        report: Takes one line for the user at a time.
        meanwhile: Called once the broker's process runs, before it is waited for.
    Raises: EngineError: what, where, the likely cause and the next command.
    """
    with _locked(data) as folder:
        return _adopt(data, folder, settings.engine.start_timeout_s) or _start(
            settings, data, folder, report, meanwhile
        )


def running(data: Path) -> Engine | None:
    """The folder's broker if it runs, once it answers; else None."""
    folder = _folder(data)
    return _adopt(data, folder, ADOPT_TIMEOUT_S) if (folder / "broker.json").exists() else None


def reserve(data: Path) -> str:
    """The address that the folder's broker has or will have, so that its clients can be started before it."""
    with _locked(data) as folder:
        return _identity(data, folder).bootstrap


def _adopt(data: Path, folder: Path, timeout_s: float) -> Engine | None:
    process = broker.noted(folder)
    if process is None:
        return None
    identity = _identity(data, folder)
    try:
        broker.Readiness(folder, identity, process, timeout_s).wait()
    except EngineError:
        if broker.is_alive(process):
            raise
        return None  # it was killed a moment ago, and was still ending
    return Engine(data, identity, process)


def _start(settings: "Settings", data: Path, folder: Path, report: Report, meanwhile: Callable[[], object]) -> Engine:
    java = find_java(settings)
    jars = fetch_jars(settings, None, report)
    cache = cache_folder(settings)
    archived = archive(java, jars, cache)
    options = [f"-Xmx{settings.engine.heap_mb}m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
    options += ["-Dlog4j2.configurationFile=log4j2.properties", "-Dlog4j2.disable.jmx=true"]
    options += [f"-Djava.io.tmpdir={folder / 'tmp'}", "-cp", class_path(jars)]
    try:
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        (folder / "tmp").mkdir()
        identity = _identity(data, folder)
        if broker.lost_power(folder):
            (folder / POWER_CUT).touch()
        properties = broker.configure(settings, folder, identity)
        tool = [str(java.path), *FLAGS, *archived.use(), *options]
        broker.format_log(
            tool, folder, properties, identity.cluster_id, cache / f"bootstrap-{kafka_version()}.checkpoint"
        )
        process = broker.launch([str(java.path), *FLAGS, *archived.use_or_note(), *options], folder, properties)
    except OSError as error:
        raise EngineError(_unwritable(data, error)) from None
    try:
        meanwhile()
        broker.Readiness(folder, identity, process, settings.engine.start_timeout_s).wait()
    except BaseException:
        broker.end(process, STOP_TIMEOUT_S)
        raise
    return Engine(data, identity, process, archived)


def _folder(data: Path) -> Path:
    return data.absolute() / "kafka"


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[Path]:
    """The broker's folder, held against another command that starts or stops it."""
    folder = _folder(data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a")
    except OSError as error:
        raise EngineError(_unwritable(data, error)) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the broker does not inherit it: Python's files close on exec
        yield folder


def _identity(data: Path, folder: Path) -> Identity:
    """Cluster id and ports of the folder; while no broker runs, ports that another program took are replaced."""
    path = folder / "engine.json"
    try:
        kept = Identity(**json.loads(path.read_text()))
    except FileNotFoundError:
        kept = Identity(broker.new_id(), 0, 0)
    except (ValueError, TypeError):
        raise EngineError(
            f"{path} is damaged, so the cluster of this folder is unknown.\n"
            "Take the file from a backup, or use another folder with `--data DIR`."
        ) from None
    if broker.noted(folder) is None and not (broker.is_free(kept.port) and broker.is_free(kept.controller_port)):
        kept = Identity(kept.cluster_id, *broker.free_ports())
        try:
            files.write(path, json.dumps(kept._asdict()))
        except OSError as error:
            raise EngineError(_unwritable(data, error)) from None
    return kept


def _unwritable(data: Path, error: OSError) -> str:
    return (
        f"Cannot write to the data folder {data}: {error.strerror or error}.\n"
        "Free some space, or use another folder with `--data DIR`."
    )
