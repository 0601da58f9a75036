"""FerretDB: a server that speaks MongoDB's protocol, over a PostgreSQL server of Debian's. MongoDB is in no registry.

`main.go` is built once, into build/; without Go or its modules the tests are skipped, with the compiler's reason.
"""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymongo
import pytest

from tests.support.postgres import PostgresServer, postgres_server
from tests.support.processes import until
from tests.support.synthetic_site import free_port

HERE = Path(__file__).parent

BINARY = HERE.parents[2] / "build" / "ferretdb"

BUILD_S = 900.0
"""The first build of a machine compiles some 100 packages."""


def program() -> Path:
    """The server, or a skip."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go to build FerretDB with")
    BINARY.parent.mkdir(exist_ok=True)
    with BINARY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(file.stat().st_mtime for file in HERE.glob("*.*"))
        if not BINARY.exists() or BINARY.stat().st_mtime < newest:
            command = [go, "build", "-tags", "ferretdb_no_sqlite", "-ldflags", "-s -w", "-buildvcs=false", "-o"]
            made = subprocess.run(
                [*command, str(BINARY), "."], cwd=HERE, capture_output=True, text=True, timeout=BUILD_S, check=False
            )
            if made.returncode:
                pytest.skip(f"FerretDB cannot be built: {made.stderr[-500:]}")
    return BINARY


class FerretServer:
    """See the module.

    Attributes:
        port: On 127.0.0.1.
        client: Is logged in.
    """

    def __init__(self, folder: Path, behind: PostgresServer) -> None:
        self._folder, self._behind = folder, behind
        self._program = program()
        self.port = free_port()
        self.client: pymongo.MongoClient[dict[str, object]] = pymongo.MongoClient(
            self.address("postgres.x"), serverSelectionTimeoutMS=1000
        )
        self.start()

    def address(self, collection: str) -> str:
        """As `-o` takes it."""
        return f"mongodb://postgres:geheim@127.0.0.1:{self.port}/{collection}?authMechanism=PLAIN"

    def start(self) -> None:
        """Until it answers."""
        behind = f"postgres://127.0.0.1:{self._behind.port}/postgres"
        command = [str(self._program), f"127.0.0.1:{self.port}", behind]
        with (self._folder / "ferretdb.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # a module may share it: no `Process`
        until(self._answers, "FerretDB answers")

    def kill(self) -> None:
        """Kill -9; what it had acknowledged lies in PostgreSQL."""
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            self.client["postgres"].command("ping")
        except pymongo.errors.PyMongoError:
            return False
        return True


@contextmanager
def ferret_server(folder: Path) -> Iterator[FerretServer]:
    """A server; it is killed at the end."""
    program()
    with postgres_server() as behind:
        server = FerretServer(folder, behind)
        try:
            yield server
        finally:
            server.client.close()
            server.kill()
