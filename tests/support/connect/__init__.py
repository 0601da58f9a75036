"""Kafka Connect with the file connector and Debezium's for JDBC: jars from Maven, in the build folder."""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from crawlog.streams.cluster import foreign_config
from crawlog.streams.engine import find_java
from crawlog.streams.settings import Settings
from tests.support.synthetic_site import free_port

HOME = Path(__file__).parents[3] / "build" / "connect"

JSON = "org.apache.kafka.connect.json.JsonConverter"


def jars() -> Path:
    """The folder of the jars, fetched the first time; or a skip."""
    HOME.parent.mkdir(exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not HOME.exists():
            if shutil.which("mvn") is None:
                pytest.skip("Maven is not installed")
            command = ["mvn", "-q", "-B", "-f", str(Path(__file__).parent / "pom.xml"), "dependency:copy-dependencies"]
            made = HOME.with_suffix(".new")
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={made}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                pytest.skip(f"Kafka Connect cannot be fetched: {done.stdout[-300:]}")
            made.rename(HOME)
    return HOME


@contextmanager
def connect(folder: Path, settings: Settings, *connectors: Mapping[str, str]) -> Iterator[None]:
    """A standalone worker with these connectors; it is killed at the end."""
    login = foreign_config(settings)
    worker = {
        "bootstrap.servers": settings.kafka.bootstrap,
        "key.converter": JSON,
        "value.converter": JSON,
        "offset.storage.file.filename": str(folder / "offsets"),
        "listeners": f"http://127.0.0.1:{free_port()}",
        "consumer.isolation.level": "read_committed",
    }
    if "sasl.username" in login:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        jaas = f'{module} required username="{login["sasl.username"]}" password="{login["sasl.password"]}";'
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
        worker |= {f"{role}{name}": value for role in ("", "consumer.") for name, value in sasl.items()}
    files = []
    for number, content in enumerate((worker, *connectors)):
        files.append(folder / f"connect-{number}.properties")
        files[-1].write_text("".join(f"{name}={value}\n" for name, value in content.items()))
    command = [
        find_java(settings).path,
        "-Xmx256m",
        "-cp",
        f"{jars()}/*",
        "org.apache.kafka.connect.cli.ConnectStandalone",
    ]
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen([*map(str, command), *map(str, files)], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()
