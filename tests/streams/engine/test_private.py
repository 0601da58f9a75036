"""The local engine takes orders from its own clients only: the attacks of another user of the machine, as tests."""

import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from crawlog.cli import reach
from crawlog.processes.hold import Hold
from crawlog.processes.supervisor import Supervisor
from crawlog.schemas import progress
from crawlog.schemas.progress import Progress
from crawlog.streams import engine as front
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.engine import broker
from crawlog.streams.engine import engine as local
from crawlog.streams.engine.engine import Engine
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import DeadLetterReader, ProgressReader
from crawlog.streams.jobs import FleetReports
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import Sources, load, origins
from tests.support.cluster import Cluster, needs_site

pytestmark = pytest.mark.broker

ANSWER_S = 10.0
CREATE_TOPICS, UNREGISTER_BROKER, SASL_HANDSHAKE, SASL_AUTHENTICATE = 19, 64, 17, 36
WRONG_PASSWORD = 58
NOBODY = 65534

needs_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to be another user"
)


def quiet(_: str) -> None:
    """Takes a line for the user."""


def text(value: str) -> bytes:
    """A string of Kafka's protocol."""
    return struct.pack(">h", len(value)) + value.encode()


def new_topic(name: str) -> bytes:
    """The body of a request that creates a topic of one partition."""
    return struct.pack(">i", 1) + text(name) + struct.pack(">ihiiib", 1, 1, 0, 0, 5000, 0)


class Stranger:
    """A program of another user, which speaks Kafka's protocol to a port by hand."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((broker.HOST, port), timeout=ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, body: bytes, tags: bytes = b"") -> bytes | None:
        """The answer's bytes behind its number; None where the connection is closed instead."""
        request = struct.pack(">hhi", key, version, 7) + text("stranger") + tags + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        try:
            with self._socket.makefile("rb") as answers:
                head = answers.read(4)
                return answers.read(struct.unpack(">i", head)[0])[4:] if head else None
        except ConnectionResetError:
            return None


def killed(engine: Engine) -> None:
    """Kills an engine that this process has started."""
    engine._process.kill()
    engine._process.wait(ANSWER_S)


class Around:
    """What a seeder has while its engine is killed and another one started: a producer and a picture of the workers."""

    def __init__(self, data: Path, engine: Engine) -> None:
        settings = engine.point(Settings())
        login = partial(local.login, data, engine.bootstrap)
        self.producer = Producer(settings, "seeder", login=login)
        self.picture = FleetReports()
        self.watch = ProgressReader(settings, self.picture, login)


@pytest.fixture(scope="module")
def ports(engine: Engine) -> dict[str, int]:
    """The broker's two listeners."""
    return {"client": engine.identity.port, "controller": engine.identity.controller_port}


def topics_of(engine: Engine) -> set[str]:
    """The names that its own clients see."""
    admin = AdminClient(kafka_config(engine.point(Settings())))
    return set(admin.list_topics(timeout=ANSWER_S).topics)


@pytest.mark.parametrize("listener", ["client", "controller"])
def test_a_stranger_creates_no_topic(engine: Engine, ports: dict[str, int], listener: str) -> None:
    """Neither through the clients' port nor through the controller's; both close the connection."""
    with Stranger(ports[listener]) as stranger:
        assert stranger.ask(CREATE_TOPICS, 2, new_topic(f"stranger-{listener}")) is None
    assert not {name for name in topics_of(engine) if name.startswith("stranger")}


def test_a_stranger_does_not_unregister_the_broker(engine: Engine, ports: dict[str, int]) -> None:
    """The controller's port closes the connection, and the broker goes on."""
    with Stranger(ports["controller"]) as stranger:
        assert stranger.ask(UNREGISTER_BROKER, 0, struct.pack(">ib", 1, 0), tags=b"\0") is None
    topics_of(engine)


