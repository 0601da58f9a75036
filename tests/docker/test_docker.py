"""docker/: checked without a Docker engine, by the Compose schema, by the settings themselves, and by structure."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawlog.cli.main import cli
from crawlog.streams.engine.jars import kafka_version
from crawlog.streams.settings.settings import Settings, to_environ
from crawlog.streams.settings.sources import load
from crawlog.streams.sink_groups import SINK_ENVIRONMENT
from tests.support.machines import compose
from tests.support.processes import Process, crawlog, until

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
STAGES = ("fetch", "parse", "sink", "start")
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
SECRETS = {"KAFKA_PASSWORD": "one", "CRAWLOG_PASSWORD": "two", "METRICS_TOKEN": "three"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services, anchors, merges and variables resolved."""
    return compose(SECRETS)


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order; continued lines are one."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_compose_follows_the_specification() -> None:
    """The schema of the Compose specification, as check-jsonschema carries it."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_what_is_wrong(tmp_path: Path) -> None:
    """The check above can fail: a misspelt key is found."""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("healthcheck:", "healthchek:"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "'healthchek' does not match" in done.stdout


@pytest.mark.skipif(not shutil.which("docker"), reason="no Docker client")
def test_compose_itself_reads_the_file() -> None:
    """Where the client has the plugin: it resolves the file without an engine."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("the Docker client has no compose plugin")
    command = ["docker", "compose", "-f", str(COMPOSE), "config", "-q"]
    done = subprocess.run(command, env=os.environ | SECRETS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_workers_are_all_there(services: dict[str, Any]) -> None:
    """Two fetch, two parse, one sink, one for `start`, after the topics, which wait for a healthy broker."""
    assert {name: services[name].get("deploy", {}).get("replicas", 1) for name in STAGES} == {
        "fetch": 2,
        "parse": 2,
        "sink": 1,
        "start": 1,
    }
    for stage in STAGES:
        assert services[stage]["command"] == ["worker", stage]
        assert services[stage]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
        assert "/tmp/ready" in services[stage]["healthcheck"]["test"][1]
    assert services["topics"]["depends_on"] == {name: {"condition": "service_healthy"} for name in BROKERS}


def test_the_commands_exist(services: dict[str, Any]) -> None:
    """Every service's command is one of crawlog's, with options that it has."""
    for service in services.values():
        if command := service.get("command"):
            known = cli.commands[command[0]]
            options = {name for option in known.params for name in option.opts}
            assert all(word in options for word in command[1:] if word.startswith("-"))


def test_the_environment_is_valid_settings(services: dict[str, Any]) -> None:
    """No variable is unknown or wrong; all workers have the same, and the service an address beside them."""
    others = {*BROKERS, "prometheus"}
    loaded = {name: load(environ=one["environment"]) for name, one in services.items() if name not in others}
    assert loaded["fetch"].kafka.bootstrap == ",".join(f"{name}:9092" for name in BROKERS)
    assert loaded["service"].service.users.keys() == {"admin"}
    assert loaded.pop("service").kafka == loaded["fetch"].kafka
    assert all(settings == loaded["fetch"] for settings in loaded.values())


def test_the_sink_writes_the_outputs_of_all_jobs(services: dict[str, Any]) -> None:
    """A sink of one job would leave those of the others open for ever. Their folder outlives the container."""
    sink = services["sink"]
    assert SINK_ENVIRONMENT not in sink["environment"]
    folder = load(environ=sink["environment"]).sink.folder
    assert any(volume.endswith(f":{folder}") for volume in sink["volumes"])


def test_the_brokers_are_those_that_crawlog_runs(services: dict[str, Any]) -> None:
    """The version of kafka.lock, limits that fit the default settings, and an address of its own for each."""
    for number, broker in enumerate((services[name] for name in BROKERS), 1):
        given = broker["environment"]
        assert broker["image"] == f"apache/kafka:{kafka_version()}"
        assert int(given["KAFKA_MESSAGE_MAX_BYTES"]) == Settings().kafka.max_record_bytes
        assert int(given["KAFKA_REPLICA_FETCH_MAX_BYTES"]) == Settings().kafka.max_record_bytes
        assert given["KAFKA_NODE_ID"] == str(number)
        assert f"{number}@{BROKERS[number - 1]}:9093" in given["KAFKA_CONTROLLER_QUORUM_VOTERS"]
        host = given["KAFKA_ADVERTISED_LISTENERS"].rpartition("HOST://")[2]
        assert broker["ports"] == [f"{host}:29092"]


def test_only_loopback_is_published(services: dict[str, Any]) -> None:
    """What has no TLS is not for a network."""
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))


def test_the_secrets_come_from_a_file_that_git_does_not_know() -> None:
    """The head of the file names them all; without one of them Compose starts nothing."""
    wanted = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    assert wanted == set(re.findall(r"[A-Z]+_[A-Z]+", COMPOSE.read_text().partition("name in ")[2].partition(";")[0]))
    assert "docker/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_named_volumes_are_declared(services: dict[str, Any]) -> None:
    """Each one, and none is left over."""
    used = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    named = {name for name in used if not name.startswith("./")}
    assert named == set(yaml.safe_load(COMPOSE.read_text())["volumes"])


