"""The local engine: Apache Kafka as a child process, one KRaft node, all its files under `<data>/kafka/`.

    engine.json   cluster id and ports, kept across restarts
    broker.json   the running broker: pid, the time it started, its folder and its password; gone after a clean stop
    log/          Kafka's data
    tmp/          Java's temporary files, emptied at every start: a killed broker leaves them
    broker.log    the broker's output
    server.properties, log4j2.properties   written anew at every start
    power-cut     the machine went down while the broker ran, and the damage is not repaired yet
    unchecked     a broker was killed, or its files were changed; the log has not been checked since
    files.json    sizes and times of the log's files at the last clean end
    changed       files changed since then, until a broker has checked them
    cut-TIME.jsonl  records behind damage, before its files were cut there (`segments.py`)
    offer         names of the cut-TIME.jsonl whose founds are not in the log again yet
    lock          held while a command starts or stops the broker
    users         held by commands that use the broker without the data folder (`lock.py`)

One broker per data folder. It runs in a session of its own, so it outlives a killed command, and the next command on
the folder adopts it. A process is our broker if its pid, its start time, its folder and the cluster id behind its port
agree: a copy of the data folder has a broker of its own. The ports are kept across restarts, so that clients find a
restarted broker.

Other users of the machine can connect to both ports. So both require a password, a new one for each start; only the
owner can read the files that hold it. A supervisor that restarts its broker keeps the password, since its clients still
use it.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from crawlog.streams import files
from crawlog.streams.errors import EngineError, EngineKilled

from . import broker
from .broker import Identity
from .changed_files import OFFER, UNCHECKED, before_start, note_files, to_offer
from .jars import Report, cache_folder, fetch_jars, kafka_version
from .java import Archive, archive, class_path, find_java
from .lock import check_unused, folder_of, held, unwritable

if TYPE_CHECKING:
    from crawlog.schemas.urls import UrlsRecord
    from crawlog.streams.settings import Settings

# A clean stop takes 0.3 s, on a busy machine over 10: all files are flushed. A broker that takes this long is killed,
# which Kafka recovers from by a check of every file.
STOP_TIMEOUT_S = 20.0

POWER_CUT = "power-cut"

START_TRIES = 3  # Attempts in a row to start a broker that is killed while it starts

ADOPT_TIMEOUT_S = 10.0  # How long a running broker may take to answer a command that looks for it


def _nothing() -> None:
    pass


class Engine:
    """A running local broker.

    Attributes:
        data: Its data folder.
        identity: Cluster id and ports.
        password: Required on both ports.
        adopted: Whether it ran before this command.
    """

    def __init__(
        self,
        data: Path,
        identity: Identity,
        process: psutil.Process,
        password: str,
        archived: Archive | None = None,
    ) -> None:
        self.data = data
        self.identity = identity
        self.password = password
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
        return int(self._process.pid)

    def alive(self) -> bool:
        return broker.is_alive(self._process)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops the broker by SIGTERM, and by SIGKILL after the timeout."""
        with held(self.data) as folder:
            clean = _end(self._process, folder, timeout_s)
        if clean and self._archive:
            self._archive.make()

    @property
    def lost_power(self) -> bool:
        """Whether the machine went down while the broker ran, and the damage is not repaired yet."""
        return (folder_of(self.data) / POWER_CUT).exists()

    @property
    def is_unchecked(self) -> bool:
        """Whether the log must be checked: a broker of this folder was killed, or its files were changed."""
        return (folder_of(self.data) / UNCHECKED).exists()

    def checked(self) -> None:
        (folder_of(self.data) / UNCHECKED).unlink(missing_ok=True)

    @property
    def cut_off(self) -> list[Path]:
        """The files of the records that were cut from the log; empty after `offered`."""
        return to_offer(folder_of(self.data))

    def founds_cut_off(self) -> "Iterable[tuple[str, int, UrlsRecord]]":
        """The readable founds of `cut_off`: topic, partition and record."""
        from .segments import founds  # imports aiokafka; commands that only start a broker do not need it

        return (found for file in self.cut_off if file.exists() for found in founds(file))

    def offered(self) -> None:
        """Note that the founds of `cut_off` are in the log again."""
        (folder_of(self.data) / OFFER).unlink(missing_ok=True)

    def mended(self) -> None:
        (folder_of(self.data) / POWER_CUT).unlink(missing_ok=True)

    def point(self, settings: "Settings") -> "Settings":
        """The settings with this broker as their cluster."""
        there = {"bootstrap": self.bootstrap, **broker.credentials(self.password)}
        return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=there)})


