"""Debian's redis-server on a free port, for one test; it can be stopped or killed, and started with what it held."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.processes import until
from tests.support.synthetic_site import free_port


class RedisServer:
    """A server that is started.

    Attributes:
        url: Of its first database.
        client: Answers with text.
    """

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self._folder = folder
        self._options = [*options, *(["--requirepass", password] if password else ())]
        self.port = free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"
        self.client: Any = redis.Redis.from_url(self.url, decode_responses=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Until it answers."""
        options = ["--port", self.port, "--bind", "127.0.0.1", "--dir", self._folder, "--appendonly", "yes"]
        command = ["redis-server", *options, "--appendfsync", "always", "--save", "", "--loglevel", "warning"]
        words = [str(word) for word in (*command, *self._options)]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)  # a module may share it: no `Process`
        until(self._answers, "Redis answers")

    def stop(self) -> None:
        """As an operator stops it."""
        self._process.terminate()
        self._process.wait()

    def kill(self) -> None:
        """Kill -9."""
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            self.client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        return True


@contextmanager
def running_redis(folder: Path, *options: str, password: str = "") -> Iterator[RedisServer]:
    """A server; it is killed at the end."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(folder, *options, password=password)
    try:
        yield server
    finally:
        server.client.close()
        server.kill()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone."""
    with running_redis(tmp_path / "redis") as server:
        yield server
