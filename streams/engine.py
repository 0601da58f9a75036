"""The local engine: Apache Kafka itself, one KRaft node as a child process, all its files under `<data>/kafka/`.

    engine.json   what stays: cluster id, ports
    broker.json   the running broker: pid and the time it started; gone after a clean stop
    log/          Kafka's data
    broker.log    what the broker says
    server.properties, log4j2.properties   written anew at every start
    lock          held while a command starts or stops the broker

One broker per data folder. It runs in a session of its own, so it outlives a killed command, and the next command on
the folder adopts it. A process is our broker if pid, start time and the cluster id that its port answers with agree.
The ports are kept across restarts, so that clients find a broker again that died.
"""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from .errors import EngineError
from .jars import Report, cache_folder, fetch_jars
from .java import FLAGS, Archive, Java, archive, class_path, find_java

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["Engine", "fetch_jars", "reserve", "running", "start"]

HOST = "127.0.0.1"

STOP_TIMEOUT_S = 10.0
"""A clean stop takes 0.3 s; a broker that takes this long is killed, which Kafka recovers from."""

SESSION_MS = 9000
"""Kafka's default for the broker's session with its controller."""

SESSION_AFTER_DEATH_MS = 1500
"""The same after a kill: until it has passed, the controller takes the new broker for a double of the dead one."""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={log}

# One node.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
broker.heartbeat.interval.ms=200
broker.session.timeout.ms={session_ms}

# The log is the truth: nothing expires by itself, topics are made on purpose.
auto.create.topics.enable=false
log.retention.ms=-1
log.retention.bytes=-1
offsets.retention.minutes=2147483647
log.message.timestamp.type=LogAppendTime
message.max.bytes={max_bytes}
replica.fetch.max.bytes={max_bytes}
fetch.max.bytes={fetch_bytes}

# Groups: no wait for more members, sessions as short as `kafka.session_timeout_s` may be.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000

# Small: the cleaner's default buffer alone is half the heap; indexes are preallocated twice per partition.
log.segment.bytes=134217728
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.threads=1
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=2
background.threads=2
"""

LOGGING = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
"""

MAX_LOG_BYTES = 10 << 20
"""A longer broker.log becomes broker.log.1 at the next start."""


class Engine:
    """A running local broker.

    Attributes:
        bootstrap: HOST:PORT for clients.
        adopted: It ran already when this command came.
        cluster_id: The cluster's id, made at the first start on the folder.
        pid: The broker's process.
    """

    def __init__(self, data: Path, bootstrap: str, cluster_id: str, process: psutil.Process, *, adopted: bool) -> None:
        self.data = data
        self.bootstrap = bootstrap
        self.adopted = adopted
        self.cluster_id = cluster_id
        self._process = process
        self._archive: tuple[Archive, Java, list[Path]] | None = None

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return int(self._process.pid)

    def alive(self) -> bool:
        """Whether the process still runs; reaps it when it was our child."""
        return _is_alive(self._process)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops the broker: SIGTERM, and SIGKILL when it has not ended in time."""
        with _locked(self.data):
            clean = _end(self._process, timeout_s)
            if clean:
                _folder(self.data).joinpath("broker.json").unlink(missing_ok=True)
        if clean and self._archive:
            made, java, jars = self._archive
            made.make(java.path, jars)

    def restart(self, settings: "Settings", report: Report) -> None:
        """Starts the broker again after its death, on the same port, in the same object."""
        again = start(settings, self.data, report)
        self.bootstrap, self._process, self._archive = again.bootstrap, again._process, again._archive


def start(settings: "Settings", data: Path, report: Report) -> Engine:
    """The folder's broker, ready: the one that runs, else a new one.

    Args:
        data: The data folder (`run.data`).
        report: Takes one line for the user at a time.
    Raises: EngineError: what, where, the likely cause and the next command.
    """
    with _locked(data):
        if engine := _adopt(data, settings.engine.start_timeout_s):
            return engine
        return _start(settings, data, report)


def running(data: Path) -> Engine | None:
    """The folder's broker if it runs and answers, else None."""
    return _adopt(data, timeout_s=10.0) if _folder(data).joinpath("broker.json").exists() else None


def reserve(data: Path) -> str:
    """The address that the folder's broker has or will have, so that clients may be started before it."""
    with _locked(data):
        return f"{HOST}:{_identity(data, alive=_process(data) is not None)['port']}"


