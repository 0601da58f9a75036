"""A MariaDB server of Debian's, in a folder of its own: those of pytest are shut to the user that it runs as."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest
from pymysql.cursors import Cursor, DictCursor

from tests.support.processes import until
from tests.support.synthetic_site import free_port


class MariaDbServer:
    """See the module.

    Attributes:
        address: As `-o` takes it, without the table.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
            pytest.skip("MariaDB is not installed")
        self.folder, self.port = folder, free_port()
        self.address = f"mysql://crawlog:geheim@127.0.0.1:{self.port}/crawl"
        self._process: subprocess.Popen[bytes] | None = None
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}", "--user=mysql", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True, cwd="/", timeout=120)
        users = folder.with_suffix(".sql")
        users.write_text(
            "CREATE DATABASE IF NOT EXISTS crawl;\nGRANT ALL ON crawl.* TO crawlog@'%' IDENTIFIED BY 'geheim';\n"
        )
        users.chmod(0o644)
        self._init = f"--init-file={users}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = subprocess.Popen(
            [
                "mariadbd",
                "--no-defaults",
                f"--datadir={self.folder}",
                "--user=mysql",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self.folder}/socket",
                f"--log-error={self.folder}/log.err",
                "--innodb-buffer-pool-size=64M",
                "--innodb-flush-log-at-trx-commit=2",
                "--skip-name-resolve",
                self._init,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, f"MariaDB: {self.folder}/log.err")

    def stop(self) -> None:
        """Kills it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def connect(self) -> "pymysql.Connection[Cursor]":
        """A connection to the database."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="crawlog", password="geheim", database="crawl", autocommit=True
        )

    def table(self, name: str) -> list[dict[str, object]]:
        """The rows of a table, by column."""
        with self.connect() as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(f"SELECT * FROM {name}")
            return [*cursor.fetchall()]

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """The rows of a query."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return [*cursor.fetchall()]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log.err").read_text()[-2000:]
        with suppress(pymysql.Error):
            self.rows("SELECT 1")
            return True
        return False


@contextmanager
def mariadb_server() -> Iterator[MariaDbServer]:
    """A server; it is killed at the end."""
    with tempfile.TemporaryDirectory(prefix="mariadb-") as name:
        Path(name).chmod(0o755)
        server = MariaDbServer(Path(name) / "data")
        try:
            server.start()
            yield server
        finally:
            server.stop()