def test_the_image_runs_as_a_user_without_rights(instructions: list[tuple[str, str]]) -> None:
    """USER is set after the last RUN of the last stage, and is not root."""
    last = max(at for at, (word, _) in enumerate(instructions) if word == "FROM")
    stage = instructions[last:]
    user = [at for at, (word, _) in enumerate(stage) if word == "USER"]
    assert [stage[at][1] for at in user] == ["crawlog"]
    assert user[0] > max(at for at, (word, _) in enumerate(stage) if word == "RUN")


def test_the_image_installs_by_hash(instructions: list[tuple[str, str]]) -> None:
    """Every pip install takes locked hashes or nothing from an index; bases have a version."""
    installs = [rest for word, rest in instructions if word == "RUN" and "pip install" in rest]
    assert len(installs) == 3
    assert all("--require-hashes" in one or ("--no-deps" in one and "--no-build-isolation" in one) for one in installs)
    bases = [rest.split()[0] for word, rest in instructions if word == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim", base) for base in bases)


def test_the_image_with_a_browser_has_all_that_drives_it(instructions: list[tuple[str, str]], tmp_path: Path) -> None:
    """The line that takes it from the lock, run on the lock: what playwright wants and the plain image has not."""
    (line,) = (rest for word, rest in instructions if word == "RUN" and "playwright" in rest)
    taken = tmp_path / "browser.lock"
    command = line[line.index("sed ") : line.index(">browser.lock")]
    taken.write_text(subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    wanted, todo = set(), {"playwright"}
    plain = set(locked(ROOT / "requirements.lock"))
    while todo:
        name = todo.pop()
        wanted.add(name)
        needs = {
            re.split(r"[^\w.-]", need)[0].lower() for need in metadata.requires(name) or () if "extra ==" not in need
        }
        todo |= needs - plain - wanted
    assert set(locked(taken)) == wanted
    assert all(hashes for hashes in locked(taken).values())


def locked(lock: Path) -> dict[str, int]:
    """The packages of a lock file, with the count of their hashes."""
    blocks = re.split(r"(?m)^(?=[a-z0-9])", lock.read_text())
    return {block.partition("==")[0]: block.count("--hash=sha256:") for block in blocks if "==" in block}


def test_a_browser_is_installed_on_demand_only(instructions: list[tuple[str, str]]) -> None:
    """By the build argument, which is empty by default and declared in each stage that asks for it."""
    assert [rest for word, rest in instructions if word == "ARG"] == ["BROWSER="] * 2
    asking = [rest for word, rest in instructions if word == "RUN" and ("chromium" in rest or "playwright" in rest)]
    assert len(asking) == 2
    assert all(rest.startswith('test -z "$BROWSER" ||') for rest in asking)


def test_what_the_image_copies_exists_and_is_not_ignored(instructions: list[tuple[str, str]]) -> None:
    """Each source of a COPY is in the repository and let in by .dockerignore."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [rest.split()[:-1] for word, rest in instructions if word == "COPY" and "--from" not in rest]
    sources = {source for group in copied for source in group}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)


def test_entry_point_and_signal_reach_the_worker(instructions: list[tuple[str, str]]) -> None:
    """Exec form, so that crawlog itself gets the signal that stops a container."""
    by_word = dict(instructions)
    assert json.loads(by_word["ENTRYPOINT"]) == ["crawlog"]
    assert json.loads(by_word["CMD"]) == ["--help"]
    assert by_word["STOPSIGNAL"] == "SIGTERM"


@pytest.mark.broker
@pytest.mark.slow
def test_the_services_crawl_together(services: dict[str, Any], cluster: Settings, tmp_path: Path) -> None:
    """The file's own commands, replicas and environment, as processes here: each page is a row of the job's output."""
    demo_site = runpy.run_path(str(ROOT / "examples" / "demo_site.py"))
    site = demo_site["Site"](0).start()
    here = to_environ(cluster) | {"CRAWLOG_NETWORK__ALLOW_PRIVATE": "true", "CRAWLOG_POLITENESS__DELAY_S": "0.05"}
    here |= {"CRAWLOG_RUN__DATA": str(tmp_path / "data"), "CRAWLOG_FETCH__RETRY_DELAY_S": "0.2"}
    here["CRAWLOG_SINK__FOLDER"] = str(tmp_path / "results")
    output = tmp_path / "results" / "example" / "rows.jsonl"

    def start(name: str, *command: str, ready: str = "") -> Process:
        environ = os.environ | services[name]["environment"] | here | {"CRAWLOG_RUN__READY_FILE": ready}
        words = command or services[name]["command"]
        return crawlog(*words, env=environ, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=None)

    assert start("topics").wait() == 0
    stages = [name for name in STAGES for _ in range(services[name].get("deploy", {}).get("replicas", 1))]
    ready = [tmp_path / f"ready-{number}" for number in range(len(stages))]
    workers = [start(name, ready=str(file)) for name, file in zip(stages, ready, strict=True)]
    try:
        until(lambda: all(file.exists() for file in ready), "workers that are ready")
        assert start("client", "submit", *site.seeds, "--job", "example", "-o", "rows.jsonl", "--wait").wait() == 0
        rows = map(json.loads, output.read_text().splitlines())
        assert {row["url"]: row["status"] for row in rows} == site.expected
        assert site.forbidden() == []
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait(60) for worker in workers]
        site.stop()
    assert set(codes) <= {0, 143, -15}