def _start(settings: "Settings", data: Path, report: Report) -> Engine:
    java = find_java(settings)
    jars = fetch_jars(settings, None, report)
    identity = _identity(data, alive=False)
    made = archive(java, cache_folder(settings))
    command = [str(java.path), *FLAGS, f"-Xmx{settings.engine.heap_mb}m", *made.flags(), "-XX:+ExitOnOutOfMemoryError"]
    command += [f"-Dlog4j2.configurationFile={_folder(data)}/log4j2.properties", "-Dlog4j2.disable.jmx=true"]
    command += ["-Djava.awt.headless=true", "-cp", class_path(jars)]
    try:
        properties = _write_configuration(settings, data, identity)
        _format(command, data, properties, identity["cluster_id"])
        child = _launch([*command, "kafka.Kafka", str(properties)], data)
    except OSError as error:
        raise EngineError(_unwritable(data, error)) from None
    engine = Engine(data, f"{HOST}:{identity['port']}", identity["cluster_id"], child, adopted=False)
    _wait_ready(engine, settings.engine.start_timeout_s)
    engine._archive = made, java, jars
    return engine


def _adopt(data: Path, timeout_s: float) -> Engine | None:
    """The broker that runs on the folder, once it answers; None when there is none."""
    process = _process(data)
    if process is None:
        return None
    identity = json.loads(_folder(data).joinpath("engine.json").read_text())
    engine = Engine(data, f"{HOST}:{identity['port']}", identity["cluster_id"], process, adopted=True)
    _wait_ready(engine, timeout_s)
    return engine


# --- the folder -----------------------------------------------------------------------------------------------------


def _folder(data: Path) -> Path:
    return data.absolute() / "kafka"


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Holds the folder against another command that starts or stops its broker."""
    try:
        _folder(data).mkdir(parents=True, exist_ok=True)
        file = _folder(data).joinpath("lock").open("a")
    except OSError as error:
        raise EngineError(_unwritable(data, error)) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the broker does not inherit it: Python's files are closed on exec
        yield


def _identity(data: Path, *, alive: bool) -> dict[str, Any]:
    """Cluster id and ports of the folder; ports that another program took meanwhile are replaced."""
    path = _folder(data) / "engine.json"
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        kept = {"cluster_id": _new_cluster_id(), "port": 0, "controller_port": 0}
    except ValueError:
        raise EngineError(f"{path} is damaged. Take it from a backup, or crawl into another folder with `--data DIR`.") from None
    if not alive and not (_is_free(kept["port"]) and _is_free(kept["controller_port"])):
        kept["port"], kept["controller_port"] = _free_ports()
        try:
            _write(path, json.dumps(kept))
        except OSError as error:
            raise EngineError(_unwritable(data, error)) from None
    return kept


def _new_cluster_id() -> str:
    while (made := secrets.token_urlsafe(16)).startswith("-"):  # tools take it for an option
        pass
    return made


def _is_free(port: int) -> bool:
    if not port:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: TIME_WAIT does not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind((HOST, 0))
        other.bind((HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


def _write_configuration(settings: "Settings", data: Path, identity: dict[str, Any]) -> Path:
    folder = _folder(data)
    max_bytes = settings.kafka.max_record_bytes
    died = folder.joinpath("broker.json").exists()
    text = PROPERTIES.format(
        host=HOST,
        port=identity["port"],
        controller_port=identity["controller_port"],
        log=str(folder / "log").replace("\\", "\\\\"),
        max_bytes=max_bytes,
        fetch_bytes=max(55 << 20, max_bytes),
        session_ms=SESSION_AFTER_DEATH_MS if died else SESSION_MS,
    )
    _write(folder / "server.properties", text)
    _write(folder / "log4j2.properties", LOGGING)
    return folder / "server.properties"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


# --- the process ----------------------------------------------------------------------------------------------------


def _format(command: list[str], data: Path, properties: Path, cluster_id: str) -> None:
    """Formats the folder for KRaft at its first start."""
    if _folder(data).joinpath("log", "meta.properties").exists():
        return
    arguments = ["format", "--ignore-formatted", f"--cluster-id={cluster_id}", "--config", str(properties)]
    plain = [word for word in command if not word.startswith("-XX:DumpLoadedClassList")]
    answer = subprocess.run([*plain, "kafka.tools.StorageTool", *arguments], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise EngineError(_died(data, "Apache Kafka could not format its folder", answer.stderr + answer.stdout))


def _launch(command: list[str], data: Path) -> psutil.Process:
    folder = _folder(data)
    log = folder / "broker.log"
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as out:
        child = psutil.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    _write(folder / "broker.json", json.dumps({"pid": child.pid, "started": child.create_time()}))
    return child


def _process(data: Path) -> psutil.Process | None:
    """The live process that broker.json names; a pid that now belongs to another process does not count."""
    try:
        noted = json.loads(_folder(data).joinpath("broker.json").read_text())
        process = psutil.Process(noted["pid"])
        is_ours = abs(process.create_time() - noted["started"]) < 1
    except (OSError, ValueError, psutil.Error):
        return None
    return process if is_ours and _is_alive(process) else None


def _is_alive(process: psutil.Process) -> bool:
    if isinstance(process, psutil.Popen):
        return process.poll() is None
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _end(process: psutil.Process, timeout_s: float) -> bool:
    """Ends a process; True when it ended by itself."""
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(number)
        deadline = time.monotonic() + wait_s
        while _is_alive(process) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not _is_alive(process):
            return number == signal.SIGTERM
    return False


def _wait_ready(engine: Engine, timeout_s: float) -> None:
    """Waits until the broker answers a metadata request: an open port alone does not take records yet."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    deadline = time.monotonic() + timeout_s
    while not _is_open(engine.bootstrap):
        if not engine.alive():
            raise EngineError(_died(engine.data, "Apache Kafka ended while it started"))
        if time.monotonic() > deadline:
            raise EngineError(_late(engine, timeout_s))
        time.sleep(0.02)
    admin = AdminClient({"bootstrap.servers": engine.bootstrap, "log_level": 0, "reconnect.backoff.ms": 20})
    while True:
        try:
            answer = admin.list_topics(timeout=1.0)
        except KafkaException:
            answer = None
        if answer and answer.brokers:
            break
        if not engine.alive():
            raise EngineError(_died(engine.data, "Apache Kafka ended while it started"))
        if time.monotonic() > deadline:
            raise EngineError(_late(engine, timeout_s))
    if answer.cluster_id != engine.cluster_id:
        raise EngineError(
            f"{engine.bootstrap} answers as the cluster {answer.cluster_id}, not as {engine.cluster_id} of {engine.data}: "
            "another Kafka took the port. Stop it, or run `crawlog down` and the command again: it will take another port."
        )


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


