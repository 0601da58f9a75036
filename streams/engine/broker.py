"""The broker's process: its configuration, start, readiness and end.

All of it works on the folder `<data>/kafka`; engine.py decides when to start or adopt a broker.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from crawlog.streams import files
from crawlog.streams.errors import EngineError, EngineKilled
from crawlog.streams.kernel import work_in_batch

from .java import died, environ, executing, is_ours

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

HOST = "127.0.0.1"

USER = "crawlog"  # The broker's only user; the broker itself logs in to the controller as this user

PASSWORD_BYTES = 24  # Random bytes of a password

POLL_S = 0.02  # Interval of checks of a starting or ending process; a start takes 0.8 s, a stop 0.3 s

KILL_TIMEOUT_S = 5.0  # How long a process may take to end after SIGKILL

SESSION_MS = 9000  # Kafka's default for the broker's session with its controller

# The same after a kill: until it has passed, the controller treats the new broker as a duplicate of the dead one.
SESSION_AFTER_DEATH_MS = 1500

MAX_LOG_BYTES = 10 << 20  # A longer broker.log becomes broker.log.1 at the next start

# log.dirs is relative to the broker's working folder: Kafka splits a path at commas, and this file is Latin-1.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=CLIENT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=CLIENT://{host}:{port}
listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
log.dirs=log

# Any user of the machine can connect to a port: both want the password. The controller changes topics and brokers too.
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config={login}
listener.name.controller.plain.sasl.jaas.config={login}

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
broker.heartbeat.interval.ms=500
broker.session.timeout.ms={session_ms}
metadata.max.idle.interval.ms=5000

# The log is the truth: nothing expires by itself, group offsets neither; topics are made on purpose.
auto.create.topics.enable=false
log.retention.ms=-1
log.retention.bytes=-1
offsets.retention.minutes=2147483647
log.message.timestamp.type=LogAppendTime
message.max.bytes={max_bytes}
replica.fetch.max.bytes={max_bytes}
fetch.max.bytes={fetch_bytes}

# Groups: no wait for more members, sessions as short as kafka.session_timeout_s may be.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000

# Small: the cleaner's default buffer alone is half the heap; indexes are preallocated, twice per partition.
log.segment.bytes=134217728
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.threads=1
num.network.threads=1
num.io.threads=2
num.recovery.threads.per.data.dir=2
background.threads=2
"""

# The login of the broker's own connections, and the user that it accepts.
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="{user}" password="{password}" user_{user}="{password}";'
)

LOGGING = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
"""

# Exit codes of a broker that another process ended; Java catches SIGTERM. A crash of Java has another one.
KILLED = frozenset({-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM})


class Identity(NamedTuple):
    """The lasting facts of a local cluster: its id and its ports."""

    cluster_id: str
    port: int
    controller_port: int

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"{HOST}:{self.port}"


# --- configuration --------------------------------------------------------------------------------------------------


def new_password() -> str:
    """A password for one run of a broker; no character needs an escape."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def credentials(password: str) -> dict[str, str]:
    """The settings of section `kafka` for clients of a local broker; an empty password means that it requires none."""
    if not password:
        return {"security_protocol": "PLAINTEXT"}
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_password": password,
    }


def configure(settings: "Settings", folder: Path, identity: Identity, password: str) -> Path:
    """Writes the broker's configuration; returns its path."""
    max_bytes = settings.kafka.max_record_bytes
    text = PROPERTIES.format(
        host=HOST,
        port=identity.port,
        controller_port=identity.controller_port,
        login=LOGIN.format(user=USER, password=password),
        max_bytes=max_bytes,
        fetch_bytes=max(55 << 20, max_bytes),  # 55 MiB is Kafka's default
        session_ms=SESSION_AFTER_DEATH_MS if (folder / "broker.json").exists() else SESSION_MS,
    )
    files.write(folder / "server.properties", text)
    files.write(folder / "log4j2.properties", LOGGING)
    return folder / "server.properties"