def start(
    settings: "Settings",
    data: Path,
    report: Report,
    meanwhile: Callable[[], object] = _nothing,
    died: Engine | None = None,
    *,
    checks: bool = False,
) -> Engine:
    """The folder's broker, ready: the running one, else a new one on the same ports.

    Args:
        settings: Sections `engine` and `kafka`.
        data: The data folder (`run.data`).
        report: Takes one line for the user at a time.
        meanwhile: Called once the broker's process runs, before the wait for its readiness.
        died: The dead broker whose clients still run. Its password is kept if its ports are still free.
        checks: Have Kafka check files that were changed while it did not run, and cut damage off.
    Raises: EngineError: what, where, the likely cause and the next command.
    """
    with held(data) as folder:
        tries = START_TRIES
        while True:
            try:
                return _adopt(data, folder, settings.engine.start_timeout_s) or _start(
                    settings, data, folder, report, meanwhile, died, checks=checks
                )
            except EngineKilled:
                tries -= 1
                if not tries:
                    raise
                report("Apache Kafka was killed while it started; it is started again")


def exists(data: Path) -> bool:
    return (folder_of(data) / "engine.json").exists()


def running(data: Path) -> Engine | None:
    """The folder's broker if it runs, after it answers; else None.

    Raises: EngineError: it does not answer.
    """
    folder = folder_of(data)
    return _adopt(data, folder, ADOPT_TIMEOUT_S) if (folder / "broker.json").exists() else None


def is_up(data: Path) -> bool:
    """Whether the folder's broker runs; it may not answer yet."""
    return broker.noted(folder_of(data)) is not None


def login(data: Path, bootstrap: str) -> tuple[str, str]:
    """User and password of the folder's latest broker; a restarted broker may have a new password.

    Args:
        bootstrap: The address that the clients use.
    Raises: EngineError: the broker has another address now.
    """
    folder = folder_of(data)
    now = _noted_identity(folder).bootstrap
    if now != bootstrap:
        raise EngineError(
            f"Apache Kafka was started anew at {now}: another program has taken {bootstrap} meanwhile.\n"
            "Run the command again: it adds what is missing."
        )
    return broker.USER, broker.noted_password(folder)


def is_at(data: Path, bootstrap: str) -> bool:
    return exists(data) and _noted_identity(folder_of(data)).bootstrap == bootstrap


def again(settings: "Settings", data: Path) -> "Settings":
    """The settings with the present address and password of the folder's broker; themselves if it is away or the same.

    Args:
        settings: Of a client of an earlier broker of the folder.
    Raises: EngineError: it does not answer yet.
    """
    with contextlib.suppress(EngineError):  # another address
        if login(data, settings.kafka.bootstrap) == (settings.kafka.sasl_username, settings.kafka.sasl_password):
            return settings
    local = running(data)
    return settings if local is None else local.point(settings)


def stop(data: Path) -> int | None:
    """Stops the folder's broker, of any crawlog version; returns its process id, or None if none runs."""
    if broker.noted(folder_of(data)) is None:
        return None
    with held(data) as folder:
        process = broker.noted(folder)
        if process is None:
            return None
        _end(process, folder, STOP_TIMEOUT_S)
        return int(process.pid)