# --- what to tell the user ------------------------------------------------------------------------------------------

CAUSES = (
    ("No space left on device", "The disk is full: free some space, or use another folder with `--data DIR`."),
    ("Address already in use", "Another program took its port meanwhile: run the command again, it will take a free one."),
    ("Failed to acquire lock", "Another broker runs on this folder: end it, or use another folder with `--data DIR`."),
    ("Permission denied", "The folder belongs to another user: use one of yours with `--data DIR`."),
    ("Read-only file system", "The folder is read-only: use another with `--data DIR`."),
    ("OutOfMemoryError", "Its heap is too small: raise it with `-s engine.heap_mb=512`."),
    ("Could not reserve enough space", "Too little memory for its heap: free some, or lower `-s engine.heap_mb=128`."),
    ("NoClassDefFoundError", "A jar is missing or broken: run `crawlog engine fetch`."),
)


def _died(data: Path, what: str, said: str | None = None) -> str:
    """The message for a broker that ended: its own last words, and the likely cause where we know it."""
    log = _folder(data) / "broker.log"
    if said is None:
        with contextlib.suppress(OSError):
            said = log.read_bytes()[-16_384:].decode(errors="replace")
    said = said or ""
    cause = next((advice for sign, advice in CAUSES if sign in said), None)
    words = [line for line in said.splitlines() if any(sign in line for sign in ("ERROR", "FATAL", "Error", "Exception"))]
    last = words[-1].strip()[:300] if words else "it said nothing"
    return f"{what} ({_folder(data)}): {last}.\n{cause or f'All it said is in {log}.'}"


def _late(engine: Engine, timeout_s: float) -> str:
    return (
        f"Apache Kafka (pid {engine.pid}) does not answer at {engine.bootstrap} after {timeout_s:g} s.\n"
        f"The machine may be busy: raise `-s engine.start_timeout_s={timeout_s * 2:g}`; what it says is in {_folder(engine.data) / 'broker.log'}."
    )


def _unwritable(data: Path, error: OSError) -> str:
    return f"Cannot write to the data folder {data}: {error.strerror or error}.\nFree some space, or use another folder with `--data DIR`."