def free_ports() -> tuple[int, int]:
    """Two ports that are free now."""
    with socket.socket() as one, socket.socket() as other:
        one.bind((HOST, 0))
        other.bind((HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a broker could listen on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: TIME_WAIT does not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return bool(port)


# --- life cycle -----------------------------------------------------------------------------------------------------


def format_log(java: list[str], folder: Path, properties: Path, cluster_id: str, features: Path) -> None:
    """Formats the folder for KRaft, once.

    Args:
        features: Cached file with the levels of Kafka's features. If it is missing, Kafka's tool runs, which takes a
            second, and its choice is kept there for other folders.
    Raises: EngineError: Kafka's tool refused, or the folder holds the data of another cluster.
    """
    log = folder / "log"
    meta = log / "meta.properties"
    if meta.exists():
        if f"cluster.id={cluster_id}" not in files.read(meta).splitlines():
            raise EngineError(
                f"The data in {log} belong to another cluster than {folder / 'engine.json'}: {cluster_id}.\n"
                "Was one of them copied? Put back what belongs together, or use another folder with `--data DIR`."
            )
        return
    chosen = log / "bootstrap.checkpoint"
    if is_ours(features):
        log.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(features, chosen)
        files.write(meta, f"version=1\ncluster.id={cluster_id}\nnode.id=1\ndirectory.id={new_id()}\n")  # KIP-858
        return
    tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "--config", str(properties)]
    command = [*java, *tool, f"--cluster-id={cluster_id}"]
    with executing(java):
        done = subprocess.run(command, cwd=folder, env=environ(), umask=files.OTHERS, capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr + done.stdout).decode(errors="replace")
        raise EngineError(died(folder, "Apache Kafka could not format its folder", said))
    if not is_ours(features.parent):
        return
    with contextlib.suppress(OSError):  # a read-only cache
        temporary = features.with_suffix(f".{os.getpid()}")
        shutil.copyfile(chosen, temporary)
        temporary.replace(features)


def new_id() -> str:
    """An id in Kafka's form: 16 random bytes, in base64 for URLs."""
    while (made := secrets.token_urlsafe(16)).startswith("-"):  # tools would take it for an option
        pass
    return made


def launch(java: list[str], folder: Path, properties: Path, password: str) -> psutil.Process:
    """Starts the broker in a session of its own, and notes process and password in broker.json.

    Raises: OSError: the note cannot be written; the broker is ended.
    """
    log = folder / "broker.log"
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    work_in_batch()  # each thread of the JVM inherits it
    with files.append(log) as out, executing(java):
        child = psutil.Popen(
            [*java, "kafka.Kafka", str(properties)],
            cwd=folder,
            env=environ(),
            umask=files.OTHERS,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        note = {"pid": child.pid, "started": _started(child), "boot": boot_id(), "folder": _inode(folder)}
        files.write(folder / "broker.json", json.dumps({**note, "password": password}))
    except BaseException:
        end(child, KILL_TIMEOUT_S)  # no command would find it
        raise
    return child


def _started(process: psutil.Process) -> float:
    """Seconds from boot to the start of a process: steps of the clock change them by a second of rounding at most."""
    return process.create_time() - psutil.boot_time()


def _inode(folder: Path) -> list[int]:
    """Identifies a folder: a moved one is the same, a copy is another."""
    found = folder.stat()
    return [found.st_dev, found.st_ino]


def boot_id() -> str:
    """Identifies the machine's boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{psutil.boot_time():.0f}"  # not Linux


def lost_power(folder: Path) -> bool:
    """Whether the machine went down while the folder's broker ran."""
    try:
        before = _note(folder)["boot"]
    except (OSError, ValueError, LookupError):
        return False
    return bool(before != boot_id())


def noted(folder: Path) -> psutil.Process | None:
    """The live process that broker.json names; a pid of another process does not count, nor does a copied note."""
    try:
        note, here = _note(folder), _inode(folder)
        process = psutil.Process(note["pid"])
        is_same = note["boot"] == boot_id() and abs(_started(process) - note["started"]) < 2 and note["folder"] == here
    except (OSError, ValueError, LookupError, psutil.Error):
        return None
    return process if is_same and is_alive(process) else None


def noted_password(folder: Path) -> str:
    """The password of the broker that broker.json names; empty without one."""
    try:
        return str(_note(folder).get("password", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _note(folder: Path) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(files.read(folder / "broker.json"))
    return noted


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; reaps an ended child of ours."""
    if isinstance(process, psutil.Popen):
        return process.poll() is None
    try:
        is_over = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1  # the main thread ends first
        return bool(process.is_running() and not is_over)
    except psutil.Error:
        return False


def end(process: psutil.Process, timeout_s: float) -> bool:
    """Ends a process by SIGTERM, and by SIGKILL after the timeout; True if SIGTERM sufficed."""
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, KILL_TIMEOUT_S)):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(number)
        deadline = time.monotonic() + wait_s
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not is_alive(process):
            return number == signal.SIGTERM
    return False


class Readiness(NamedTuple):
    """The wait for a broker that starts."""

    folder: Path
    identity: Identity
    process: psutil.Process
    timeout_s: float
    password: str = ""

    def wait(self) -> None:
        """Returns when the broker answers a metadata request: an open port alone does not mean that it accepts records.

        Raises: EngineError: the broker died, is late, or another cluster answers. EngineKilled.
        """
        deadline = time.monotonic() + self.timeout_s
        self._until(deadline, self._is_open)
        login = {name.replace("_", "."): value for name, value in credentials(self.password).items()}  # librdkafka's
        quiet = {"log_level": 0, "reconnect.backoff.ms": 20}
        admin = AdminClient({"bootstrap.servers": self.identity.bootstrap, **quiet, **login})
        self._until(deadline, lambda: self._answers(admin))

    def _until(self, deadline: float, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if not is_alive(self.process):
                if isinstance(self.process, psutil.Popen) and self.process.returncode in KILLED:
                    raise EngineKilled(
                        f"Apache Kafka is killed again and again while it starts ({self.folder}).\nThe system does so "
                        "where memory is short: free some, or try `-s engine.heap_mb=128`."
                    )
                raise EngineError(died(self.folder, "Apache Kafka ended while it started"))
            if time.monotonic() > deadline:
                raise EngineError(self._late())
            time.sleep(POLL_S)

    def _is_open(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.identity.port), timeout=1.0):
            return True
        return False

    def _answers(self, admin: AdminClient) -> bool:
        try:
            answer = admin.list_topics(timeout=1.0)
        except KafkaException:
            return False
        if answer.cluster_id not in (None, self.identity.cluster_id):
            raise EngineError(
                f"{self.identity.bootstrap} answers as the cluster {answer.cluster_id}, but {self.folder} belongs to "
                f"{self.identity.cluster_id}: another Kafka has this port.\n"
                "Run `crawlog down`, then the command again: it takes another port."
            )
        return bool(answer.brokers)

    def _late(self) -> str:
        return (
            f"Apache Kafka (pid {self.process.pid}) does not answer at {self.identity.bootstrap} after "
            f"{self.timeout_s:g} s.\n"
            f"The machine may be busy: raise `-s engine.start_timeout_s={self.timeout_s * 2:g}`. "
            f"What the broker says is in {self.folder / 'broker.log'}."
        )