def reserve(data: Path) -> str:
    """The address of the folder's broker, also before its start, so that clients can start first."""
    with held(data) as folder:
        return _identity(data, folder).bootstrap


def _adopt(data: Path, folder: Path, timeout_s: float) -> Engine | None:
    process = broker.noted(folder)
    if process is None:
        return None
    identity, password = _identity(data, folder), broker.noted_password(folder)
    try:
        broker.Readiness(folder, identity, process, timeout_s, password).wait()
    except EngineError:
        if broker.is_alive(process):
            raise
        return None  # it was killed, and has just ended
    return Engine(data, identity, process, password)


def _end(process: psutil.Process, folder: Path, timeout_s: float) -> bool:
    """Ends the broker; True after a clean end: then its files are noted, and broker.json is removed.

    If it died before, and another broker runs on the folder, the note is that one's and stays.
    """
    clean = broker.end(process, timeout_s)
    if clean and broker.noted(folder) is None:
        with contextlib.suppress(OSError):  # a full disk: changes until the next start go unnoticed
            note_files(folder)
        (folder / "broker.json").unlink(missing_ok=True)
    return clean


def _start(  # the arguments of `start`, and the folder
    settings: "Settings",
    data: Path,
    folder: Path,
    report: Report,
    meanwhile: Callable[[], object],
    died: Engine | None,
    *,
    checks: bool,
) -> Engine:
    check_unused(folder)
    java = find_java(settings)
    jars = fetch_jars(settings, None, report)
    cache = cache_folder(settings)
    archived = archive(java, jars, cache)
    options = [f"-Xmx{settings.engine.heap_mb}m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
    options += ["-Dlog4j2.configurationFile=log4j2.properties", "-Dlog4j2.disable.jmx=true"]
    options += [f"-Djava.io.tmpdir={folder / 'tmp'}", "-cp", class_path(jars)]
    try:
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        (folder / "tmp").mkdir(mode=0o700)
        files.check_inside(folder)
        identity = _identity(data, folder)
        before_start(data, folder, report, checks=checks)
        if broker.lost_power(folder):
            files.write(folder / POWER_CUT, "")
        password = died.password if died and died.identity == identity else broker.new_password()
        properties = broker.configure(settings, folder, identity, password)
        tool = [*java.command, *archived.use(), *options]
        broker.format_log(
            tool, folder, properties, identity.cluster_id, cache / f"bootstrap-{kafka_version()}.checkpoint"
        )
        command = [*java.command, *archived.use_or_note(), *options]
        process = broker.launch(command, folder, properties, password)
    except OSError as error:
        raise EngineError(unwritable(data, error)) from None
    try:
        meanwhile()
        broker.Readiness(folder, identity, process, settings.engine.start_timeout_s, password).wait()
    except BaseException:
        broker.end(process, STOP_TIMEOUT_S)
        raise
    return Engine(data, identity, process, password, archived)


def _identity(data: Path, folder: Path) -> Identity:
    """Cluster id and ports of the folder. While no broker runs, ports taken by another program are replaced."""
    path = folder / "engine.json"
    try:
        kept = _noted_identity(folder)
    except FileNotFoundError:
        kept = Identity(broker.new_id(), 0, 0)
    if broker.noted(folder) is None and not (broker.is_free(kept.port) and broker.is_free(kept.controller_port)):
        kept = Identity(kept.cluster_id, *broker.free_ports())
        try:
            files.write(path, json.dumps(kept._asdict()))
        except OSError as error:
            raise EngineError(unwritable(data, error)) from None
    return kept


def _noted_identity(folder: Path) -> Identity:
    path = folder / "engine.json"
    try:
        return Identity(**json.loads(files.read(path)))
    except (ValueError, TypeError):
        raise EngineError(
            f"{path} is damaged, so the cluster of this folder is unknown.\n"
            "Take the file from a backup, or use another folder with `--data DIR`."
        ) from None
