"""A PostgreSQL server of Debian's, in a folder of its own: those of pytest are shut to the user that it runs as."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support.synthetic_site import free_port


def programs() -> Path:
    """The folder of its programs, or a skip."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found or shutil.which("runuser") is None:
        pytest.skip("PostgreSQL is not installed")
    return found[-1].parent


class PostgresServer:
    """See the module.

    Attributes:
        address: As `-o` takes it, without the table.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"postgresql://postgres:geheim@127.0.0.1:{self.port}/postgres"
        self._bin = programs()
        folder.mkdir()
        shutil.chown(folder, "postgres")
        password = folder.parent / f"{folder.name}.password"
        password.write_text("geheim\n")
        password.chmod(0o644)
        self._run("initdb", "-D", str(folder), "-A", "scram-sha-256", "-U", "postgres", f"--pwfile={password}", "-N")
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-D", str(self.folder), "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stops it; `immediate` is a kill of all its processes."""
        self._run("pg_ctl", "-D", str(self.folder), "-w", "-m", mode, "stop")

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """The rows of a query."""
        with psycopg.connect(self.address) as connection:
            return connection.execute(query.encode()).fetchall()

    def table(self, name: str) -> list[dict[str, object]]:
        """The rows of a table, by column."""
        with psycopg.connect(self.address, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {name}".encode()).fetchall()

    def _run(self, program: str, *arguments: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(self._bin / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=60)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server; it is killed at the end."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        Path(name).chmod(0o755)
        server = PostgresServer(Path(name) / "data")
        try:
            yield server
        finally:
            server.stop()
