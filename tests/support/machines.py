"""Machines of one network: namespaces on a bridge, each with its own loopback, its own names and a link that can break.

with Machines(tmp_path, "a", "b") as machines:
    process = machines["a"].start("crawlog", "worker", "fetch", env=…)
    machines["b"].cut()
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest
import yaml

from crawlog.streams.engine.jars import fetch_jars
from crawlog.streams.engine.java import class_path, environ, find_java
from crawlog.streams.settings.settings import Settings

ROOT = Path(__file__).parents[2]
NETWORK = "10.83.0"
NAMES = Path("/etc/netns")
"""`ip netns exec` shows the files of a folder here in place of those of /etc."""

PREFIX = "clg"
"""Of all names: interfaces have at most 15 characters, and others' stay as they are."""


def ip(*words: str) -> str:
    """What `ip` prints.

    Raises: subprocess.CalledProcessError: it refuses.
    """
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def skip_without_machines() -> None:
    """Skips a test where this process may make no namespaces with links."""
    found = shutil.which("ip") and shutil.which("unshare") and os.geteuid() == 0
    command = ["unshare", "--net", "ip", "link", "show"]
    if not found or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no `ip`, or no right to make namespaces of the network")


class Machine:
    """One of them.

    Args:
        number: Last part of its address.
    """

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        self._started: list[psutil.Popen] = []
        self._space, self._link = PREFIX + name, f"{PREFIX}{number}"

    def make(self, hosts: str) -> None:
        """Its namespace, link and names."""
        self.folder.mkdir(parents=True)
        ip("netns", "add", self._space)
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
        ip("link", "set", self._link, "master", f"{PREFIX}br", "up")
        ip("-n", self._space, "address", "add", f"{NETWORK}.{self.number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self._space, "link", "set", device, "up")
        (NAMES / self._space).mkdir(parents=True)
        (NAMES / self._space / "hosts").write_text(hosts)

    def start(self, *words: str, env: Mapping[str, str], log: str = "") -> psutil.Popen:
        """A process on this machine; its output goes to a file of its folder."""
        with (self.folder / f"{log or words[-1]}.log").open("ab") as out:
            command = ["ip", "netns", "exec", self._space, *words]
            self._started.append(psutil.Popen(command, cwd=self.folder, env=dict(env), stdout=out, stderr=out))
        return self._started[-1]

    def crawlog(self, *words: str, env: Mapping[str, str]) -> psutil.Popen:
        """A command of crawlog."""
        return self.start(sys.executable, "-m", "crawlog", *words, env=os.environ | env)

    def ask(self, *words: str, env: Mapping[str, str], limit_s: float = 600.0) -> str:
        """What a command of crawlog prints.

        Raises: AssertionError: its exit code is not 0.
        """
        command = ["ip", "netns", "exec", self._space, sys.executable, "-m", "crawlog", *words]
        environ = os.environ | env
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=limit_s, check=False)
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def cut(self) -> None:
        """Take its link down: its processes live, and reach nobody."""
        ip("link", "set", self._link, "down")

    def pids(self) -> set[int]:
        """Its processes."""
        return set(map(int, ip("netns", "pids", self._space).split()))

    def kill(self) -> None:
        """Kill -9 of all its processes."""
        with contextlib.suppress(subprocess.CalledProcessError):
            while pids := self.pids():
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for process in self._started:
                    process.wait(30)

    def remove(self) -> None:
        """Its namespace, link and names; what is not there is no error."""
        self.kill()
        for words in (("link", "delete", self._link), ("netns", "delete", self._space)):
            subprocess.run(["ip", *words], check=False, capture_output=True)
        shutil.rmtree(NAMES / self._space, ignore_errors=True)


class Machines(dict[str, Machine]):
    """Machines by name, from `with` on.

    Args:
        aliases: Further names of machines that all of them resolve.
    """

    def __init__(self, folder: Path, *names: str, aliases: Mapping[str, str]) -> None:
        super().__init__({name: Machine(name, at, folder / name) for at, name in enumerate(names, 1)})
        own = {name: machine.number for name, machine in self.items()}
        known = own | {alias: own[name] for alias, name in aliases.items()}
        self._hosts = "127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{at} {name}\n" for name, at in known.items())

    def __enter__(self) -> Self:
        skip_without_machines()
        self._remove()
        ip("link", "add", f"{PREFIX}br", "type", "bridge")
        ip("link", "set", f"{PREFIX}br", "up")
        try:
            for machine in self.values():
                machine.make(self._hosts)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for machine in self.values():
            machine.remove()
        subprocess.run(["ip", "link", "delete", f"{PREFIX}br"], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            NAMES.rmdir()  # if nobody else's names are there


def compose(secrets: Mapping[str, str]) -> dict[str, Any]:
    """The services of docker/compose.yaml, with the variables that its head names."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else secrets.get(found[1], "")

    text = (ROOT / "docker" / "compose.yaml").read_text()
    services: dict[str, Any] = yaml.safe_load(re.sub(r"\$\$|\$\{(\w+)(?::[?-][^}]*)?\}", value, text))["services"]
    return services


class ImageBroker:
    """A broker as the image `apache/kafka` starts it: the image's own program turns the environment into properties."""

    def __init__(self, machine: Machine, environment: Mapping[str, str]) -> None:
        self._machine = machine
        settings = Settings()
        self._java = [*find_java(settings).command, "-Xmx256m", "-cp", class_path(fetch_jars(settings, None, print))]
        self._folder = machine.folder / "kafka"
        self._environ = environ() | dict(environment) | {"KAFKA_LOG_DIRS": str(self._folder / "log")}
        self._folder.mkdir()
        (self._folder / "server.properties").touch()
        folders = [f"--{kind}-configs-dir={self._folder}" for kind in ("default", "mounted", "final")]
        wrapper = ["kafka.docker.KafkaDockerWrapper", "setup", *folders]
        done = subprocess.run(
            [*self._java, *wrapper], env=self._environ, cwd=self._folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.process: psutil.Popen | None = None

    def start(self) -> None:
        """Start it; it is not ready when this returns."""
        properties = str(self._folder / "server.properties")
        self.process = self._machine.start(*self._java, "kafka.Kafka", properties, env=self._environ, log="broker")

    def kill(self) -> None:
        """Kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