@pytest.mark.parametrize("listener", ["client", "controller"])
@pytest.mark.parametrize("password", ["", "secret"])
def test_a_guessed_password_opens_nothing(ports: dict[str, int], listener: str, password: str) -> None:
    """Right user, wrong password: Kafka says so, and takes no request on that connection."""
    with Stranger(ports[listener]) as stranger:
        handshake = stranger.ask(SASL_HANDSHAKE, 1, text("PLAIN"))
        assert handshake is not None
        assert handshake[:2] == b"\0\0"
        token = f"\0{broker.USER}\0{password}".encode()
        answer = stranger.ask(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
        assert answer is not None
        assert struct.unpack(">h", answer[:2])[0] == WRONG_PASSWORD
        assert stranger.ask(CREATE_TOPICS, 2, new_topic("stranger-guessed")) is None


def test_a_stranger_reads_no_metadata(engine: Engine) -> None:
    """A client without credentials gets no answer."""
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": engine.bootstrap, "log_level": 0}).list_topics(timeout=1.0)


@pytest.mark.long
def test_who_writes_while_the_engine_is_killed_logs_in_at_the_next_one(tmp_path: Path) -> None:
    """The next engine has another password: a seeder asks for it, and its records and the workers' reports arrive."""
    first = local.start(Settings(), tmp_path, quiet)
    ensure_topics(first.point(Settings()))
    seeder = Around(tmp_path, first)
    seeder.producer.send("crawl.urls", b"http://a.com/", partition=0)
    assert seeder.producer.flush(ANSWER_S)
    killed(first)
    seeder.producer.send("crawl.urls", b"http://a.com/b", partition=0)
    next_one = local.start(Settings(), tmp_path, quiet)
    try:
        assert next_one.password != first.password
        assert seeder.producer.flush(ANSWER_S)
        report = Progress("fetch-0", "fetch", 0, 1.0)
        writer = Producer(next_one.point(Settings()), "worker")
        until = time.monotonic() + ANSWER_S
        while not list(seeder.picture.of("fetch")):
            assert time.monotonic() < until
            writer.send("crawl.progress", progress.encode(report), key=progress.key(report), partition=0)
            writer.flush(ANSWER_S)
            seeder.watch.poll(0.1)
    finally:
        seeder.watch.close()
        next_one.stop()


@pytest.mark.parametrize("is_moved", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_supervisor_writes_and_reads_on_after_its_engine_came_back_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_moved: bool
) -> None:
    """With another password, since the first start failed, or at another port, which a stranger has taken meanwhile.

    A seeder, which finds its engine at its address alone, is told then that its command can be run again.
    """
    adopt_or_start, tries, taken = local.start, list[int](), socket.socket()

    def start(*args: Any, **more: Any) -> Engine:
        tries.append(1)
        if len(tries) == 2 and not is_moved:
            raise EngineError("it took too long")
        return adopt_or_start(*args, **more)

    monkeypatch.setattr(front, "start", start)
    with Supervisor(load({"run.data": tmp_path}), "up", [], quiet) as held, taken:
        held.connect()
        before, losses = held.settings, DeadLetterReader(held.settings, "j", 0)
        held.producer.send("crawl.dead", b"{}", key=b"", partition=0)
        assert held.producer.flush(ANSWER_S)
        assert held.engine
        seeder = Around(tmp_path, held.engine)
        killed(held.engine)
        if is_moved:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((broker.HOST, held.engine.identity.port))
            taken.listen()
        else:
            held.producer.send("crawl.dead", b"{}", key=b"", partition=0)
        held.look(0.0)
        assert held.settings.kafka != before.kafka
        held.producer.send("crawl.dead", b"{}", key=b"", partition=0)
        assert held.producer.flush(ANSWER_S)
        losses.at(held.settings)
        losses.catch_up(2 if is_moved else 3, ANSWER_S)
        losses.close()
        if is_moved:
            assert held.engine.bootstrap != before.kafka.bootstrap
            seeder.producer.send("crawl.urls", b"http://a.com/b", partition=0)
            with pytest.raises(EngineError, match="Run the command again"):
                seeder.producer.flush(6 * ANSWER_S)
        seeder.watch.close()


def engines_started(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """The engines that commands start or adopt from now on."""
    started: list[Engine] = []
    adopt_or_start = local.start

    def start(settings: Settings, data: Path, report: Callable[[str], None]) -> Engine:
        started.append(adopt_or_start(settings, data, report))
        return started[-1]

    monkeypatch.setattr(front, "start", start)
    return started


def test_a_command_leaves_its_engine_to_who_came_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`seed` has started an engine, and `up` works with it when `seed` ends; without `up` a command stops its own.

    Each cold start takes a new password; the topics stay.
    """
    started = engines_started(monkeypatch)
    settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": tmp_path})})
    with reach.reachable_log(settings) as reached:
        ensure_topics(reached)
        up = Hold(tmp_path, "up")
    assert started[0].alive()
    up.release()
    started[0].stop()
    with reach.reachable_log(settings):
        assert started[1].alive()
        assert "crawl.urls" in topics_of(started[1])
    assert not started[1].alive()
    passwords = {engine.password for engine in started}
    assert len(passwords) == 2
    assert all(len(password) >= 32 for password in passwords)


def test_the_last_command_stops_the_engine_that_another_one_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` has started it, and `seed` writes when `verify` ends; it would wait for its engine without end."""
    started = engines_started(monkeypatch)
    settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": tmp_path})})
    starter, seeder = reach.reachable_log(settings), reach.reachable_log(settings)
    starter.__enter__()
    reached = seeder.__enter__()
    starter.__exit__(None, None, None)
    assert local.is_up(tmp_path)
    looking = reach.while_up(settings, reached, lambda _: ())
    monkeypatch.setattr(reach, "GONE_S", 0.0)
    assert looking(0.0) == ()
    seeder.__exit__(None, None, None)
    assert not local.is_up(tmp_path)
    assert looking(0.0) == ()  # it may be a moment ago
    with pytest.raises(EngineError, match="nobody has started it"):
        looking(0.0)
    started[0]._process.wait(ANSWER_S)


def test_the_last_command_stops_the_engine_that_came_after_the_death_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know of that one any more, if the note went with the dead one."""
    started = engines_started(monkeypatch)
    settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": tmp_path})})
    with reach.reachable_log(settings):
        broker.end(started[0]._process, 0.0)
        with reach.reachable_log(settings):
            assert not started[1].adopted
        started[0].stop()
        assert local.is_up(tmp_path)
    assert not local.is_up(tmp_path)
    started[1]._process.wait(ANSWER_S)


def test_a_run_leaves_its_engine_to_a_command_that_uses_it(tmp_path: Path) -> None:
    """The seeds of `crawlog seed` are not all acknowledged when the run ends."""
    settings = load({"run.data": tmp_path})
    with Supervisor(settings, "run", [], quiet) as held:
        held.connect()
        seeder = reach.reachable_log(settings)
        seeder.__enter__()
        engine = held.engine
    assert local.is_up(tmp_path)
    seeder.__exit__(None, None, None)
    assert not local.is_up(tmp_path)
    assert engine is not None
    engine._process.wait(ANSWER_S)


# What a second user of the machine sees.


def by_another_user(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The command as the user nobody, who stands in the folder already: its parents need not let anybody in."""
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run(
        [*become, *command], cwd=folder, capture_output=True, text=True, timeout=ANSWER_S, check=False
    )


@needs_another_user
@pytest.mark.parametrize("name", ["broker.json", "server.properties"])
def test_another_user_does_not_read_the_password(engine: Engine, name: str) -> None:
    """Neither in the engine's note nor in Kafka's own file."""
    assert engine.password in (engine.data / "kafka" / name).read_text()
    read = by_another_user(engine.data / "kafka", "cat", name)
    assert read.stdout == ""
    assert "Permission denied" in read.stderr


@needs_site
@pytest.mark.long
@pytest.mark.slow
def test_a_broker_that_dies_under_a_crawl_comes_back_for_the_clients_it_had(tmp_path: Path) -> None:
    """Its password stays, so that no worker has to be started again."""
    with Cluster(tmp_path, hosts=2, pages=10, settings={"politeness.delay_s": 0.5}) as crawl:
        crawl.start()
        crawl.until(0.3)
        before, workers = note(crawl.data), crawl.pids("")
        crawl.kill_broker()
        end = time.monotonic() + 180
        while note(crawl.data)["pid"] == before["pid"] and time.monotonic() < end:
            time.sleep(0.05)
        after = note(crawl.data)
        assert (after["pid"] != before["pid"], after["password"]) == (True, before["password"])
        assert crawl.pids("") == workers
        crawl.finish()
        assert crawl.rows().keys() == crawl.urls


def note(data: Path) -> dict[str, Any]:
    """What the engine noted of the broker that runs."""
    noted: dict[str, Any] = json.loads((data / "kafka" / "broker.json").read_text())
    return noted


@needs_site
@pytest.mark.slow
@pytest.mark.long
def test_the_password_shows_nowhere(tmp_path: Path) -> None:
    """Not in the arguments of any process, in no log, in nothing that the command says or writes."""
    with Cluster(tmp_path, hosts=2, pages=5, settings={"politeness.delay_s": 0.5}) as crawl:
        crawl.start("-v")
        crawl.until(0.3)
        password = note(crawl.data)["password"].encode()
        arguments = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        crawl.finish()
        holders = {path.name for path in tmp_path.rglob("*") if path.is_file() and password in path.read_bytes()}
    assert any(str(crawl.data) in words for words in arguments)
    assert not any(password.decode() in word for words in arguments for word in words)
    assert {"server.properties"} <= holders <= {"server.properties", "broker.json"}  # which a clean stop removes


def test_the_password_shows_in_no_error_and_no_origin(cluster: Settings) -> None:
    """A refused login names the settings, and shows none that is secret."""
    password = "not the password"
    wrong = cluster.kafka.model_copy(update={"sasl_password": password})
    with pytest.raises(EngineError, match=r"(?i)authentication") as failed:
        Admin(cluster.model_copy(update={"kafka": wrong})).metadata()
    assert password not in str(failed.value)
    shown = {one.key: one.value for one in origins(Sources())}
    assert shown["kafka.sasl_username"] == broker.USER
    assert cluster.kafka.sasl_password not in map(str, shown.values())
