"""Debian's redis-server on a free port, for one test; it can be stopped, and started again with what it held."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.processes import Process, until
from tests.support.synthetic_site import free_port


class RedisServer:
    """A server that is started.

    Attributes:
        url: Of its first database.
        client: Answers with text.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Until it answers."""
        options = ["--port", self.port, "--bind", "127.0.0.1", "--dir", self._folder, "--appendonly", "yes"]
        command = ["redis-server", *options, "--appendfsync", "always", "--save", "", "--loglevel", "warning"]
        with (self._folder / "log").open("a") as log:
            self._process = Process([*command, *self._options], stdout=log, stderr=log)
        until(self._answers, "Redis answers")

    def stop(self) -> None:
        """As an operator stops it."""
        self._process.terminate()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            self.client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        return True


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(tmp_path / "redis")
    yield server
    server.client.close()
