"""An S3 server: moto's, in an environment of its own (it wants another dateutil than Faust), in the build folder."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.processes import until
from tests.support.synthetic_site import free_port

HOME = Path(__file__).parents[2] / "build" / "moto"
BUCKET = "bucket"


def program() -> Path:
    """`moto_server`, installed the first time; or a skip."""
    HOME.parent.mkdir(exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "bin" / "moto_server").exists():
            uv, python = str(Path(sys.executable).with_name("uv")), str(HOME / "bin" / "python")
            for command in (
                ["venv", "--clear", str(HOME)],
                ["pip", "install", "--python", python, "moto[server]"],
            ):
                done = subprocess.run([uv, "-q", *command], capture_output=True, text=True, timeout=300, check=False)
                if done.returncode:
                    pytest.skip(f"moto's S3 server cannot be installed: {done.stderr[-300:]}")
    return HOME / "bin" / "moto_server"


class S3Server:
    """See the module. What it has is gone when it ends; any credentials are right.

    Attributes:
        environ: Variables by which a process finds it.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.environ = {
            "AWS_ENDPOINT_URL": self.origin,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "geheim",
            "AWS_REGION": "us-east-1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it with an empty bucket."""
        command = [str(program()), "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: self._asked("PUT", f"/{BUCKET}") is not None, "the S3 server")

    def stop(self) -> None:
        """Kills it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def content(self, key: str) -> bytes | None:
        """An object of the bucket; None if there is none."""
        return self._asked("GET", f"/{BUCKET}/{key}")

    def _asked(self, method: str, path: str) -> bytes | None:
        try:
            with urlopen(Request(self.origin + path, method=method), timeout=10) as answer:
                return bytes(answer.read())
        except (HTTPError, URLError, ConnectionError):
            return None


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server; it is killed at the end."""
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.stop()
